"""Advantages and targets of a critic against hand-worked examples, sums in exact fractions, and their laws."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from segue.learner.critic import whitened
from segue.learner.gae import generalised_advantages

unit = st.sampled_from([Fraction(0), Fraction(1, 2), Fraction(9, 10), Fraction(1)])
numbers = st.integers(-20, 20).map(lambda n: Fraction(n, 10))
# of each decision what it earned, and what was expected before it
courses = st.lists(st.tuples(numbers, numbers), min_size=1, max_size=6)


@pytest.mark.parametrize(
    ("end_value", "expected"),
    [
        # surprises -3/8 and 3/4; -3/8 + 1/4 · 3/4
        (0.0, [-3 / 16, 3 / 4]),
        # surprises -3/8 and 1 + 1/2 - 1/4 = 5/4; -3/8 + 1/4 · 5/4
        (1.0, [-1 / 16, 5 / 4]),
    ],
)
def test_generalised_advantages_equal_the_hand_worked_examples(end_value, expected):
    found = generalised_advantages((0.0, 1.0), (0.5, 0.25), end_value, discount=0.5, decay=0.5)
    assert found.tolist() == expected


@given(courses, numbers, unit, unit)
def test_generalised_advantages_equal_the_mean_of_lookaheads(course, end_value, discount, decay):
    # eq. 16's first form: of all lookaheads by n decisions, weighted (1 - λ) λ^(n - 1), the last with what is left
    rewards, values = [r for r, _ in course], [*(v for _, v in course), end_value]
    found = generalised_advantages(
        [float(r) for r in rewards],
        [float(v) for v in values[:-1]],
        float(end_value),
        discount=float(discount),
        decay=float(decay),
    )
    num = len(rewards)
    for k in range(num):
        expected = Fraction(0)
        for n in range(1, num - k + 1):
            seen = sum(discount**i * rewards[k + i] for i in range(n)) + discount**n * values[k + n]
            share = decay ** (n - 1) * (1 if n == num - k else 1 - decay)
            expected += share * (seen - values[k])
        assert found[k] == pytest.approx(float(expected), abs=1e-9)


@given(courses, unit)
def test_what_a_critic_should_have_said_is_the_return_when_only_rewards_are_trusted(course, discount):
    rewards, values = [float(r) for r, _ in course], np.array([float(v) for _, v in course])
    targets = values + generalised_advantages(rewards, values.tolist(), 0.0, discount=float(discount), decay=1.0)
    returns = [
        sum(float(discount) ** (j - k) * rewards[j] for j in range(k, len(rewards))) for k in range(len(rewards))
    ]
    assert targets.tolist() == pytest.approx(returns, abs=1e-9)


def test_a_critic_that_knows_all_leaves_no_advantage():
    returns = [3.0, 1.0, 1.0]
    # rewards (2, 0, 1) as expected
    for decay in (0.0, 0.5, 1.0):
        assert generalised_advantages((2.0, 0.0, 1.0), returns, 0.0, discount=1.0, decay=decay).tolist() == [0.0] * 3


@pytest.mark.parametrize("num", [7, 8, 9, 1000])
@pytest.mark.parametrize(("discount", "decay"), [(1.0, 1.0), (0.99, 0.95), (0.5, 0.5), (1.0, 0.0)])
def test_generalised_advantages_of_long_courses_follow_their_recurrence(num, discount, decay):
    rewards, values = np.random.default_rng(num).normal(size=(2, num))
    found = generalised_advantages(rewards, values, 0.3, discount=discount, decay=decay)
    ahead, expected = [*values[1:], 0.3], np.zeros(num + 1)
    for k in reversed(range(num)):
        expected[k] = rewards[k] + discount * ahead[k] - values[k] + discount * decay * expected[k + 1]
    np.testing.assert_allclose(found, expected[:-1], rtol=0, atol=1e-10)


def test_whitened_advantages_equal_the_hand_worked_example():
    advantages, weights = torch.tensor([3.0, 1.0, -1.0]).double(), torch.tensor([0.25, 0.25, 0.5]).double()
    found = whitened(advantages, weights, 1e-6, lambda sums: sums)
    # mean (3 + 1) / 4 - 1/2 = 1/2; variance (25/4 + 1/4) / 4 + (9/4) / 2 = 11/4
    assert found.tolist() == pytest.approx([2.5 / 2.75**0.5, 0.5 / 2.75**0.5, -1.5 / 2.75**0.5], rel=1e-5)
    assert found.tolist() == pytest.approx([1.508, 0.302, -0.905], abs=5e-4)


@given(st.lists(st.tuples(st.integers(-30, 30), st.integers(1, 5)), min_size=1, max_size=12), st.integers(0, 12))
def test_whitened_advantages_weigh_nothing_and_one_and_know_of_other_ranks(pairs, border):
    advantages = torch.tensor([a / 10 for a, _ in pairs]).double()
    weights = torch.tensor([w / 100 for _, w in pairs]).double()
    whole = whitened(advantages, weights, 1e-9, lambda sums: sums)
    if len({a for a, _ in pairs}) == 1:
        assert float(whole.abs().max()) < 1e-3
        return
    assert float((weights * whole).sum()) == pytest.approx(0.0, abs=1e-6)
    assert float((weights * whole.square()).sum() / weights.sum()) == pytest.approx(1.0, rel=1e-5)
    # two ranks hold a part each: what one is told of is the sum of both
    told = []
    for part in (slice(0, border), slice(border, None)):
        whitened(advantages[part], weights[part], 1e-9, lambda sums: (told.append(sums), sums)[1])
    first = whitened(advantages[:border], weights[:border], 1e-9, lambda sums: told[0] + told[1])
    assert first.tolist() == pytest.approx(whole[:border].tolist(), rel=1e-6, abs=1e-9)
