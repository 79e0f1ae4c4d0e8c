"""Trajectory and group: derived values and what `validate` refuses. Files: test_trajectory_file.py."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from segue.rollout.trajectory import (
    Group,
    Outcome,
    PolicyVersion,
    Source,
    Trajectory,
    Turn,
    validate,
    validate_group,
)


def make_trajectory(**changes: Any) -> Trajectory:
    """The docstring's example: prompt of three, a turn of two, an observation of one, a turn of one."""
    members: dict[str, Any] = {
        "token_ids": np.array([5, 6, 7, 1, 2, 8, 3], np.int32),
        "trainable": np.array([0, 0, 0, 1, 1, 0, 1], np.bool_),
        "source": Source.policy,
        "behaviour_logprob": np.array([0, 0, 0, -0.2, -0.1, 0, -0.4], np.float32),
        "policy_incarnation": np.array([0, 0, 0, 1, 1, 0, 1], np.int32),
        "policy_step": np.array([0, 0, 0, 7, 7, 0, 8], np.int32),
        "turns": (
            Turn(start=3, end=5, temperature=0.5, reward_terms={"process": 0.25, "efficiency": -0.5}, num_calls=1),
            Turn(start=6, end=7, temperature=2.0, reward_terms={}, num_calls=0),
        ),
        "outcome_terms": {"success": 1.0},
        "outcome": Outcome.success,
        "task_id": "task",
        "group_id": "group",
        "index": 0,
        "attempt": 0,
        "seed": 3,
    }
    return Trajectory(**(members | changes))


def make_group(*trajectories: Trajectory, **changes: Any) -> Group:
    members: dict[str, Any] = {
        "task_id": "task",
        "group_id": "group",
        "trajectories": trajectories,
        "first_version": PolicyVersion(1, 7),
        "last_version": PolicyVersion(1, 8),
        "made_by": "rollout_0",
    }
    return Group(**(members | changes))


def test_versions_are_ordered_by_incarnation_then_step() -> None:
    versions = [PolicyVersion(1, 2), PolicyVersion(0, 9), PolicyVersion(1, 0)]
    assert sorted(versions) == [PolicyVersion(0, 9), PolicyVersion(1, 0), PolicyVersion(1, 2)]


def test_only_failures_without_the_policys_part_are_infrastructure() -> None:
    infrastructure = {outcome.name for outcome in Outcome if outcome.is_infrastructure}
    assert infrastructure == {"sandbox_error", "infrastructure_error", "engine_error"}


def test_reward_is_the_sum_of_every_term() -> None:
    # 0.25 - 0.5 of the first turn, nothing of the second, 1 of the outcome; exact in binary
    assert make_trajectory().reward == 0.75
    two = make_group(make_trajectory(), make_trajectory(outcome_terms={}))
    assert two.rewards.tolist() == [0.75, -0.25]


def test_temperature_is_the_turns_at_its_tokens_and_one_elsewhere() -> None:
    assert make_trajectory().temperature.tolist() == [1, 1, 1, 0.5, 0.5, 1, 2]


def test_counts_of_tokens() -> None:
    trajectory = make_trajectory()
    assert (trajectory.num_tokens, trajectory.num_trainable) == (7, 3)


