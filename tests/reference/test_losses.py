"""Losses against their hand-worked examples, plain formulas in fp64 differentiated by autograd, and their laws.

The plain formulas are the papers' own, token by token or trajectory by trajectory, and share nothing with the code.
Not covered here: that segments change nothing (test_sweeps_exactness.py).
"""

import math
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from segue.conf.schema import NormalisationKind
from segue.learner.loss import (
    clipped_ratio_loss,
    clipped_sequence_loss,
    cross_entropy_loss,
    masked_ratio_loss,
    value_loss,
    weighted_logprob_loss,
)
from segue.learner.normalisation import token_weights

WINDOW = {"ratio_low": 0.7, "ratio_high": 1.4}


def plain_masked_ratio(policy, behaviour, advantage, weight, trajectory):
    """Kimi K2.5, arXiv 2602.02276, eq. 1, as a loss."""
    loss = 0.0
    for p, b, a, w in zip(policy, behaviour, advantage, weight, strict=True):
        is_inside = 0.7 <= (p - b).exp().item() <= 1.4
        loss = loss + w * (0.05 * (p - b) ** 2 - ((p - b).exp() * a if is_inside else 0.0))
    return loss


def plain_ppo(policy, behaviour, advantage, weight, trajectory, dual_clip=None):
    """PPO, arXiv 1707.06347, eq. 7, with the bounds of DAPO and, where asked for, the third of dual-clip PPO."""
    loss = 0.0
    for p, b, a, w in zip(policy, behaviour, advantage, weight, strict=True):
        ratio = (p - b).exp()
        objective = torch.minimum(ratio * a, ratio.clip(0.8, 1.28) * a)
        if dual_clip is not None and a < 0:
            objective = torch.maximum(objective, dual_clip * a)
        loss = loss - w * objective
    return loss


def plain_cispo(policy, behaviour, advantage, weight, trajectory, low=0.5, high=1.2):
    """MiniMax-M1, arXiv 2506.13585, eq. 4 and 5."""
    loss = 0.0
    for p, b, a, w in zip(policy, behaviour, advantage, weight, strict=True):
        importance = min(max(math.exp(p.item() - b.item()), low), high)
        loss = loss - w * importance * a * p
    return loss


def plain_gspo(policy, behaviour, advantage, weight, trajectory):
    """GSPO, arXiv 2507.18071, eq. 5 and 7: the root of a product of ratios, one trajectory after another."""
    loss = 0.0
    for number in sorted(set(trajectory.tolist())):
        own = [i for i, n in enumerate(trajectory.tolist()) if n == number]
        sequence = math.prod((policy[i] - behaviour[i]).exp() for i in own) ** (1 / len(own))
        a, share = advantage[own[0]], sum(weight[i] for i in own)
        loss = loss - share * torch.minimum(sequence * a, sequence.clip(0.95, 1.1) * a)
    return loss


def sequence_loss(policy, behaviour, advantage, weight, trajectory):
    return clipped_sequence_loss(policy, behaviour, advantage, weight, trajectory, clip_low=0.05, clip_high=0.1)


def by_tokens(loss, **settings):
    """A loss of tokens, called as one of trajectories."""
    return lambda policy, behaviour, advantage, weight, trajectory: loss(
        policy, behaviour, advantage, weight, **settings
    )


# what is tested, and the plain formula with the same settings
LOSSES = {
    "masked_ratio": (by_tokens(masked_ratio_loss, tau=0.05, **WINDOW), plain_masked_ratio),
    "ppo_clip": (by_tokens(clipped_ratio_loss, clip_low=0.2, clip_high=0.28, dual_clip=None), plain_ppo),
    "dual_clip": (
        by_tokens(clipped_ratio_loss, clip_low=0.2, clip_high=0.28, dual_clip=2.0),
        partial(plain_ppo, dual_clip=2.0),
    ),
    "cispo": (by_tokens(weighted_logprob_loss, ratio_low=0.5, ratio_high=1.2), plain_cispo),
    "reinforce": (by_tokens(weighted_logprob_loss, ratio_low=0.0, ratio_high=2.0), partial(plain_cispo, low=0, high=2)),
    "gspo": (sequence_loss, plain_gspo),
}
every_loss = pytest.mark.parametrize("name", LOSSES)


