"""What travels in a finished group's stead: where its file is, and the figures that the controller needs of it."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from segue.actors.episode import Episode, summarize
from segue.rollout.trajectory import Group, Outcome, PolicyVersion, Source, Trajectory
from segue.rollout.trajectory_file import file_name


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecord:
    """What travels in a group's stead."""

    number: int
    """Number of its task in the stream."""
    task_id: str
    group_id: str
    file: str
    """Name in the buffer folder."""
    digest: str
    """SHA-256 of the file, in hexadecimal."""
    tokens_by_version: tuple[tuple[PolicyVersion, int], ...]
    """Trainable tokens by the weights that sampled them, oldest first."""
    made_by: str
    episodes: tuple[Episode, ...]
    """None where the group was given up; plain text is no episode."""
    rollout_s: float
    """Seconds between the start and the end of its play."""
    num_text_tokens: int = 0
    """Tokens of plain text to be predicted."""


def make_record(group: Group, *, number: int, digest: str, rollout_s: float) -> GroupRecord:
    """The record of a group whose file has this digest."""
    text = [t for t in group.trajectories if t.source is Source.text]
    return GroupRecord(
        number=number,
        task_id=group.task_id,
        group_id=group.group_id,
        file=file_name(group.group_id),
        digest=digest,
        tokens_by_version=count_versions(group.trajectories),
        made_by=group.made_by,
        episodes=tuple(map(summarize, (t for t in group.trajectories if t.source is not Source.text))),
        rollout_s=rollout_s,
        num_text_tokens=sum(t.num_trainable for t in text),
    )


def record_given_up(*, number: int, task_id: str, group_id: str) -> GroupRecord:
    """The record of a group that there will not be."""
    return GroupRecord(
        number=number,
        task_id=task_id,
        group_id=group_id,
        file=file_name(group_id),
        digest="",
        tokens_by_version=(),
        made_by="",
        episodes=(),
        rollout_s=0.0,
    )


def count_versions(trajectories: Iterable[Trajectory]) -> tuple[tuple[PolicyVersion, int], ...]:
    """Trainable tokens by the weights that sampled them, oldest first."""
    counts: Counter[PolicyVersion] = Counter()
    for trajectory in trajectories:
        for version, count in trajectory.trainable_by_version:
            counts[version] += count
    return tuple(sorted(counts.items()))


def record_to_json(record: GroupRecord) -> dict[str, Any]:
    """The record as JSON values."""
    values = asdict(record)
    for episode in values["episodes"]:
        episode["outcome"] = episode["outcome"].value
    return values


def record_from_json(values: dict[str, Any]) -> GroupRecord:
    """The record that `record_to_json` took apart."""
    episodes = tuple(Episode(**{**e, "outcome": Outcome(e["outcome"])}) for e in values["episodes"])
    versions = tuple((PolicyVersion(**version), count) for version, count in values["tokens_by_version"])
    return GroupRecord(**{**values, "tokens_by_version": versions, "episodes": episodes})
