"""Which tokens are old or lost, from counts by version."""

import numpy as np

from segue.actors.lineage import Lineage, measure_staleness
from segue.rollout.trajectory import PolicyVersion


def test_the_docstring_example() -> None:
    tokens = [(PolicyVersion(0, 7), 5), (PolicyVersion(0, 4), 3)]
    age = measure_staleness(tokens, Lineage(), step=8, max_staleness=2)
    assert (age.num_fresh, age.num_old, age.mean_steps, age.max_steps) == (5, 3, 1.0, 1)


def test_tokens_of_undone_steps_are_old_at_any_bound() -> None:
    # incarnation 0 reached step 9 and was restored from step 5
    lineage = Lineage(restored_steps=(0, 5))
    tokens = [(PolicyVersion(0, 5), 1), (PolicyVersion(0, 7), 10), (PolicyVersion(1, 6), 100)]
    age = measure_staleness(tokens, lineage, step=6, max_staleness=1000)
    # (0, 5) is one step old, (1, 6) is new, (0, 7) never happened
    assert (age.num_fresh, age.num_old, age.sum_steps, age.max_steps) == (101, 10, 1, 1)
    assert [lineage.is_lost(version) for version, _ in tokens] == [False, True, False]


def test_a_second_restore_further_back_undoes_more() -> None:
    lineage = Lineage(restored_steps=(0, 5, 3))
    assert lineage.version(4) == PolicyVersion(2, 4)
    lost = {version: lineage.is_lost(PolicyVersion(*version)) for version in [(0, 3), (0, 4), (1, 5), (2, 9)]}
    assert lost == {(0, 3): False, (0, 4): True, (1, 5): True, (2, 9): False}


def test_mean_age_is_weighted_by_tokens_as_counted_one_by_one() -> None:
    generator = np.random.default_rng(0)
    steps, counts = np.arange(10), generator.integers(1, 50, 10)
    tokens = [(PolicyVersion(0, int(step)), int(count)) for step, count in zip(steps, counts, strict=True)]
    age = measure_staleness(tokens, Lineage(), step=9, max_staleness=4)
    one_by_one = np.repeat(9 - steps, counts)
    fresh = one_by_one[one_by_one <= 4]
    assert (age.num_fresh, age.num_old, age.max_steps) == (len(fresh), len(one_by_one) - len(fresh), 4)
    assert age.mean_steps == fresh.mean()


def test_no_tokens_have_no_age() -> None:
    age = measure_staleness([], Lineage(), step=3, max_staleness=0)
    assert (age.num_fresh, age.num_old, age.mean_steps, age.max_steps) == (0, 0, 0.0, 0)
