"""Advantages and token weights against hand-worked examples and loops in exact fractions."""

import statistics
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segue.conf.schema import AdvantageKind, NormalisationKind
from segue.learner.advantage import group_advantages
from segue.learner.normalisation import token_weights


def test_advantages_equal_the_hand_worked_example():
    rewards, is_scored = [1.0, 0.0, 0.0, 5.0], [True, True, True, False]
    mean = group_advantages(rewards, is_scored, AdvantageKind.group_mean, 1e-6)
    grpo = group_advantages(rewards, is_scored, AdvantageKind.grpo, 1e-6)
    assert mean.tolist() == pytest.approx([2 / 3, -1 / 3, -1 / 3, 0.0])
    # deviation of (1, 0, 0): sqrt((4 + 1 + 1) / 27) = sqrt(2) / 3, so 2/3 becomes sqrt(2)
    assert grpo.tolist() == pytest.approx([2**0.5, -(2**0.5) / 2, -(2**0.5) / 2, 0.0], rel=1e-5)


groups = st.lists(st.tuples(st.integers(-20, 20), st.booleans()), min_size=1, max_size=12)


@given(groups, st.sampled_from(AdvantageKind))
def test_advantages_equal_a_loop_in_exact_fractions(group, kind):
    rewards, is_scored = [r / 10 for r, _ in group], [scored for _, scored in group]
    advantages = group_advantages(rewards, is_scored, kind, 1e-6).tolist()
    scored = [Fraction(r, 10) for r, is_it in group if is_it]
    for value, (reward, is_it) in zip(advantages, group, strict=True):
        if not is_it or len(set(scored)) < 2:
            # exactly: such a trajectory is not run at all
            assert value == 0.0
            continue
        expected = float(Fraction(reward, 10) - sum(scored) / len(scored))
        if kind is AdvantageKind.grpo:
            expected /= statistics.pstdev(map(float, scored)) + 1e-6
        assert value == pytest.approx(expected, rel=1e-6, abs=1e-9)


@given(st.floats(-1e3, 1e3), st.integers(1, 9), st.sampled_from(AdvantageKind))
def test_equal_rewards_and_singletons_give_exactly_zero(reward, count, kind):
    assert group_advantages([reward] * count, [True] * count, kind, 1e-6).tolist() == [0.0] * count


@given(groups, st.floats(-10.0, 10.0))
def test_an_infrastructure_failure_does_not_count_as_a_reward(group, reward_of_failure):
    rewards, is_scored = [r / 10 for r, _ in group], [scored for _, scored in group]
    changed = [r if is_it else reward_of_failure for r, is_it in zip(rewards, is_scored, strict=True)]
    before = group_advantages(rewards, is_scored, AdvantageKind.group_mean, 1e-6)
    assert group_advantages(changed, is_scored, AdvantageKind.group_mean, 1e-6).tolist() == before.tolist()


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