def log(probabilities):
    return [math.log(probability) for probability in probabilities]


def evaluate(loss, policy, behaviour, advantage, weight, trajectory=None):
    """Loss, gradient by the policy's log-probabilities, and the numbers of clipped tokens; in fp64."""
    leaf = torch.tensor(policy, dtype=torch.float64, requires_grad=True)
    rest = [torch.tensor(values, dtype=torch.float64) for values in (behaviour, advantage, weight)]
    found = loss(leaf, *rest, torch.tensor(range(len(policy)) if trajectory is None else trajectory))
    found.loss.backward()
    low, high = (torch.nonzero(mask)[:, 0].tolist() for mask in (found.is_low_J, found.is_high_J))
    return found.loss.item(), leaf.grad.tolist(), low, high


def test_masked_ratio_loss_equals_its_hand_worked_example():
    loss, gradient, low, high = evaluate(
        by_tokens(masked_ratio_loss, tau=0.1, **WINDOW), log([0.6, 0.8]), log([0.5, 0.5]), [1.0, -1.0], [0.5, 0.5]
    )
    # log 1.2 = 0.182322, log 1.6 = 0.470004; squares 0.033241 and 0.220903
    assert loss == pytest.approx((0.1 * 0.033241 - 1.2 + 0.1 * 0.220903) / 2, abs=1e-6)
    assert loss == pytest.approx(-0.5873, abs=5e-5)
    assert gradient == pytest.approx([(0.2 * 0.182322 - 1.2) / 2, 0.2 * 0.470004 / 2], abs=1e-6)
    assert gradient == pytest.approx([-0.5818, 0.0470], abs=5e-5)
    assert (low, high) == ([], [1])


@pytest.mark.parametrize(
    ("dual_clip", "expected", "third", "held_high"), [(None, 0.055, 0.35, [0]), (1.3, 0.03, 0.0, [0, 2])]
)
def test_clipped_ratio_loss_equals_its_hand_worked_example(dual_clip, expected, third, held_high):
    loss, gradient, low, high = evaluate(
        by_tokens(clipped_ratio_loss, clip_low=0.2, clip_high=0.28, dual_clip=dual_clip),
        log([0.7, 0.35, 0.7, 0.35]),
        log([0.5] * 4),
        [1.0, -1.0, -1.0, 1.0],
        [0.25] * 4,
    )
    # (-1.28 + 0.8 + 1.4 - 0.7) / 4; with the dual clip 1.3 instead of 1.4
    assert loss == pytest.approx(expected)
    assert gradient == pytest.approx([0.0, 0.0, third, -0.175])
    assert (low, high) == ([1], held_high)


@pytest.mark.parametrize(
    ("policy", "expected", "gradient"), [([0.5, 0.5], 0.0, [-0.5, 0.5]), ([0.65, 0.45], -0.15, [0.0, 0.45])]
)
def test_the_two_uses_of_a_group_equal_their_hand_worked_example(policy, expected, gradient):
    arguments = log(policy), log([0.5, 0.5]), [1.0, -1.0], [0.5, 0.5]
    loss, found, _, _ = evaluate(by_tokens(clipped_ratio_loss, clip_low=0.2, clip_high=0.2, dual_clip=None), *arguments)
    assert (loss, found) == (pytest.approx(expected, abs=1e-12), pytest.approx(gradient))
    # the ratio of the probabilities themselves, held by hand
    ratios = [probability / 0.5 for probability in policy]
    assert loss == pytest.approx((-min(ratios[0], 1.2) + max(ratios[1], 0.8)) / 2, abs=1e-12)


