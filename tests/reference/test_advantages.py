"""Advantages and token weights against hand-worked examples, loops in exact fractions, and their laws."""

import statistics
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from segue.conf.schema import AdvantageConfig, AdvantageKind, NormalisationKind
from segue.learner.advantage import (
    group_advantages,
    over_step_deviation,
    returns_to_go,
    step_advantages,
    turn_advantages,
)
from segue.learner.normalisation import token_weights
from segue.rollout.stored_group import TrajectorySummary
from segue.rollout.trajectory import Outcome, Source

# those that compare the trajectories of one group and look no further
# a critic's are made of its values
COMPARING = [kind for kind in AdvantageKind if not AdvantageConfig(kind=kind).has_critic]
BY_GROUP = (AdvantageKind.group_mean, AdvantageKind.grpo, AdvantageKind.rloo)


def make_summary(turn_rewards, outcome_reward=0.0, outcome=Outcome.success):
    return TrajectorySummary(
        num_tokens=1,
        trainable_by_version=(),
        turn_rewards=tuple(turn_rewards),
        outcome_reward=outcome_reward,
        outcome=outcome,
        source=Source.policy,
    )


def make_step(groups):
    """Groups of (turn rewards in tenths, whether scored)."""
    return [
        [
            make_summary([r / 10 for r in turns], outcome=Outcome.success if scored else Outcome.engine_error)
            for turns, scored in group
        ]
        for group in groups
    ]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (AdvantageKind.group_mean, [2 / 3, -1 / 3, -1 / 3, 0.0]),
        # deviation of (1, 0, 0): sqrt((4 + 1 + 1) / 27) = sqrt(2) / 3, so 2/3 becomes sqrt(2)
        (AdvantageKind.grpo, [2**0.5, -(2**0.5) / 2, -(2**0.5) / 2, 0.0]),
        # the others earned 0, 1/2, 1/2 on average
        (AdvantageKind.rloo, [1.0, -0.5, -0.5, 0.0]),
    ],
)
def test_advantages_of_a_group_equal_the_hand_worked_example(kind, expected):
    rewards, is_scored = [1.0, 0.0, 0.0, 5.0], [True, True, True, False]
    assert group_advantages(rewards, is_scored, kind, 1e-6).tolist() == pytest.approx(expected, rel=1e-5)


def test_advantages_over_a_step_equal_the_hand_worked_example():
    groups = [np.array([2 / 3, -1 / 3, -1 / 3, 0.0]), np.zeros(2)]
    first, second = over_step_deviation(groups, [[True, True, True, False], [True, True]], 1e-6)
    # five scored: sqrt((4 + 1 + 1) / 9 / 5) = 0.365148
    assert first.tolist() == pytest.approx([2 / 3 / 0.365148, -1 / 3 / 0.365148, -1 / 3 / 0.365148, 0.0], rel=1e-5)
    assert first.tolist() == pytest.approx([1.826, -0.913, -0.913, 0.0], abs=5e-4)
    assert second.tolist() == [0.0, 0.0]


def test_turn_returns_equal_the_hand_worked_examples():
    returns = [returns_to_go(*rewards, 0.5) for rewards in (((0.0, 1.0), 1.0), ((1.0,), 0.0), ((0.0, 0.0), 0.0))]
    assert [values.tolist() for values in returns] == [[1.0, 2.0], [1.0], [0.0, 0.0]]
    advantages = turn_advantages(returns, [True] * 3)
    # means 2/3 of (1, 1, 0) and 1 of (2, 0)
    expected = [[1 / 3, 1.0], [1 / 3], [-2 / 3, -1.0]]
    assert [values.tolist() for values in advantages] == [pytest.approx(values) for values in expected]


groups = st.lists(st.tuples(st.integers(-20, 20), st.booleans()), min_size=1, max_size=12)
# of one to three turns
turn_groups = st.lists(
    st.tuples(st.lists(st.integers(-20, 20), min_size=1, max_size=3), st.booleans()), min_size=1, max_size=8
)
steps = st.lists(turn_groups, min_size=1, max_size=4)


