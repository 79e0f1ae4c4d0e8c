"""Losses against their hand-worked examples, slow loops in Python floats, and their laws.

Not covered here: that segments change nothing (test_sweeps_exactness.py).
"""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from segue.learner.loss import cross_entropy_loss, masked_ratio_loss

WINDOW = {"ratio_low": 0.7, "ratio_high": 1.4}


def loss_and_gradient(policy, behaviour, advantage, weight, tau):
    leaf = torch.tensor(policy, dtype=torch.float64, requires_grad=True)
    rest = (torch.tensor(values, dtype=torch.float64) for values in (behaviour, advantage, weight))
    loss = masked_ratio_loss(leaf, *rest, tau=tau, **WINDOW)
    loss.backward()
    return loss.item(), leaf.grad.tolist()


def by_hand(policy, behaviour, advantage, weight, tau):
    """Token by token, the gradient in closed form instead of by autograd."""
    loss, gradient = 0.0, []
    for p, b, a, w in zip(policy, behaviour, advantage, weight, strict=True):
        ratio, log_ratio = math.exp(p - b), p - b
        inside = math.log(0.7) <= log_ratio <= math.log(1.4)
        loss += w * (tau * log_ratio**2 - (ratio * a if inside else 0.0))
        gradient.append(w * (2 * tau * log_ratio - (ratio * a if inside else 0.0)))
    return loss, gradient


def test_masked_ratio_loss_equals_its_hand_worked_example():
    policy, behaviour = [math.log(0.6), math.log(0.8)], [math.log(0.5), math.log(0.5)]
    loss, gradient = loss_and_gradient(policy, behaviour, [1.0, -1.0], [0.5, 0.5], tau=0.1)
    # log 1.2 = 0.182322, log 1.6 = 0.470004; squares 0.033241 and 0.220903
    assert loss == pytest.approx((0.1 * 0.033241 - 1.2 + 0.1 * 0.220903) / 2, abs=1e-6)
    assert loss == pytest.approx(-0.5873, abs=5e-5)
    assert gradient == pytest.approx([(0.2 * 0.182322 - 1.2) / 2, 0.2 * 0.470004 / 2], abs=1e-6)
    assert gradient == pytest.approx([-0.5818, 0.0470], abs=5e-5)


logprobs = st.floats(-8.0, 0.0)
tokens = st.lists(st.tuples(logprobs, logprobs, st.floats(-2.0, 2.0), st.floats(0.0, 1.0)), min_size=1, max_size=20)


@given(tokens, st.floats(0.0, 0.1))
def test_masked_ratio_loss_equals_a_loop_with_the_gradient_in_closed_form(tokens, tau):
    columns = [list(column) for column in zip(*tokens, strict=True)]
    loss, gradient = loss_and_gradient(*columns, tau)
    expected_loss, expected_gradient = by_hand(*columns, tau)
    assert loss == pytest.approx(expected_loss, rel=1e-9, abs=1e-12)
    assert gradient == pytest.approx(expected_gradient, rel=1e-9, abs=1e-12)


@given(tokens, tokens)
def test_the_loss_of_two_sets_of_tokens_is_the_sum_of_their_losses(first, second):
    def loss(tokens):
        return loss_and_gradient(*(list(column) for column in zip(*tokens, strict=True)), 0.01)[0]

    assert loss(first + second) == pytest.approx(loss(first) + loss(second), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize(("ratio", "is_inside"), [(0.69, False), (0.71, True), (1.39, True), (1.41, False)])
def test_the_window_masks_by_the_ratio_alone(advantage, ratio, is_inside):
    _, gradient = loss_and_gradient([math.log(ratio)], [0.0], [advantage], [1.0], tau=0.0)
    assert gradient == pytest.approx([-ratio * advantage if is_inside else 0.0])


def test_a_drifted_token_is_pulled_back_and_overflows_nothing():
    # a log-ratio of 500 would overflow the exponential in any dtype that rollout or learner uses
    leaf = torch.tensor([500.0, -500.0], requires_grad=True)
    one = torch.ones(2)
    masked_ratio_loss(leaf, torch.zeros(2), one, one, tau=0.01, **WINDOW).backward()
    # 2 tau r
    assert leaf.grad.tolist() == pytest.approx([10.0, -10.0])


def test_cross_entropy_equals_its_hand_worked_example():
    leaf = torch.tensor([0.5, 0.125], dtype=torch.float64).log().requires_grad_()
    loss = cross_entropy_loss(leaf, torch.tensor([0.5, 0.5], dtype=torch.float64))
    loss.backward()
    assert loss.item() == pytest.approx(2 * math.log(2))
    assert leaf.grad.tolist() == [-0.5, -0.5]
