"""Which tokens are young enough to be trained, over restores and for sessions that span versions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from segue.learner.staleness import is_fresh
from segue.rollout.trajectory import PolicyVersion


def fresh(versions, now, restored_steps, bound):
    incarnations, steps = (np.array(column, np.int32) for column in zip(*versions, strict=True))
    return is_fresh(incarnations, steps, PolicyVersion(*now), restored_steps, bound).tolist()


def test_a_session_that_spans_more_versions_than_the_bound_keeps_only_its_young_tokens():
    versions = [(0, 3), (0, 3), (0, 4), (0, 5), (0, 6)]
    assert fresh(versions, (0, 6), [0], 1) == [False, False, False, True, True]
    assert fresh(versions, (0, 6), [0], 0) == [False, False, False, False, True]


def test_tokens_of_lost_steps_are_older_than_any_bound():
    # restored at step 3: (0, 4) was undone, (0, 3) is the restored version itself
    versions = [(0, 2), (0, 3), (0, 4), (1, 3), (1, 4)]
    assert fresh(versions, (1, 4), [0, 3], 1) == [False, True, False, True, True]
    assert fresh(versions, (1, 4), [0, 3], 100) == [True, True, False, True, True]
    assert fresh(versions, (1, 3), [0, 3], 0) == [False, True, False, True, False]


def test_a_later_restore_to_an_earlier_step_loses_both_lines():
    # incarnation 2 went back to step 2, before incarnation 1 began at 5
    versions = [(0, 2), (0, 3), (0, 5), (1, 5), (1, 7), (2, 2), (2, 3)]
    assert fresh(versions, (2, 3), [0, 5, 2], 100) == [True, False, False, False, False, True, True]


def test_tokens_of_versions_yet_to_come_are_not_trained():
    assert fresh([(0, 7), (1, 0)], (0, 6), [0], 100) == [False, False]


@given(st.lists(st.integers(0, 30), min_size=1), st.integers(0, 30), st.integers(0, 8))
def test_without_restores_fresh_means_within_the_bound(steps, now, bound):
    expected = [0 <= now - step <= bound for step in steps]
    assert fresh([(0, step) for step in steps], (0, now), [0], bound) == expected


def test_missing_restores_are_refused():
    with pytest.raises(ValueError, match="restored_steps must have 2 entries, got 1"):
        fresh([(0, 0)], (1, 0), [0], 0)