@given(groups, st.sampled_from(BY_GROUP))
def test_advantages_equal_a_loop_in_exact_fractions(group, kind):
    rewards, is_scored = [r / 10 for r, _ in group], [scored for _, scored in group]
    advantages = group_advantages(rewards, is_scored, kind, 1e-6).tolist()
    scored = [Fraction(r, 10) for r, is_it in group if is_it]
    for value, (reward, is_it) in zip(advantages, group, strict=True):
        if not is_it or len(set(scored)) < 2:
            # exactly: such a trajectory is not run at all
            assert value == 0.0
            continue
        own, rest = Fraction(reward, 10), len(scored) - 1
        # of the others, without the factor that the code takes it from
        baseline = (sum(scored) - own) / rest if kind is AdvantageKind.rloo else sum(scored) / len(scored)
        expected = float(own - baseline)
        if kind is AdvantageKind.grpo:
            expected /= statistics.pstdev(map(float, scored)) + 1e-6
        assert value == pytest.approx(expected, rel=1e-6, abs=1e-9)


@given(steps)
def test_reinforce_pp_equals_a_loop_over_the_step(groups):
    config = AdvantageConfig(kind=AdvantageKind.reinforce_pp)
    found = step_advantages(make_step(groups), config)
    centred = []
    for group in groups:
        scored = [Fraction(sum(turns), 10) for turns, is_it in group if is_it]
        mean = sum(scored) / len(scored) if scored else 0
        centred.append([float(Fraction(sum(turns), 10) - mean) if is_it else None for turns, is_it in group])
    known = [value for group in centred for value in group if value is not None]
    deviation = statistics.pstdev(known) if known else 0.0
    for group, wanted in zip(found, centred, strict=True):
        for turns, value in zip(group, wanted, strict=True):
            expected = 0.0 if value is None else value / (deviation + 1e-6)
            assert turns.tolist() == pytest.approx([expected] * len(turns), rel=1e-5, abs=1e-6)


@given(turn_groups, st.sampled_from([0.0, 0.5, 0.9, 1.0]))
def test_turn_returns_equal_double_sums(group, discount):
    config = AdvantageConfig(kind=AdvantageKind.turn_returns, discount=discount)
    (found,) = step_advantages(make_step([group]), config)
    # the definition: a sum over later turns for each turn, then a mean over those who reached it
    returns = [
        [sum(discount ** (j - k) * turns[j] / 10 for j in range(k, len(turns))) for k in range(len(turns))]
        for turns, _ in group
    ]
    for (_, is_it), own, values in zip(group, returns, found, strict=True):
        for k, value in enumerate(values.tolist()):
            reached = [r[k] for r, (_, scored) in zip(returns, group, strict=True) if scored and len(r) > k]
            expected = own[k] - statistics.fmean(reached) if is_it and len(reached) > 1 else 0.0
            assert value == pytest.approx(expected, abs=1e-6)


@given(groups)
def test_leave_one_out_advantages_sum_to_zero_over_a_group(group):
    rewards, is_scored = [r / 10 for r, _ in group], [scored for _, scored in group]
    assert group_advantages(rewards, is_scored, AdvantageKind.rloo, 1e-6).sum() == pytest.approx(0.0, abs=1e-9)


@given(steps)
def test_over_a_step_reinforce_pp_has_mean_zero_and_deviation_one(groups):
    found = step_advantages(make_step(groups), AdvantageConfig(kind=AdvantageKind.reinforce_pp))
    values = [
        float(turns[0])
        for group, given in zip(found, groups, strict=True)
        for turns, (_, is_it) in zip(group, given, strict=True)
        if is_it
    ]
    assert sum(values) == pytest.approx(0.0, abs=1e-5)
    if any(values):
        assert statistics.pstdev(values) == pytest.approx(1.0, rel=1e-4)


@given(groups, st.floats(0.1, 10.0), st.sampled_from([AdvantageKind.grpo, AdvantageKind.reinforce_pp]))
def test_where_a_deviation_divides_the_rewards_unit_does_not_matter(group, unit, kind):
    def advantages(factor):
        step = [
            [
                make_summary([factor * r / 10], outcome=Outcome.success if scored else Outcome.engine_error)
                for r, scored in group
            ]
        ]
        (found,) = step_advantages(step, AdvantageConfig(kind=kind, std_epsilon=1e-12))
        return [float(turns[0]) for turns in found]

    assert advantages(unit) == pytest.approx(advantages(1.0), rel=1e-4, abs=1e-5)


@given(turn_groups)
def test_whole_trajectories_share_one_advantage_over_their_turns(group):
    step = make_step([group])
    rewards = np.array([member.reward for member in step[0]], np.float32).tolist()
    for kind in BY_GROUP:
        (found,) = step_advantages(step, AdvantageConfig(kind=kind))
        expected = group_advantages(rewards, [scored for _, scored in group], kind, 1e-6)
        assert [turns.tolist() for turns in found] == [
            [value] * len(turns) for value, (turns, _) in zip(expected.tolist(), group, strict=True)
        ]


