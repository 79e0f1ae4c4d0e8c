"""Gated activations against their formulas: values, gradients, precision, limits."""

import math

import pytest
import torch
from kernel_check import assert_as_accurate_as_reference, assert_equals_reference
from torch import Tensor

from segue.kernels.situ.naive import naive_situ_glu, naive_swiglu
from segue.kernels.situ.op import situ_glu, swiglu

PAIRS = {
    "situ": (lambda g, u: situ_glu(g, u, 4.0, 25.0), lambda g, u: naive_situ_glu(g, u, 4.0, 25.0)),
    "swiglu": (swiglu, naive_swiglu),
}


def make_inputs(*shape: int, size: float = 5.0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [size * torch.randn(*shape, generator=generator, dtype=torch.float64) for _ in range(2)]


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("shape", [(0, 7), (1, 1), (65, 48), (3, 5, 17)])
def test_equals_the_reference_in_fp64(name: str, shape: tuple[int, ...]) -> None:
    assert_equals_reference(*PAIRS[name], make_inputs(*shape))


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_is_as_accurate_as_the_reference(name: str, dtype: torch.dtype) -> None:
    assert_as_accurate_as_reference(*PAIRS[name], make_inputs(500, 48), dtype)


@pytest.mark.parametrize("name", PAIRS)
def test_backward_passes_gradcheck(name: str) -> None:
    inputs = [tensor.requires_grad_() for tensor in make_inputs(4, 3, size=2.0)]
    for operator in PAIRS[name]:
        assert torch.autograd.gradcheck(operator, inputs)


def test_situ_glu_is_the_published_formula() -> None:
    gate, up = 1.5, -3.0
    expected = 4 * math.tanh(gate / 4) / (1 + math.exp(-gate)) * 25 * math.tanh(up / 25)
    result = situ_glu(torch.tensor([gate]).double(), torch.tensor([up]).double(), 4.0, 25.0)
    assert result.item() == pytest.approx(expected, rel=1e-14)


def test_situ_glu_is_capped_and_its_gradient_vanishes_at_the_cap() -> None:
    # 4 tanh(inf) sigmoid(inf) * 25 tanh(inf) = 100; a negative gate closes the sigmoid
    gate = torch.tensor([1e6, 1e6, -1e6], requires_grad=True)
    up = torch.tensor([1e6, -1e6, 1e6], requires_grad=True)
    out = situ_glu(gate, up, 4.0, 25.0)
    assert out.tolist() == [100.0, -100.0, 0.0]
    out.sum().backward()
    assert gate.grad is not None and up.grad is not None
    assert gate.grad.tolist() == [0.0, 0.0, 0.0] and up.grad.tolist() == [0.0, 0.0, 0.0]


def test_situ_glu_tends_to_swiglu_as_the_caps_grow() -> None:
    gate, up = make_inputs(50, 4, size=1.0)
    # tanh(x/b) b = x (1 - x^2 / 3 b^2 + ...): with b = 1e5 and |x| < 5 the relative difference is below 1e-9
    assert torch.allclose(situ_glu(gate, up, 1e5, 1e5), swiglu(gate, up), rtol=2e-9, atol=0)
