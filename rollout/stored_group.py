"""Groups whose arrays are read only where they are needed: a learner rank plans with all, and loads its own."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from segue.rollout.trajectory import Group, Outcome, PolicyVersion, Source, Trajectory


class TrajectoryFileError(ValueError):
    """A file is not whole, or not of the format that is asked for."""

    def __init__(self, path: Path, fault: str) -> None:
        super().__init__(path, fault)
        self.group_id = path.stem
        """By the file's name."""

    def __str__(self) -> str:
        return f"{self.args[0]} {self.args[1]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectorySummary:
    """What a plan needs of a trajectory: nothing as long as its tokens."""

    num_tokens: int
    trainable_by_version: tuple[tuple[PolicyVersion, int], ...]
    """Trainable tokens by the weights that sampled them, oldest first."""
    turn_rewards: tuple[float, ...]
    """Sum of each turn's terms."""
    outcome_reward: float
    """Sum of the terms of the episode as a whole."""
    outcome: Outcome
    source: Source

    @property
    def reward(self) -> float:
        """Sum of all terms."""
        return sum(self.turn_rewards) + self.outcome_reward

    @property
    def num_trainable(self) -> int:
        """Trainable tokens of all versions."""
        return sum(count for _, count in self.trainable_by_version)

    @staticmethod
    def of(trajectory: Trajectory) -> "TrajectorySummary":
        """Counted from the arrays."""
        return TrajectorySummary(
            num_tokens=trajectory.num_tokens,
            trainable_by_version=trajectory.trainable_by_version,
            turn_rewards=tuple(sum(turn.reward_terms.values()) for turn in trajectory.turns),
            outcome_reward=sum(trajectory.outcome_terms.values()),
            outcome=trajectory.outcome,
            source=trajectory.source,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoredGroup:
    """The trajectories of one task, summarised, and a way to each of them."""

    group_id: str
    members: tuple[TrajectorySummary, ...]
    load: Callable[[int], Trajectory]
    """From a place in the group to its trajectory."""

    @staticmethod
    def of(group: Group) -> "StoredGroup":
        """A group that is in memory as it is."""
        return StoredGroup(
            group_id=group.group_id,
            members=tuple(map(TrajectorySummary.of, group.trajectories)),
            load=group.trajectories.__getitem__,
        )
