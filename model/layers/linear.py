"""Weights without a start value: they are drawn by `SegueModel.init_weights` or read from a checkpoint."""

from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from segue.kernels.norm.op import rms_norm

JOINT_MAX_NUMEL = 1 << 20
"""Up to so many numbers, matrices of one input are multiplied together: beyond, a copy costs more than the calls."""


class Linear(nn.Module):
    """Matrix without bias."""

    def __init__(self, num_inputs: int, num_outputs: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_outputs, num_inputs, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        """[..., num_inputs] to [..., num_outputs]."""
        return F.linear(x, self.weight)


class Weighted(Protocol):
    """A module with one weight."""

    @property
    def weight(self) -> Tensor:
        """The weight."""

    def __call__(self, x: Tensor) -> Tensor:
        """The module's output."""


class Derived:
    """A tensor computed from modules' weights for decoding, kept until one of them changes.

    A change is seen by version counter or storage: copying into weights, initialising, loading and moving them. The
    tensor is then written anew where it lies, since a captured step goes on reading there. Used without grad only;
    training reads the weights themselves.
    """

    def __init__(self, compute: Callable[..., Tensor], *modules: Weighted) -> None:
        self._compute, self._modules = compute, modules
        self._stamp: list[tuple[int, int]] = []
        self._value: Tensor | None = None

    @property
    def is_made(self) -> bool:
        """True once it was asked for."""
        return self._value is not None

    def __call__(self) -> Tensor:
        """The tensor."""
        weights = [module.weight for module in self._modules]
        stamp = [(weight._version, weight.data_ptr()) for weight in weights]
        if self._value is None or stamp != self._stamp:
            # outside inference mode, so that whoever asks first leaves a tensor that anybody may write
            with torch.inference_mode(False), torch.no_grad():
                value = self._compute(*(weight.detach() for weight in weights))
                if self._value is not None and _has_form_of(self._value, value):
                    self._value.copy_(value)
                else:
                    self._value = value
            self._stamp = stamp
        return self._value


def refresh_derived(model: nn.Module) -> None:
    """Bring every tensor that a model's decoding derives from weights up to date, where there is one."""
    for module in model.modules():
        for part in vars(module).values():
            derived = part.derived if isinstance(part, JointLinear) else part
            if isinstance(derived, Derived) and derived.is_made:
                derived()


def _has_form_of(tensor: Tensor, other: Tensor) -> bool:
    return (tensor.shape, tensor.dtype, tensor.device) == (other.shape, other.dtype, other.device)


class JointLinear:
    """Maps of the same input, for decoding: small ones as one product with a joint copy of their matrices.

    Not below float32, where a map may ask for wider products than its weights.
    """

    def __init__(self, *maps: Weighted) -> None:
        self._maps = maps
        self._sizes = [part.weight.shape[0] for part in maps]
        self._is_small = sum(part.weight.numel() for part in maps) <= JOINT_MAX_NUMEL
        self.derived = Derived(_stack_rows, *maps)

    def __call__(self, x: Tensor) -> tuple[Tensor, ...]:
        """[T, num_inputs] to the products in order, side by side in one tensor where joint."""
        if self._is_small and x.dtype.itemsize >= torch.float32.itemsize:
            return F.linear(x, self.derived()).split(self._sizes, dim=-1)
        return tuple(part(x) for part in self._maps)


def _stack_rows(*weights: Tensor) -> Tensor:
    return torch.cat(weights)


class RmsNorm(nn.Module):
    """Root-mean-square norm; statistics in at least float32, weight applied in the input's dtype."""

    def __init__(self, size: int, eps: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(size, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        """Norm over the last dimension."""
        return rms_norm(x, self.weight, self.eps)


class Embedding(nn.Module):
    """Table of token vectors."""

    def __init__(self, num_tokens: int, size: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_tokens, size, dtype=dtype))

    def forward(self, token_ids: Tensor) -> Tensor:
        """[T] int64 to [T, size]."""
        return F.embedding(token_ids, self.weight)


class ShortConv(nn.Module):
    """Taps of a depthwise causal convolution, the last for the current token; at least float32."""

    def __init__(self, num_channels: int, num_taps: int, dtype: torch.dtype) -> None:
        super().__init__()
        wide = torch.promote_types(dtype, torch.float32)
        self.weight = nn.Parameter(torch.empty(num_channels, 1, num_taps, dtype=wide))
