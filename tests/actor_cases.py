"""Small groups, records and episodes for the actors' tests."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from segue.actors.episode import Episode
from segue.actors.group_record import GroupRecord, file_name, make_record
from segue.rollout.trajectory import Group, Outcome, PolicyVersion, Source, Trajectory, Turn
from segue.rollout.trajectory_file import save_group


def make_trajectory(
    versions: list[tuple[int, int]],
    *,
    task_id: str = "train-0000000",
    group_id: str = "train-0000000.0",
    index: int = 0,
    outcome: Outcome = Outcome.success,
    reward_terms: dict[str, float] | None = None,
    info: dict | None = None,
) -> Trajectory:
    """A prompt of two tokens and one turn of a token for each (incarnation, step)."""
    num_sampled = len(versions)
    trainable = np.array([False, False] + [True] * num_sampled)
    sampled = np.array([(0, 0), (0, 0), *versions], np.int32)
    return Trajectory(
        token_ids=np.arange(2 + num_sampled, dtype=np.int32),
        trainable=trainable,
        source=Source.policy,
        behaviour_logprob=np.where(trainable, -0.5, 0.0).astype(np.float32),
        policy_incarnation=np.ascontiguousarray(sampled[:, 0]),
        policy_step=np.ascontiguousarray(sampled[:, 1]),
        turns=(Turn(start=2, end=2 + num_sampled, temperature=1.0, reward_terms=reward_terms or {}, num_calls=1),),
        outcome_terms={},
        outcome=outcome,
        task_id=task_id,
        group_id=group_id,
        index=index,
        attempt=0,
        seed=7,
        info=info or {},
    )


def make_group(number: int, versions: list[tuple[int, int]] | None = None, *, incarnation: int = 0) -> Group:
    """Two equal members of task `number`."""
    task_id = f"train-{number:07d}"
    group_id = f"{task_id}.{incarnation}"
    pairs = [(incarnation, 0)] if versions is None else versions
    seen = sorted(PolicyVersion(*pair) for pair in pairs) or [PolicyVersion(incarnation, 0)]
    members = tuple(make_trajectory(pairs, task_id=task_id, group_id=group_id, index=i) for i in range(2))
    return Group(
        task_id=task_id,
        group_id=group_id,
        trajectories=members,
        first_version=seen[0],
        last_version=seen[-1],
        made_by="rollout-0",
    )


def write_group(folder: Path, group: Group) -> GroupRecord:
    """The group's file in a buffer folder, and its record."""
    folder.mkdir(parents=True, exist_ok=True)
    digest = save_group(folder / file_name(group.group_id), group)
    return make_record(group, number=number_of(group.task_id), digest=digest, rollout_s=0.0)


def make_record_of(group: Group, outcomes: tuple[Outcome, ...], *, cause: str | None = None) -> GroupRecord:
    """The record of a group without a file, whose members ended so."""
    info = {} if cause is None else {"cause": cause}
    members = tuple(replace(t, outcome=o, info=info) for t, o in zip(group.trajectories, outcomes, strict=True))
    return make_record(replace(group, trajectories=members), number=number_of(group.task_id), digest="", rollout_s=0.0)


def number_of(task_id: str) -> int:
    """Number of a training task."""
    return int(task_id.removeprefix("train-"))


def make_episode(**changes) -> Episode:
    """A solved episode of 100 tokens."""
    fields = {
        "seed": 0,
        "outcome": Outcome.success,
        "reward": 1.0,
        "reward_terms": {"success": 1.0},
        "num_tokens": 100,
        "num_sampled_tokens": 40,
        "num_turns": 2,
        "attempt": 0,
        "info": {},
    }
    return Episode(**(fields | changes))
