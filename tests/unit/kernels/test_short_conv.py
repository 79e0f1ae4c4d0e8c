"""The short convolution on hand-worked numbers, and what it refuses."""

import math

import pytest
import torch

from segue.kernels.short_conv.op import short_conv, short_conv_step


def silu(x: float) -> float:
    return x / (1 + math.exp(-x))


def test_last_tap_multiplies_the_current_token_and_the_state_comes_before() -> None:
    # one channel, taps 1 10 100 1000 (oldest to newest, thousandths), state 1 2 3, tokens 4 5:
    # z_0 = .001*1 + .01*2 + .1*3 + 1*4 = 4.321; z_1 = .001*2 + .01*3 + .1*4 + 1*5 = 5.432
    weight = torch.tensor([[0.001, 0.01, 0.1, 1.0]], dtype=torch.float64)
    state = torch.tensor([[[1.0], [2.0], [3.0]]], dtype=torch.float64)
    x = torch.tensor([[4.0], [5.0]], dtype=torch.float64)
    y, new_state = short_conv(x, weight, state, torch.tensor([0, 2]))
    assert y.flatten().tolist() == pytest.approx([silu(4.321), silu(5.432)])
    assert new_state.flatten().tolist() == [3.0, 4.0, 5.0]
    y, new_state = short_conv_step(x[:1], weight, state)
    assert y.item() == pytest.approx(silu(4.321))
    assert new_state.flatten().tolist() == [2.0, 3.0, 4.0]


def test_sizes_that_disagree_are_refused() -> None:
    x, weight, state = torch.ones(3, 2), torch.ones(2, 4), torch.ones(1, 3, 2)
    with pytest.raises(ValueError, match="weight and state must be"):
        short_conv(x, weight[:, :3], state, torch.tensor([0, 3]))
    with pytest.raises(ValueError, match="offsets must rise from 0 to 3 over 1 sequences"):
        short_conv(x, weight, state, torch.tensor([0, 4]))
