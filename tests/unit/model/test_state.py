"""DifferentiableState: flat form, packing and cutting by sequence, own rows against whole states."""

import pytest
import torch
from model_cases import make_config, make_model, make_tokens

from segue.model.inputs import PackedInputs
from segue.model.routing import Routing
from segue.model.state import DifferentiableState

CONFIG = make_config()


def make_state(lengths: list[int]) -> DifferentiableState:
    """The whole state after feeding sequences of these lengths."""
    model = make_model(CONFIG)
    state = DifferentiableState.zeros(CONFIG, len(lengths), torch.float64)
    with torch.no_grad():
        inputs = PackedInputs.pack([make_tokens(length, seed=length) for length in lengths])
        return state.extended_by(model(inputs, state, Routing())[1])


def assert_equal(one: DifferentiableState, two: DifferentiableState) -> None:
    for left, right in zip(one.flatten(), two.flatten(), strict=True):
        assert torch.equal(left, right)


def test_zeros_hold_no_rows_and_keep_the_recurrent_part_wide() -> None:
    state = DifferentiableState.zeros(CONFIG, 2, torch.bfloat16)
    assert [t.shape for t in state.recurrent] == [(2, 2, 16, 16)] * 3
    assert {t.dtype for t in state.recurrent} == {torch.float32}
    assert [t.shape for t in state.conv] == [(2, 3, 96)] * 3
    assert [t.shape for t in state.rows] == [(0, 14)] * 2
    assert {t.dtype for t in (*state.conv, *state.rows)} == {torch.bfloat16}


def test_flat_form_comes_back() -> None:
    state = make_state([5, 3])
    assert_equal(DifferentiableState.unflatten(CONFIG, state.flatten()), state)
    with pytest.raises(ValueError, match="a state has 10 tensors, got 9"):
        DifferentiableState.unflatten(CONFIG, state.flatten()[:-1])


def test_split_states_are_those_of_the_sequences_alone_and_join_restores_them() -> None:
    state = make_state([5, 1, 8])
    parts = state.split()
    assert [part.consumed.tolist() for part in parts] == [[5], [1], [8]]
    assert [part.rows[0].shape[0] for part in parts] == [5, 1, 8]
    for part, length in zip(parts, [5, 1, 8], strict=True):
        for left, right in zip(part.flatten(), make_state([length]).flatten(), strict=True):
            torch.testing.assert_close(left, right, rtol=1e-11, atol=1e-12)
    assert_equal(DifferentiableState.join(parts), state)


def test_extended_by_interleaves_rows_by_sequence() -> None:
    def state(consumed: list[int], counts: list[int], rows: list[float]) -> DifferentiableState:
        return DifferentiableState(
            consumed=torch.tensor(consumed),
            row_offsets=torch.tensor([0, *counts]).cumsum(0),
            recurrent=(torch.tensor(consumed),),
            conv=(),
            rows=(torch.tensor(rows)[:, None],),
        )

    old, new = state([2, 1], [2, 1], [1.0, 2.0, 5.0]), state([3, 3], [1, 2], [3.0, 6.0, 7.0])
    whole = old.extended_by(new)
    assert whole.consumed.tolist() == [3, 3]
    assert whole.row_offsets.tolist() == [0, 3, 6]
    assert whole.rows[0].flatten().tolist() == [1.0, 2.0, 3.0, 5.0, 6.0, 7.0]
    assert whole.recurrent[0].tolist() == [3, 3]


def test_a_forward_leaves_its_input_state_as_it_was_and_returns_only_its_own_rows() -> None:
    model, state = make_model(CONFIG), make_state([5, 3])
    before = [tensor.clone() for tensor in state.flatten()]
    inputs = PackedInputs.pack([make_tokens(2, seed=1), make_tokens(7, seed=2)])
    with torch.no_grad():
        _, after = model(inputs, state, Routing())
    assert all(torch.equal(left, right) for left, right in zip(state.flatten(), before, strict=True))
    assert after.consumed.tolist() == [7, 10]
    assert after.row_offsets.tolist() == [0, 2, 9]
    assert [rows.shape[0] for rows in after.rows] == [9, 9]


def test_gradients_reach_every_tensor_of_the_state() -> None:
    model, state = make_model(CONFIG), make_state([5, 3])
    carried = [t.requires_grad_() for t in (*state.recurrent, *state.conv, *state.rows)]
    hidden, _ = model(PackedInputs.pack([make_tokens(2, seed=1), make_tokens(7, seed=2)]), state, Routing())
    for gradient in torch.autograd.grad(hidden.square().sum(), carried):
        assert (gradient.flatten(1).abs().sum(1) > 0).all()
