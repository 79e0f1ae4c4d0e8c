"""RMSNorm and the gated head-wise norm against their references: values, gradients, rounding."""

import pytest
import torch
from kernel_check import Operator, assert_as_accurate_as_reference, assert_equals_reference
from torch import Tensor

from segue.kernels.norm.naive import naive_gated_head_norm, naive_rms_norm
from segue.kernels.norm.op import gated_head_norm, rms_norm

EPS = 1e-5


def make_tensors(*shapes: tuple[int, ...], seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def with_eps(form: Operator) -> Operator:
    return lambda *inputs: form(*inputs, EPS)


@pytest.mark.parametrize("shape", [(1, 7), (33, 96), (5, 3, 32), (0, 8)])
def test_rms_norm_and_its_gradients_equal_the_reference(shape: tuple[int, ...]) -> None:
    inputs = make_tensors(shape, shape[-1:])
    assert_equals_reference(with_eps(rms_norm), with_eps(naive_rms_norm), inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rms_norm_rounds_at_most_twice_as_much_as_the_reference(dtype: torch.dtype) -> None:
    inputs = make_tensors((50, 96), (96,))
    assert_as_accurate_as_reference(with_eps(rms_norm), with_eps(naive_rms_norm), inputs, dtype)


def test_rms_norm_of_tiny_and_zero_rows_is_tamed_by_eps() -> None:
    inputs = make_tensors((4, 16), (16,))
    inputs[0][0] = 0
    inputs[0][1] *= 1e-6
    assert_equals_reference(with_eps(rms_norm), with_eps(naive_rms_norm), inputs)


@pytest.mark.parametrize("num_tokens", [0, 1, 33])
def test_gated_head_norm_and_its_gradients_equal_the_reference(num_tokens: int) -> None:
    inputs = make_tensors((num_tokens, 3, 32), (num_tokens, 96), (32,))
    assert_equals_reference(with_eps(gated_head_norm), with_eps(naive_gated_head_norm), inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gated_head_norm_rounds_at_most_twice_as_much_as_the_reference(dtype: torch.dtype) -> None:
    inputs = make_tensors((50, 3, 32), (50, 96), (32,))
    assert_as_accurate_as_reference(with_eps(gated_head_norm), with_eps(naive_gated_head_norm), inputs, dtype)


def test_gradients_pass_gradcheck() -> None:
    x, weight = (t.requires_grad_() for t in make_tensors((4, 5), (5,)))
    assert torch.autograd.gradcheck(with_eps(rms_norm), (x, weight))
    o, gate, head_weight = (t.requires_grad_() for t in make_tensors((3, 2, 4), (3, 8), (4,)))
    assert torch.autograd.gradcheck(with_eps(gated_head_norm), (o, gate, head_weight))
