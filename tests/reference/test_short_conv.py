"""The packed short convolution against one token at a time: values, states and gradients, leaks, hand-over."""

import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
from kernel_check import Operator, assert_as_accurate_as_reference, assert_equals_reference, relative_error
from tolerances import FP64_ERROR
from torch import Tensor

from segue.kernels.short_conv import op
from segue.kernels.short_conv.naive import naive_short_conv
from segue.kernels.short_conv.op import short_conv, short_conv_step

LENGTHS = [0, 1, 2, 3, 4, 5, 0, 70, 33]
BLOCKS = [40, 2**17]


def make_inputs(lengths: list[int], *, channels: int = 10, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(sum(lengths), channels), (channels, 4), (len(lengths), 3, channels)]
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def packed(form: Operator, lengths: list[int]) -> Operator:
    offsets = torch.tensor([0, *itertools.accumulate(lengths)])
    return lambda x, weight, state: form(x, weight, state, offsets)


@pytest.fixture(params=BLOCKS)
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 4 tokens, and one block for all."""
    monkeypatch.setattr(op, "BLOCK_NUMBERS", request.param)


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize("lengths", [LENGTHS, [1], [3], [0, 2], [4], [129]])
def test_values_states_and_gradients_equal_the_reference(lengths: list[int]) -> None:
    assert_equals_reference(packed(short_conv, lengths), packed(naive_short_conv, lengths), make_inputs(lengths))


@pytest.mark.usefixtures("block")
def test_gradients_pass_gradcheck() -> None:
    lengths = [1, 7, 2]
    inputs = [x.requires_grad_() for x in make_inputs(lengths, channels=2)]
    assert torch.autograd.gradcheck(packed(short_conv, lengths), inputs)


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rounding_is_at_most_twice_the_reference_s(dtype: torch.dtype) -> None:
    inputs = make_inputs(LENGTHS)
    assert_as_accurate_as_reference(packed(short_conv, LENGTHS), packed(naive_short_conv, LENGTHS), inputs, dtype)


def test_low_precision_activations_meet_fp32_weights_in_fp32() -> None:
    x, weight, state = make_inputs([40])
    low = [x.bfloat16(), weight.float(), state.bfloat16()]
    y, new_state = packed(short_conv, [40])(*low)
    exact, _ = packed(naive_short_conv, [40])(*(tensor.double() for tensor in low))
    # one rounding to bf16 at the end
    assert torch.equal(y, exact.float().bfloat16())
    assert torch.equal(new_state[0], low[0][-3:])


def test_state_handed_over_at_any_token_gives_the_same_continuation() -> None:
    x, weight, state = make_inputs([12])
    y_ref, state_ref = packed(short_conv, [12])(x, weight, state)
    for cut in range(13):
        y_head, middle = packed(short_conv, [cut])(x[:cut], weight, state)
        y_tail, final = packed(short_conv, [12 - cut])(x[cut:], weight, middle)
        assert relative_error(torch.cat([y_head, y_tail]), y_ref) < FP64_ERROR
        assert torch.equal(final, state_ref)


def test_steps_and_their_gradients_equal_the_reference() -> None:
    lengths = [1] * 5
    assert_equals_reference(short_conv_step, packed(naive_short_conv, lengths), make_inputs(lengths))


def test_editing_a_neighbour_leaves_a_step_bit_identical() -> None:
    results = []
    for seed in (1, 2):
        x, weight, state = (tensor.float() for tensor in make_inputs([1] * 5))
        noise = make_inputs([1] * 5, seed=seed)
        x[2], state[2] = noise[0][2].float(), noise[2][2].float()
        results.append(short_conv_step(x, weight, state))
    for one, two in zip(*results, strict=True):
        assert not torch.equal(one[2], two[2])
        assert torch.equal(one[[0, 1, 3, 4]], two[[0, 1, 3, 4]])


@pytest.mark.usefixtures("block")
def test_editing_a_neighbour_leaves_outputs_and_gradients_bit_identical() -> None:
    lengths = [9, 6, 2, 11]
    mine = torch.cat([torch.arange(9), torch.arange(15, 28)])
    results = []
    for seed in (1, 2):
        inputs = [x.float() for x in make_inputs(lengths)]
        noise = make_inputs(lengths, seed=seed)
        inputs[0][9:15], inputs[2][1] = noise[0][9:15].float(), noise[2][1].float()
        inputs = [x.requires_grad_() for x in inputs]
        y, state = packed(short_conv, lengths)(*inputs)
        others = torch.tensor([0, 2, 3])
        total = y[mine].square().sum() + state[others].square().sum()
        d_x, d_weight, d_state = torch.autograd.grad(total, inputs)
        assert d_x[9:15].count_nonzero() == 0
        assert d_state[1].count_nonzero() == 0
        results.append([y[mine], state[others], d_x[mine], d_weight, d_state[others]])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_grad_mode_changes_no_bit(mode: Callable[[], AbstractContextManager[None]]) -> None:
    # lengths of no other test: the first call, which lays them out, is the one without grad
    lengths = [21, 2] if mode is torch.no_grad else [22, 2]
    inputs = [x.float() for x in make_inputs(lengths)]
    with mode():
        without = packed(short_conv, lengths)(*inputs)
    with_grad = packed(short_conv, lengths)(*(x.requires_grad_() for x in inputs))
    assert all(torch.equal(a, b) for a, b in zip(with_grad, without, strict=True))
    torch.autograd.grad(with_grad[0].sum(), inputs)


def test_no_tokens_keep_the_state() -> None:
    x, weight, state = make_inputs([0, 0])
    y, new_state = packed(short_conv, [0, 0])(x, weight, state)
    assert y.shape == x.shape
    assert torch.equal(new_state, state)


def test_later_tokens_do_not_reach_earlier_outputs() -> None:
    x, weight, state = (tensor.float() for tensor in make_inputs([30]))
    y_ref, _ = packed(short_conv, [30])(x, weight, state)
    x[17:] = 5
    y, _ = packed(short_conv, [30])(x, weight, state)
    assert torch.equal(y[:17], y_ref[:17])
