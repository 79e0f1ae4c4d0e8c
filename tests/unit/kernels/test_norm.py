"""The norms on hand-worked numbers, their casts, and what they refuse."""

import math

import pytest
import torch

from segue.kernels.norm.op import gated_head_norm, rms_norm


def test_rms_norm_divides_by_the_root_mean_square_and_weighs() -> None:
    # mean square of 3 and 4 is 12.5; with eps 3.5 the divisor is sqrt(16) = 4
    y = rms_norm(torch.tensor([[3.0, 4.0]]), torch.tensor([2.0, 10.0]), 3.5)
    assert y.tolist() == [[1.5, 10.0]]


def test_rms_norm_casts_before_the_weight_multiplies() -> None:
    x = torch.tensor([[1.0, 2.0, 4.0, 7.0]], dtype=torch.bfloat16)
    weight = torch.tensor([1.3, 0.7, 1.1, 0.9], dtype=torch.bfloat16)
    rms = math.sqrt((1 + 4 + 16 + 49) / 4 + 1e-5)
    # two roundings to bf16: of the scaled row, then of the product
    expected = (x.double() / rms).bfloat16() * weight
    assert torch.equal(rms_norm(x, weight, 1e-5), expected)


def test_head_norm_gates_after_norm_and_weight() -> None:
    # one head of two channels: 3 and 4 over sqrt(12.5 + 3.5) = 4, weights 2 and 10, gates sigmoid(0) and sigmoid(ln 3)
    o = torch.tensor([[[3.0, 4.0]]])
    y = gated_head_norm(o, torch.tensor([[0.0, math.log(3)]]), torch.tensor([2.0, 10.0]), 3.5)
    assert y[0].tolist() == pytest.approx([0.75 * 2 * 0.5, 1.0 * 10 * 0.75])


def test_head_norm_takes_each_head_alone_and_returns_the_gate_s_dtype() -> None:
    o = torch.tensor([[[3.0, 4.0], [30.0, 40.0]]])
    y = gated_head_norm(o, torch.zeros(1, 4, dtype=torch.bfloat16), torch.ones(2), 0.0)
    assert y.dtype == torch.bfloat16
    assert y[0, :2].tolist() == y[0, 2:].tolist()


def test_grad_mode_changes_no_bit() -> None:
    generator = torch.Generator().manual_seed(0)
    x, gate = torch.randn(2, 7, 64, generator=generator)
    weight = torch.randn(64, generator=generator).requires_grad_()
    heads, head_weight = x.view(7, 4, 16), weight[:16]
    with_grad = [rms_norm(x, weight, 1e-5), gated_head_norm(heads, gate, head_weight, 1e-5)]
    with torch.no_grad():
        without = [rms_norm(x, weight, 1e-5), gated_head_norm(heads, gate, head_weight, 1e-5)]
    assert all(torch.equal(a, b) for a, b in zip(with_grad, without, strict=True))


def test_sizes_that_disagree_are_refused() -> None:
    with pytest.raises(ValueError, match=r"weight must be \[3\], got \[1\]"):
        rms_norm(torch.ones(2, 3), torch.ones(1), 1e-5)
    with pytest.raises(ValueError, match="gate_logits and weight must be"):
        gated_head_norm(torch.ones(2, 3, 4), torch.ones(2, 11), torch.ones(4), 1e-5)
