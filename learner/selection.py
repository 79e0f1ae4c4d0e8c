"""Which trajectories a reinforcement step runs, with what advantage and weight: planned from summaries alone.

Every rank plans the same from the same groups; the schedule decides afterwards who loads and runs what.

Legend: N trajectories that are run.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from segue.conf.schema import LearnerConfig, ZeroVariance
from segue.learner.advantage import step_advantages
from segue.learner.normalisation import token_weights
from segue.rollout.stored_group import StoredGroup, TrajectorySummary
from segue.rollout.trajectory import Source

Freshness = Callable[[NDArray[np.int32], NDArray[np.int32]], NDArray[np.bool_]]
"""(policy_incarnation [T], policy_step [T]) to whether such a token is trained, [T]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """One step's trajectories that are run, and counts of all."""

    members: tuple[tuple[int, int], ...]
    """[N] number of the group, place in it."""
    lengths: tuple[int, ...]
    """[N] tokens."""
    advantages: tuple[tuple[float, ...], ...]
    """[N], of each of its turns; zeros while a critic's values are to come."""
    weights: tuple[float, ...]
    """[N] of each of its trained tokens."""
    num_trained_tokens: int
    """Of all trajectories that count, run or not: N of the normalisation."""
    num_stale_tokens: int
    """Trainable, but too old or of a lost version."""
    num_skipped: int
    """Trajectories not run because their group has no advantage."""
    num_infrastructure: int
    """Trajectories that failed in the infrastructure."""


def select_trajectories(groups: Sequence[StoredGroup], config: LearnerConfig, is_fresh: Freshness) -> Selection:
    """Choose and weigh.

    A trajectory is run when it has a trained token and its group an advantage (or `zero_variance: keep`, or there is a
    critic). Trained are
    trainable tokens within the staleness bound, of episodes that did not fail in the infrastructure; older tokens are
    context that carries gradient.

    Args:
        groups: in any order that all ranks share.
        config: `advantage`, `loss`.
        is_fresh: the staleness bound.
    Raises:
        ValueError: a group holds a demonstrator's trajectory.
    """
    keeps_all = config.advantage.zero_variance is ZeroVariance.keep or config.advantage.has_critic
    members: list[tuple[int, int]] = []
    lengths: list[int] = []
    advantages: list[tuple[float, ...]] = []
    counts: list[int] = []
    may_run: list[bool] = []
    num_stale = num_infrastructure = 0
    by_group = step_advantages([group.members for group in groups], config.advantage)
    for number, (group, values) in enumerate(zip(groups, by_group, strict=True)):
        has_advantage = any(turns.any() for turns in values)
        for index, (member, turns) in enumerate(zip(group.members, values, strict=True)):
            scored = not member.outcome.is_infrastructure
            num_infrastructure += not scored
            if member.source is not Source.policy:
                raise ValueError(
                    f"group {group.group_id} must hold the policy's trajectories, got {member.source.value}'s"
                )
            num_fresh, num_old = _count_fresh(member, is_fresh)
            num_stale += num_old if scored else 0
            members.append((number, index))
            lengths.append(member.num_tokens)
            advantages.append(tuple(turns.tolist()))
            counts.append(num_fresh if scored else 0)
            may_run.append(scored and (keeps_all or has_advantage))
    weights = token_weights(counts, config.loss.normalisation, config.loss.constant_tokens).tolist()
    chosen = [i for i, count in enumerate(counts) if count and may_run[i]]
    return Selection(
        members=tuple(members[i] for i in chosen),
        lengths=tuple(lengths[i] for i in chosen),
        advantages=tuple(advantages[i] for i in chosen),
        weights=tuple(weights[i] for i in chosen),
        num_trained_tokens=sum(counts),
        num_stale_tokens=num_stale,
        num_skipped=sum(1 for i, count in enumerate(counts) if count and not may_run[i]),
        num_infrastructure=num_infrastructure,
    )


def _count_fresh(member: TrajectorySummary, is_fresh: Freshness) -> tuple[int, int]:
    """Trainable tokens that are trained, and that are too old."""
    versions = np.array([(v.incarnation, v.step) for v, _ in member.trainable_by_version], np.int32).reshape(-1, 2)
    fresh = is_fresh(versions[:, 0], versions[:, 1])
    counts = np.array([count for _, count in member.trainable_by_version], np.int64)
    return int(counts[fresh].sum()), int(counts[~fresh].sum())