@given(st.lists(st.integers(-20, 20), min_size=2, max_size=8))
def test_returns_of_an_only_turn_are_the_group_mean(rewards):
    step = make_step([[([reward], True) for reward in rewards]])
    by_turn, by_group = (
        step_advantages(step, AdvantageConfig(kind=kind))
        for kind in (AdvantageKind.turn_returns, AdvantageKind.group_mean)
    )
    assert [turns.tolist() for turns in by_turn[0]] == [turns.tolist() for turns in by_group[0]]


def test_the_outcome_is_earned_by_the_last_turn():
    config = AdvantageConfig(kind=AdvantageKind.turn_returns, discount=0.0)
    (found,) = step_advantages([[make_summary([0.0, 0.0], 1.0), make_summary([0.0, 0.0], 0.0)]], config)
    assert [turns.tolist() for turns in found] == [[0.0, 0.5], [0.0, -0.5]]


def test_who_alone_went_on_has_nobody_to_be_compared_with():
    config = AdvantageConfig(kind=AdvantageKind.turn_returns)
    (found,) = step_advantages([[make_summary([0.0, 1.0]), make_summary([0.0])]], config)
    assert [turns.tolist() for turns in found] == [[0.5, 0.0], [-0.5]]


def test_the_same_terms_in_another_order_are_the_same_reward():
    # 0.1 + 0.2 + 0.3 is not 0.3 + 0.2 + 0.1 in doubles
    step = [[make_summary([0.1, 0.2], 0.3), make_summary([0.3, 0.2], 0.1)]]
    assert step[0][0].reward != step[0][1].reward
    for kind in (*BY_GROUP, AdvantageKind.reinforce_pp):
        assert not any(turns.any() for turns in step_advantages(step, AdvantageConfig(kind=kind))[0])


@given(st.floats(-1e3, 1e3), st.integers(1, 9), st.sampled_from(COMPARING))
def test_equal_rewards_and_singletons_give_exactly_zero(reward, count, kind):
    # beside a group that has advantages, so that a deviation over the step is there
    step = [[make_summary([0.1, reward])] * count, [make_summary([0.0]), make_summary([1.0])]]
    first, second = step_advantages(step, AdvantageConfig(kind=kind, discount=0.7))
    assert [turns.tolist() for turns in first] == [[0.0, 0.0]] * count
    assert all(turns.any() for turns in second)


@given(steps, st.floats(-10.0, 10.0), st.sampled_from(AdvantageKind))
def test_an_infrastructure_failure_does_not_count_as_a_reward(groups, reward_of_failure, kind):
    changed = [[(turns if is_it else [reward_of_failure] * 3, is_it) for turns, is_it in group] for group in groups]
    before, after = (step_advantages(make_step(step), AdvantageConfig(kind=kind)) for step in (groups, changed))
    for old, new, group in zip(before, after, groups, strict=True):
        for turns, again, (_, is_it) in zip(old, new, group, strict=True):
            assert turns.tolist() == again.tolist() if is_it else not again.any()


def test_weights_equal_the_hand_worked_example():
    counts = [3, 1, 0]
    assert token_weights(counts, NormalisationKind.token_mean, 8).tolist() == [1 / 4, 1 / 4, 0.0]
    assert token_weights(counts, NormalisationKind.sequence_mean, 8).tolist() == pytest.approx([1 / 6, 1 / 2, 0.0])
    assert token_weights(counts, NormalisationKind.constant, 8).tolist() == [1 / 8, 1 / 8, 0.0]


@given(st.lists(st.integers(0, 500), min_size=1, max_size=20))
def test_weights_of_all_tokens_of_a_step_sum_to_one_or_to_its_share(counts):
    def total(kind):
        return sum(w * n for w, n in zip(token_weights(counts, kind, 100), counts, strict=True))

    whole = 1.0 if sum(counts) else 0.0
    assert total(NormalisationKind.token_mean) == pytest.approx(whole)
    assert total(NormalisationKind.sequence_mean) == pytest.approx(whole)
    assert total(NormalisationKind.constant) == pytest.approx(sum(counts) / 100)


@given(st.lists(st.integers(1, 500), min_size=1, max_size=20))
def test_sequence_mean_gives_every_trajectory_the_same_share(counts):
    weights = token_weights(counts, NormalisationKind.sequence_mean, 1)
    assert [w * n for w, n in zip(weights, counts, strict=True)] == pytest.approx([1 / len(counts)] * len(counts))