def test_clipped_sequence_loss_equals_its_hand_worked_example():
    loss, gradient, low, high = evaluate(
        by_tokens(clipped_sequence_loss, trajectory_J=torch.tensor([0, 0, 1]), clip_low=0.05, clip_high=0.05),
        log([0.6, 0.5, 0.6]),
        log([0.5] * 3),
        [-1.0, -1.0, 1.0],
        [0.25, 0.25, 0.5],
    )
    # √1.2 = 1.095445
    assert loss == pytest.approx((1.095445 - 1.05) / 2, abs=1e-6)
    assert loss == pytest.approx(0.0227, abs=5e-5)
    assert gradient == pytest.approx([1.095445 / 4, 1.095445 / 4, 0.0], abs=1e-6)
    assert (low, high) == ([], [2])


@pytest.mark.parametrize(("ratio_low", "second", "held_low"), [(0.5, 0.25, [1]), (0.0, 0.2, [])])
def test_weighted_logprob_loss_equals_its_hand_worked_example(ratio_low, second, held_low):
    loss, gradient, low, high = evaluate(
        by_tokens(weighted_logprob_loss, ratio_low=ratio_low, ratio_high=1.2),
        log([0.7, 0.2]),
        log([0.5, 0.5]),
        [1.0, -1.0],
        [0.5, 0.5],
    )
    # log 0.7 = -0.356675, log 0.2 = -1.609438
    assert loss == pytest.approx(-(1.2 * -0.356675 - 2 * second * -1.609438) / 2, abs=1e-6)
    assert gradient == pytest.approx([-0.6, second])
    assert (low, high) == (held_low, [0])


logprobs = st.floats(-6.0, 0.0)
# tokens (log-probability, log-ratio) of a trajectory, its advantage and the weight of each token
trajectories = st.lists(
    st.tuples(
        st.lists(st.tuples(logprobs, st.floats(-1.5, 1.5)), min_size=1, max_size=6),
        st.floats(-2.0, 2.0),
        st.floats(0.0, 1.0),
    ),
    min_size=1,
    max_size=5,
)


def columns(trajectories, first=0):
    """Policy, behaviour, advantage, weight and trajectory of each token."""
    rows = [
        (logprob, logprob - log_ratio, advantage, weight, number)
        for number, (tokens, advantage, weight) in enumerate(trajectories, start=first)
        for logprob, log_ratio in tokens
    ]
    return [list(column) for column in zip(*rows, strict=True)]


@every_loss
@given(batch=trajectories)
def test_a_loss_and_its_gradient_equal_the_plain_formula(name, batch):
    loss, plain = LOSSES[name]
    policy, *rest, trajectory = columns(batch)
    found, gradient, _, _ = evaluate(loss, policy, *rest, trajectory)
    leaf = torch.tensor(policy, dtype=torch.float64, requires_grad=True)
    tensors = [torch.tensor(values, dtype=torch.float64) for values in rest]
    expected = plain(leaf, *tensors, torch.tensor(trajectory))
    (wanted,) = torch.autograd.grad(expected, leaf)
    assert found == pytest.approx(expected.item(), rel=1e-9, abs=1e-12)
    assert gradient == pytest.approx(wanted.tolist(), rel=1e-9, abs=1e-12)


@every_loss
@given(first=trajectories, second=trajectories)
def test_the_loss_of_two_sets_of_trajectories_is_the_sum_of_their_losses(name, first, second):
    loss = LOSSES[name][0]
    apart = sum(evaluate(loss, *columns(part))[0] for part in (first, second))
    assert evaluate(loss, *columns(first + second))[0] == pytest.approx(apart, rel=1e-9, abs=1e-12)


@every_loss
@pytest.mark.parametrize("normalisation", NormalisationKind)
def test_on_policy_every_loss_has_the_gradient_of_reinforce_under_every_normalisation(name, normalisation):
    counts, advantages = [3, 1, 2], [1.5, -0.5, 0.25]
    weights = token_weights(counts, normalisation, 8).tolist()
    trajectory = [number for number, count in enumerate(counts) for _ in range(count)]
    logprob = log([0.3, 0.9, 0.01, 0.5, 1.0, 0.2])
    advantage, weight = [advantages[n] for n in trajectory], [weights[n] for n in trajectory]
    _, gradient, low, high = evaluate(LOSSES[name][0], logprob, logprob, advantage, weight, trajectory)
    assert gradient == pytest.approx([-w * a for w, a in zip(weight, advantage, strict=True)])
    assert (low, high) == ([], [])


