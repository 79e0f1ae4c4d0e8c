"""Attention residual against its reference, for 1 to 9 sources."""

import pytest
import torch
from kernel_check import assert_as_accurate_as_reference, assert_equals_reference
from torch import Tensor

from segue.kernels.attn_res.naive import naive_attn_res_mix
from segue.kernels.attn_res.op import attn_res_mix

EPS = 1e-5


def fast(norm_weight: Tensor, proj_weight: Tensor, *sources: Tensor) -> Tensor:
    return attn_res_mix(sources, norm_weight, proj_weight, EPS)


def naive(norm_weight: Tensor, proj_weight: Tensor, *sources: Tensor) -> Tensor:
    return naive_attn_res_mix(sources, norm_weight, proj_weight, EPS)


def make_inputs(num_sources: int, num_tokens: int, width: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(num_sources)
    norm = 1 + 0.2 * torch.randn(width, generator=generator, dtype=torch.float64)
    proj = 0.3 * torch.randn(width, generator=generator, dtype=torch.float64)
    sources = [torch.randn(num_tokens, width, generator=generator, dtype=torch.float64) for _ in range(num_sources)]
    # sources of unequal size, as partial sums are
    return [norm, proj, *(source * (1 + j) for j, source in enumerate(sources))]


@pytest.mark.parametrize("num_sources", [1, 2, 3, 5, 9])
# 600 tokens of 33 are walked, fewer are stacked
@pytest.mark.parametrize("num_tokens", [0, 1, 65, 600])
def test_equals_the_reference_in_fp64(num_sources: int, num_tokens: int) -> None:
    assert_equals_reference(fast, naive, make_inputs(num_sources, num_tokens, 33))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_sources", [2, 9])
def test_is_as_accurate_as_the_reference(num_sources: int, dtype: torch.dtype) -> None:
    assert_as_accurate_as_reference(fast, naive, make_inputs(num_sources, 500, 96), dtype)


def test_backward_passes_gradcheck() -> None:
    inputs = [tensor.requires_grad_() for tensor in make_inputs(3, 4, 5)]
    assert torch.autograd.gradcheck(fast, inputs)
    assert torch.autograd.gradcheck(naive, inputs)


def test_a_zero_query_gives_the_plain_average() -> None:
    norm, proj, *sources = make_inputs(5, 20, 16)
    expected = torch.stack(sources).mean(0)
    assert torch.allclose(fast(norm, torch.zeros_like(proj), *sources), expected, rtol=1e-14, atol=1e-15)


def test_one_source_passes_unchanged() -> None:
    norm, proj, source = make_inputs(1, 20, 16)
    assert torch.equal(fast(norm, proj, source), source)


def test_a_token_gets_no_gradient_from_another() -> None:
    norm, proj, *sources = make_inputs(3, 6, 8)
    leaves = [source.requires_grad_() for source in sources]
    fast(norm, proj, *leaves)[2].sum().backward()
    for leaf in leaves:
        assert leaf.grad is not None
        others = torch.cat([leaf.grad[:2], leaf.grad[3:]])
        assert torch.equal(others, torch.zeros_like(others)) and leaf.grad[2].abs().min() > 0


def test_same_input_twice_gives_the_same_bits() -> None:
    inputs = [tensor.float() for tensor in make_inputs(5, 300, 96)]
    assert torch.equal(fast(*inputs), fast(*inputs))


@pytest.mark.parametrize("num_tokens", [16, 300])
def test_grad_mode_does_not_change_the_bits(num_tokens: int) -> None:
    inputs = [tensor.float().requires_grad_() for tensor in make_inputs(3, num_tokens, 96)]
    with torch.no_grad():
        swept = fast(*inputs)
    assert torch.equal(swept, fast(*inputs))
