"""From finished groups to the arrays of one reinforcement step: who trains, with what advantage and weight.

Every rank builds the same batch from the same groups; the schedule decides afterwards who runs what.

Legend: J labels (trained tokens of the trajectories that are run).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from segue.conf.schema import LearnerConfig, ZeroVariance
from segue.learner.advantage import group_advantages
from segue.learner.batch import TokenBatch
from segue.learner.loss import masked_ratio_loss
from segue.learner.normalisation import token_weights
from segue.learner.staleness import is_fresh
from segue.learner.sweeps import LossFunction
from segue.rollout.trajectory import Group, PolicyVersion, Source, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PolicyBatch:
    """One step's trajectories that are run, and counts of all."""

    tokens: TokenBatch
    behaviour_logprob: Tensor
    """[J] float32, nats."""
    advantage: Tensor
    """[J] float32."""
    weight: Tensor
    """[J] float32."""
    num_trained_tokens: int
    """Of all trajectories that count, run or not: N of the normalisation."""
    num_stale_tokens: int
    """Trainable, but too old or of a lost version."""
    num_skipped: int
    """Trajectories not run because their group has no advantage."""
    num_infrastructure: int
    """Trajectories that failed in the infrastructure."""


def make_policy_batch(
    groups: Sequence[Group],
    config: LearnerConfig,
    version: PolicyVersion,
    restored_steps: Sequence[int],
    max_staleness: int,
) -> PolicyBatch:
    """Choose, weigh and lay out.

    A trajectory is run when it has a trained token and its group an advantage (or `zero_variance: keep`). Trained are
    trainable tokens within the staleness bound, of episodes that did not fail in the infrastructure; older tokens are
    context that carries gradient.

    Args:
        groups: in any order that all ranks share.
        config: `advantage`, `loss`.
        version: of the weights about to be trained.
        restored_steps: see `staleness.is_fresh`.
        max_staleness: likewise.
    Raises:
        ValueError: a group holds a demonstrator's trajectory.
    """
    keeps_all = config.advantage.zero_variance is ZeroVariance.keep
    trajectories: list[Trajectory] = []
    advantages: list[float] = []
    is_trained: list[np.ndarray] = []
    may_run: list[bool] = []
    num_stale = num_infrastructure = 0
    for group in groups:
        is_scored = [not trajectory.outcome.is_infrastructure for trajectory in group.trajectories]
        values = group_advantages(
            group.rewards.tolist(), is_scored, config.advantage.kind, config.advantage.std_epsilon
        )
        num_infrastructure += len(is_scored) - sum(is_scored)
        for trajectory, scored, value in zip(group.trajectories, is_scored, values.tolist(), strict=True):
            if trajectory.source is not Source.policy:
                raise ValueError(
                    f"group {group.group_id} must hold the policy's trajectories, got {trajectory.source.value}'s"
                )
            fresh = is_fresh(
                trajectory.policy_incarnation, trajectory.policy_step, version, restored_steps, max_staleness
            )
            num_stale += int((trajectory.trainable & ~fresh).sum()) if scored else 0
            trajectories.append(trajectory)
            advantages.append(value)
            is_trained.append(trajectory.trainable & fresh & scored)
            may_run.append(scored and (keeps_all or bool(values.any())))
    counts = [int(trained.sum()) for trained in is_trained]
    weights = token_weights(counts, config.loss.normalisation, config.loss.constant_tokens)
    chosen = [i for i, count in enumerate(counts) if count and may_run[i]]

    def per_label(values: Sequence[float]) -> Tensor:
        return torch.from_numpy(np.repeat([values[i] for i in chosen], [counts[i] for i in chosen]).astype(np.float32))

    behaviour = [trajectories[i].behaviour_logprob[is_trained[i]] for i in chosen]
    return PolicyBatch(
        tokens=TokenBatch.pack(
            [trajectories[i].token_ids for i in chosen],
            [is_trained[i] for i in chosen],
            [trajectories[i].temperature for i in chosen],
        ),
        behaviour_logprob=torch.from_numpy(np.concatenate([np.zeros(0, np.float32), *behaviour])),
        advantage=per_label(advantages),
        weight=per_label(weights.tolist()),
        num_trained_tokens=sum(counts),
        num_stale_tokens=num_stale,
        num_skipped=sum(1 for i, count in enumerate(counts) if count and not may_run[i]),
        num_infrastructure=num_infrastructure,
    )


def make_policy_loss(batch: PolicyBatch, config: LearnerConfig) -> LossFunction:
    """The K2.5 loss of a batch's labels."""

    def loss(logprob: Tensor, entropy: Tensor, numbers: Tensor) -> Tensor:
        return masked_ratio_loss(
            logprob,
            batch.behaviour_logprob[numbers],
            batch.advantage[numbers],
            batch.weight[numbers],
            ratio_low=config.loss.ratio_low,
            ratio_high=config.loss.ratio_high,
            tau=config.loss.tau,
        )

    return loss
