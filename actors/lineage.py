"""Which weights lie on the line of the run, and how old the tokens of a group are.

A run that is restored begins a new incarnation. Steps that the lost incarnation took after the checkpoint are not on
the line: tokens sampled by them count as older than any bound (`segue.learner.staleness` masks them).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from segue.learner.staleness import is_fresh
from segue.rollout.trajectory import PolicyVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """The incarnations of a run.

    Example:
        Incarnation 0 was restored from its checkpoint of step 5: `Lineage(restored_steps=(0, 5))`.
    """

    restored_steps: tuple[int, ...] = (0,)
    """For each incarnation, the step that it began at."""

    @classmethod
    def of_launches(cls, launches: Iterable[dict[str, Any]]) -> "Lineage":
        """From what `run.json` says of each launch; a launch has an incarnation for each step that it went back to."""
        return cls(restored_steps=tuple(step for launch in launches for step in launch["restored_steps"]))

    def restored(self, step: int) -> "Lineage":
        """The line as it goes on from a checkpoint's step."""
        return Lineage(restored_steps=(*self.restored_steps, step))

    @property
    def incarnation(self) -> int:
        """The present one."""
        return len(self.restored_steps) - 1

    def version(self, step: int) -> PolicyVersion:
        """The present incarnation's weights after `step` steps."""
        return PolicyVersion(self.incarnation, step)

    def is_lost(self, version: PolicyVersion) -> bool:
        """True where a restore undid the step that published this version."""
        return version.step > min(self.restored_steps[version.incarnation + 1 :], default=version.step)


@dataclass(frozen=True, slots=True, kw_only=True)
class Staleness:
    """Ages of the trainable tokens of a group or batch, in learner steps."""

    num_fresh: int
    """Tokens within the bound."""
    num_old: int
    """Tokens beyond it, or sampled by weights that left the line."""
    sum_steps: int
    """Ages of the fresh ones, added up."""
    max_steps: int
    """The oldest of the fresh ones; 0 where there is none."""

    @property
    def mean_steps(self) -> float:
        """Mean age of the fresh tokens; 0 where there is none."""
        return self.sum_steps / max(self.num_fresh, 1)


def measure_staleness(
    tokens_by_version: Iterable[tuple[PolicyVersion, int]], lineage: Lineage, *, step: int, max_staleness: int
) -> Staleness:
    """Ages, from counts of tokens by version, at weights that have seen `step` steps.

    Example:
        5 tokens of step 7 and 3 of step 4, at step 8 with bound 2: 5 fresh, 1 step old each; 3 old.
    """
    pairs = list(tokens_by_version)
    incarnations = np.array([version.incarnation for version, _ in pairs], np.int32)
    steps = np.array([version.step for version, _ in pairs], np.int32)
    counts = np.array([count for _, count in pairs], np.int64)
    fresh = is_fresh(incarnations, steps, lineage.version(step), lineage.restored_steps, max_staleness)
    ages = (step - steps)[fresh]
    return Staleness(
        num_fresh=int(counts[fresh].sum()),
        num_old=int(counts[~fresh].sum()),
        sum_steps=int((ages * counts[fresh]).sum()),
        max_steps=int(ages.max(initial=0)),
    )