def test_a_good_trajectory_is_accepted() -> None:
    validate(make_trajectory())
    validate(make_trajectory(expert_ids=np.zeros((7, 3, 4), np.uint16)))
    zeros = np.zeros(7, np.int32)
    validate(
        make_trajectory(
            source=Source.demonstrator,
            behaviour_logprob=np.zeros(7, np.float32),
            policy_incarnation=zeros,
            policy_step=zeros,
        )
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"token_ids": np.zeros(7, np.int64)}, r"token_ids must be int32 \[7\], got int64"),
        ({"token_ids": np.full(7, -1, np.int32)}, "token_ids must be at least 0, got -1"),
        ({"trainable": np.zeros(6, np.bool_)}, r"trainable must be bool \[7\], got bool \[6\]"),
        ({"trainable": np.ones(7, np.bool_)}, "outside the turns, got True at index 0"),
        ({"behaviour_logprob": np.full(7, -1, np.float32)}, "behaviour_logprob must be 0 where no policy sampled"),
        ({"behaviour_logprob": np.array([0, 0, 0, np.nan, 0, 0, 0], np.float32)}, "must be finite"),
        ({"policy_step": np.ones(7, np.int32)}, "policy_step must be 0 where no policy sampled"),
        ({"policy_incarnation": np.zeros(7, np.uint32)}, "policy_incarnation must be int32"),
        ({"expert_ids": np.zeros((6, 3, 4), np.uint16)}, r"expert_ids must be uint16 \[7, 3, 4\], got uint16 \[6"),
        ({"expert_ids": np.zeros((7, 12), np.uint16)}, "expert_ids must have three axes"),
        ({"expert_ids": np.zeros((7, 3, 4), np.int16)}, "got int16"),
        ({"source": Source.demonstrator}, "behaviour_logprob must be 0"),
        ({"outcome_terms": {"success": float("inf")}}, "reward term 'success' must be finite, got inf"),
        # each is finite; the sum is not, or not as float32
        ({"outcome_terms": {"a": 1e308, "b": 1e308}}, r"sum of the reward terms must be at most 3.403e\+38, got inf"),
        ({"outcome_terms": {"a": -1e39}}, r"sum of the reward terms must be at most 3.403e\+38, got -1e\+39"),
    ],
)
def test_a_broken_field_is_named(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        validate(make_trajectory(**changes))


def test_an_empty_stream_is_refused() -> None:
    empty = {
        "token_ids": np.zeros(0, np.int32),
        "trainable": np.zeros(0, np.bool_),
        "behaviour_logprob": np.zeros(0, np.float32),
        "policy_incarnation": np.zeros(0, np.int32),
        "policy_step": np.zeros(0, np.int32),
        "turns": (),
    }
    with pytest.raises(ValueError, match="token_ids must not be empty"):
        validate(make_trajectory(**empty))


@pytest.mark.parametrize(
    ("number", "changes", "reason"),
    [
        (0, {"start": 0}, r"turns\[0\] must lie in \[1, 7\], got \[0, 5\)"),
        (1, {"start": 4}, r"turns\[1\] must lie in \[5, 7\], got \[4, 7\)"),
        (1, {"end": 8}, r"turns\[1\] must lie in \[5, 7\], got \[6, 8\)"),
        (0, {"temperature": 0.0}, r"turns\[0\].temperature must be above 0"),
        (0, {"num_calls": -1}, r"turns\[0\].num_calls must be at least 0"),
        (0, {"reward_terms": {"process": float("nan")}}, "reward term 'process' must be finite"),
    ],
)
def test_a_broken_turn_is_named(number: int, changes: dict[str, Any], reason: str) -> None:
    turns = list(make_trajectory().turns)
    turns[number] = replace(turns[number], **changes)
    with pytest.raises(ValueError, match=reason):
        validate(make_trajectory(turns=tuple(turns)))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"group_id": "other"}, "group_id must be 'other' in a group, got 'group'"),
        ({"task_id": "other"}, "task_id must be 'other' in a group, got 'task'"),
        ({"first_version": PolicyVersion(1, 8)}, "token versions must lie in"),
        ({"last_version": PolicyVersion(1, 7)}, "token versions must lie in"),
        ({"first_version": PolicyVersion(2, 0)}, "first_version must not be after"),
        # step 7 of incarnation 1 is younger than any step of incarnation 0
        ({"first_version": PolicyVersion(0, 9), "last_version": PolicyVersion(0, 99)}, "token versions must lie in"),
    ],
)
def test_a_broken_group_is_named(changes: dict[str, Any], reason: str) -> None:
    validate_group(make_group(make_trajectory()))
    with pytest.raises(ValueError, match=reason):
        validate_group(make_group(make_trajectory(), **changes))
