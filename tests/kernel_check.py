"""How a fast operator is compared with its reference: same inputs, same cotangents, outputs and every gradient."""

from collections.abc import Callable, Sequence

import tolerances
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

Operator = Callable[..., Tensor | tuple[Tensor, ...]]


def relative_error(result: Tensor, reference: Tensor) -> float:
    """RMS of the difference over the RMS of the reference; absolute RMS where the reference is zero."""
    if reference.numel() == 0:
        return 0.0
    difference = (result.double() - reference.double()).square().mean().sqrt()
    size = reference.double().square().mean().sqrt()
    return float(difference / size) if size > 0 else float(difference)


def outputs_and_gradients(operator: Operator, inputs: Sequence[Tensor]) -> list[Tensor]:
    """Outputs, then the gradient of each input under fixed random cotangents."""
    leaves = [tensor.detach().clone().requires_grad_() for tensor in inputs]
    result = operator(*leaves)
    outputs = result if isinstance(result, tuple) else (result,)
    generator = torch.Generator().manual_seed(20)
    cotangents = [torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out.dtype) for out in outputs]
    return [out.detach() for out in outputs] + list(torch.autograd.grad(outputs, leaves, cotangents))


def assert_equals_reference(fast: Operator, naive: Operator, inputs_64: Sequence[Tensor]) -> None:
    """Outputs and gradients of both in fp64, to `tolerances.FP64_ERROR`."""
    pairs = zip(outputs_and_gradients(fast, inputs_64), outputs_and_gradients(naive, inputs_64), strict=True)
    for index, (result, reference) in enumerate(pairs):
        assert result.dtype == reference.dtype == torch.float64
        assert result.shape == reference.shape
        error = relative_error(result, reference)
        assert error <= tolerances.FP64_ERROR, f"tensor {index}: error {error}"


def assert_as_accurate_as_reference(
    fast: Operator, naive: Operator, inputs_64: Sequence[Tensor], dtype: torch.dtype
) -> None:
    """Errors of outputs and gradients in `dtype`, bounded by the reference's own error in that dtype."""
    inputs = [tensor.to(dtype) for tensor in inputs_64]
    truths = outputs_and_gradients(naive, [tensor.double() for tensor in inputs])
    results, references = outputs_and_gradients(fast, inputs), outputs_and_gradients(naive, inputs)
    for index, (result, reference, truth) in enumerate(zip(results, references, truths, strict=True)):
        assert result.dtype == reference.dtype
        error = relative_error(result, truth)
        bound = tolerances.TIMES_NAIVE * relative_error(reference, truth) + tolerances.ERROR_FLOOR[dtype]
        assert error <= bound, f"tensor {index}: error {error}, bound {bound}"


class LargestTensor(TorchDispatchMode):
    """While active, keeps the size of the largest tensor that an operation returned, in `numel`."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, Tensor):
                self.numel = max(self.numel, tensor.numel())
        return result
