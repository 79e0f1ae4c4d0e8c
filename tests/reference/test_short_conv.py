"""The short convolution against its per-token reference; carried inputs, packing and hand-over. Decoding included."""

from collections.abc import Sequence

import pytest
import torch
from kernel_check import assert_as_accurate_as_reference, assert_equals_reference
from torch import Tensor

from segue.kernels.short_conv.naive import naive_short_conv
from segue.kernels.short_conv.op import short_conv, short_conv_step

LENGTHS = [[5], [0, 1, 2, 3, 4, 7], [1, 1], [64, 0, 2], [65]]


def make_inputs(
    lengths: Sequence[int], *, channels: int = 6, taps: int = 4, seed: int = 0
) -> tuple[list[Tensor], Tensor]:
    generator = torch.Generator().manual_seed(seed)
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    shapes = [(int(offsets[-1]), channels), (channels, taps), (len(lengths), taps - 1, channels)]
    return [torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in shapes], offsets


@pytest.mark.parametrize("lengths", LENGTHS)
def test_values_and_gradients_equal_the_reference(lengths: list[int]) -> None:
    inputs, offsets = make_inputs(lengths)
    assert_equals_reference(lambda *a: short_conv(*a, offsets), lambda *a: naive_short_conv(*a, offsets), inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_errors_stay_at_the_reference_level(dtype: torch.dtype) -> None:
    inputs, offsets = make_inputs([64, 0, 2, 65])
    assert_as_accurate_as_reference(
        lambda *a: short_conv(*a, offsets), lambda *a: naive_short_conv(*a, offsets), inputs, dtype
    )


def test_gradients_pass_the_numerical_check() -> None:
    inputs, offsets = make_inputs([3, 0, 5], channels=2)
    torch.autograd.gradcheck(lambda *a: short_conv(*a, offsets), [tensor.requires_grad_() for tensor in inputs])


def test_a_neighbour_changes_no_bit_and_no_gradient() -> None:
    (x, weight, state), offsets = make_inputs([2, 7, 3])
    edited = x.clone()
    edited[:2], edited[9:] = 1e3, -1e3
    before, after = short_conv(x, weight, state, offsets)[0], short_conv(edited, weight, state, offsets)[0]
    assert torch.equal(before[2:9], after[2:9])
    leaf = x.clone().requires_grad_()
    short_conv(leaf, weight, state, offsets)[0][2:9].sum().backward()
    assert leaf.grad is not None
    assert torch.equal(leaf.grad[:2], torch.zeros(2, 6, dtype=x.dtype))
    assert torch.equal(leaf.grad[9:], torch.zeros(3, 6, dtype=x.dtype))


@pytest.mark.parametrize("cut", range(8))
def test_a_state_handed_over_at_any_token_continues_the_same(cut: int) -> None:
    (x, weight, state), offsets = make_inputs([7])
    whole, final = short_conv(x, weight, state, offsets)
    first, middle = short_conv(x[:cut], weight, state, torch.tensor([0, cut]))
    second, end = short_conv(x[cut:], weight, middle, torch.tensor([0, 7 - cut]))
    torch.testing.assert_close(torch.cat([first, second]), whole, rtol=1e-12, atol=1e-12)
    assert torch.equal(end, final)


def test_decoding_token_by_token_equals_the_packed_form() -> None:
    (x, weight, state), offsets = make_inputs([6])
    whole, final = short_conv(x, weight, state, offsets)
    outputs = []
    for t in range(6):
        y, state = short_conv_step(x[t : t + 1], weight, state)
        outputs.append(y)
    torch.testing.assert_close(torch.cat(outputs), whole, rtol=1e-12, atol=1e-12)
    assert torch.equal(state, final)
