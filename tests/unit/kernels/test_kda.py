"""KDA against hand-worked tokens, and what it refuses. The recurrence itself: tests/reference/test_kda.py."""

import math

import pytest
import torch

from segue.kernels.kda.op import kda, kda_step


@pytest.mark.parametrize("form", ["chunk", "step"])
def test_one_token_decays_erases_writes_and_reads_in_this_order(form: str) -> None:
    # K = V = 1: the L2 norm makes q = k = 1 (up to 1e-6), so with S = 2, v = 5, beta = 1/2 and
    # g = -5 * sigmoid(e^0 * (0 + 0)) = -2.5:  S' = 2 e^-2.5;  S+ = S' + (5 - S') / 2;  o = S+
    one = torch.ones(1, 1, 1, dtype=torch.float64)
    zero = torch.zeros(1, dtype=torch.float64)
    inputs = [1e6 * one, 1e6 * one, 5 * one, 0 * one, zero[None], zero, zero, 2 * one[None]]
    if form == "chunk":
        o, state = kda(*inputs, torch.tensor([0, 1]), lower_bound=-5.0)
    else:
        o, state = kda_step(*inputs, lower_bound=-5.0)
    expected = (2 * math.exp(-2.5) + 5) / 2
    assert o.item() == pytest.approx(expected, rel=1e-12)
    assert state.item() == pytest.approx(expected, rel=1e-12)


def test_softplus_decay_has_no_lower_bound() -> None:
    # g = -e^0 * softplus(20) = -20.000000002; v = 0 and beta = sigmoid(-1000) = 0: the state only decays
    one = torch.ones(1, 1, 1, dtype=torch.float64)
    zero = torch.zeros(1, dtype=torch.float64)
    inputs = [one, one, 0 * one, 20 * one, zero[None] - 1000, zero, zero, one[None]]
    _, state = kda_step(*inputs, lower_bound=None)
    assert state.item() == pytest.approx(math.exp(-math.log1p(math.exp(20))), rel=1e-12)


def make_inputs(num_tokens: int) -> list[torch.Tensor]:
    x, y = torch.ones(num_tokens, 1, 2), torch.ones(num_tokens, 1)
    return [x, x, x, x, y, torch.ones(1), torch.ones(2), torch.ones(1, 1, 2, 2)]


@pytest.mark.parametrize("lower_bound", [-5.1, 0.0, 1.0])
def test_lower_bound_out_of_range_is_refused(lower_bound: float) -> None:
    with pytest.raises(ValueError, match=r"lower_bound must be in \[-5, 0\)"):
        kda(*make_inputs(1), torch.tensor([0, 1]), lower_bound=lower_bound)


def test_offsets_that_do_not_cover_the_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="offsets must rise from 0 to 3 over 1 sequences"):
        kda(*make_inputs(3), torch.tensor([0, 2]), lower_bound=-5.0)


def test_sizes_that_disagree_are_refused() -> None:
    inputs = make_inputs(3)
    inputs[6] = torch.ones(3)
    with pytest.raises(ValueError, match=r"dt_bias must be \[2\], got \[3\]"):
        kda(*inputs, torch.tensor([0, 3]), lower_bound=-5.0)