@every_loss
def test_no_trajectory_is_no_loss(name):
    assert evaluate(LOSSES[name][0], [], [], [], [])[0] == 0.0


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize(("ratio", "side"), [(0.69, "low"), (0.71, None), (1.39, None), (1.41, "high")])
def test_the_window_masks_by_the_ratio_alone(advantage, ratio, side):
    loss = by_tokens(masked_ratio_loss, tau=0.0, **WINDOW)
    _, gradient, low, high = evaluate(loss, [math.log(ratio)], [0.0], [advantage], [1.0])
    assert gradient == pytest.approx([-ratio * advantage if side is None else 0.0])
    assert (low, high) == ([0] if side == "low" else [], [0] if side == "high" else [])


# ratio and advantage to the side on which such a token is held, with bounds 0.8, 1.28 and a dual clip of 2
DIRECTIONS = [
    (0.79, 1.0, None),
    (0.79, -1.0, "low"),
    (0.81, -1.0, None),
    (1.27, 1.0, None),
    (1.29, 1.0, "high"),
    (1.29, -1.0, None),
    (1.99, -1.0, None),
    (2.01, -1.0, "dual"),
    (2.01, 1.0, "high"),
    (2.01, 0.0, None),
    (0.5, 0.0, None),
]


@pytest.mark.parametrize("dual_clip", [None, 2.0])
@pytest.mark.parametrize(("ratio", "advantage", "side"), DIRECTIONS)
def test_the_clip_holds_what_left_the_bounds_in_the_direction_of_the_advantage(ratio, advantage, side, dual_clip):
    loss = by_tokens(clipped_ratio_loss, clip_low=0.2, clip_high=0.28, dual_clip=dual_clip)
    _, gradient, low, high = evaluate(loss, [math.log(ratio)], [0.0], [advantage], [1.0])
    is_high = side == "high" or (side == "dual" and dual_clip is not None)
    assert (low, high) == ([0] if side == "low" else [], [0] if is_high else [])
    assert gradient == pytest.approx([0.0 if low or high else -ratio * advantage])


def test_a_drifted_token_is_pulled_back_and_overflows_nothing():
    # a log-ratio of 500 would overflow the exponential in any dtype that rollout or learner uses
    leaf = torch.tensor([500.0, -500.0], requires_grad=True)
    one = torch.ones(2)
    masked_ratio_loss(leaf, torch.zeros(2), one, one, tau=0.01, **WINDOW).loss.backward()
    # 2 tau r
    assert leaf.grad.tolist() == pytest.approx([10.0, -10.0])


@pytest.mark.parametrize("name", ["dual_clip", "cispo", "reinforce", "gspo"])
@pytest.mark.parametrize(("log_ratio", "advantage"), [(500.0, 1.0), (-500.0, 1.0), (-500.0, -1.0), (500.0, 0.0)])
def test_a_held_token_overflows_nothing(name, log_ratio, advantage):
    loss, gradient, _, _ = evaluate(LOSSES[name][0], [log_ratio], [0.0], [advantage], [1.0])
    assert math.isfinite(loss)
    # at most the highest weight of these losses
    assert abs(gradient[0]) <= 2.0


def test_an_importance_weight_is_bounded_and_never_zero():
    ratios = [0.01, 0.5, 1.0, 1.2, 40.0]
    _, gradient, low, high = evaluate(LOSSES["cispo"][0], log(ratios), [0.0] * 5, [1.0] * 5, [1.0] * 5)
    assert gradient == pytest.approx([-0.5, -0.5, -1.0, -1.2, -1.2])
    assert (low, high) == ([0], [4])


def test_a_sequences_order_does_not_matter_and_its_tokens_share_one_gradient():
    policy, behaviour = log([0.3, 0.8, 0.1, 0.4]), log([0.35, 0.7, 0.12, 0.5])
    found = []
    for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
        rows = [policy[i] for i in order], [behaviour[i] for i in order]
        found.append(evaluate(sequence_loss, *rows, [1.0] * 4, [0.25] * 4, [0] * 4))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-12)
    assert found[0][1] == pytest.approx(found[1][1], rel=1e-12)
    # -s A / n, with the geometric mean of 6/7, 8/7, 5/6 and 4/5
    mean = (6 / 7 * 8 / 7 * 5 / 6 * 4 / 5) ** 0.25
    assert found[0][1] == pytest.approx([-mean / 4] * 4)


def test_one_far_token_is_clipped_alone_by_tokens_and_forgiven_by_the_sequence():
    policy, behaviour = log([0.9] + [0.5] * 99), log([0.5] * 100)
    rows = policy, behaviour, [1.0] * 100, [0.01] * 100
    assert evaluate(LOSSES["ppo_clip"][0], *rows)[3] == [0]
    # 1.8 to the power of 1/100 is 1.006
    assert evaluate(sequence_loss, *rows, [0] * 100)[3] == []


@given(batch=trajectories)
def test_a_sequence_of_one_token_is_clipped_as_a_token(batch):
    policy, behaviour, advantage, weight, _ = columns(batch)
    by_token = by_tokens(clipped_ratio_loss, clip_low=0.05, clip_high=0.1, dual_clip=None)
    one = evaluate(sequence_loss, policy, behaviour, advantage, weight)
    other = evaluate(by_token, policy, behaviour, advantage, weight)
    assert one[0] == pytest.approx(other[0], rel=1e-12, abs=1e-12)
    assert one[1] == pytest.approx(other[1], rel=1e-12, abs=1e-12)
    assert one[2:] == other[2:]


def test_cross_entropy_equals_its_hand_worked_example():
    leaf = torch.tensor([0.5, 0.125], dtype=torch.float64).log().requires_grad_()
    loss = cross_entropy_loss(leaf, torch.tensor([0.5, 0.5], dtype=torch.float64))
    loss.backward()
    assert loss.item() == pytest.approx(2 * math.log(2))
    assert leaf.grad.tolist() == [-0.5, -0.5]


def test_the_value_loss_equals_its_hand_worked_example():
    value = torch.tensor([1.0, 0.0], dtype=torch.float64, requires_grad=True)
    target, weight = torch.tensor([0.0, 0.5], dtype=torch.float64), torch.tensor([0.25, 0.5], dtype=torch.float64)
    first = torch.tensor([1.0, -0.5], dtype=torch.float64)
    free = value_loss(value, target, weight, first, clip=None)
    free.loss.backward()
    # (1 · 1/4 + 1/4 · 1/2) / 2
    assert free.loss.item() == 0.1875
    assert value.grad.tolist() == [0.25, -0.25]
    value.grad = None
    held = value_loss(value, target, weight, first, clip=0.2)
    held.loss.backward()
    # the second is taken at -0.3, 0.8 from its target: (1/4 + 0.64 / 2) / 2
    assert held.loss.item() == pytest.approx(0.285)
    assert value.grad.tolist() == [0.25, 0.0]
    assert held.is_held_P.tolist() == [False, True]


@pytest.mark.parametrize(
    ("value", "target", "is_held"),
    [
        # moved 0.3 from 0 towards the target, at most 0.2 counts
        (0.3, 1.0, True),
        (-0.3, -1.0, True),
        # not that far, and the other way: it must come back
        (0.1, 1.0, False),
        (0.3, -1.0, False),
        # past the target: farther from it than the held value
        (0.5, 0.2, False),
    ],
)
def test_a_value_is_held_where_it_went_far_enough_towards_its_target(value, target, is_held):
    value, target = torch.tensor([value], requires_grad=True), torch.tensor([target])
    found = value_loss(value, target, torch.ones(1), torch.zeros(1), clip=0.2)
    found.loss.backward()
    plain = torch.maximum((value - target) ** 2, (value.clip(-0.2, 0.2) - target) ** 2) / 2
    assert found.loss.item() == pytest.approx(plain.item())
    assert found.is_held_P.tolist() == [is_held]
    assert value.grad.tolist() == pytest.approx([0.0 if is_held else float((value - target).detach())])
