"""The arrays of one reinforcement step on one rank: loaded for the trajectories that it runs, and their loss.

Legend: J labels (trained tokens of these trajectories).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from segue.conf.schema import LearnerConfig
from segue.learner.batch import TokenBatch
from segue.learner.loss import masked_ratio_loss
from segue.learner.selection import Freshness, Selection
from segue.learner.sweeps import LossFunction
from segue.rollout.stored_group import StoredGroup


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PolicyBatch:
    """One rank's trajectories of a step."""

    tokens: TokenBatch
    behaviour_logprob: Tensor
    """[J] float32, nats."""
    advantage: Tensor
    """[J] float32."""
    weight: Tensor
    """[J] float32."""


def load_policy_batch(
    groups: Sequence[StoredGroup], selection: Selection, numbers: Sequence[int], is_fresh: Freshness
) -> PolicyBatch:
    """Load and lay out.

    Args:
        groups: that the selection was made from.
        selection: of the step.
        numbers: which of its trajectories, in this order.
        is_fresh: that the selection was made with.
    """
    loaded = [groups[group].load(index) for group, index in (selection.members[n] for n in numbers)]
    is_trained = [t.trainable & is_fresh(t.policy_incarnation, t.policy_step) for t in loaded]
    counts = [int(trained.sum()) for trained in is_trained]

    def per_label(values: Sequence[float]) -> Tensor:
        return torch.from_numpy(np.repeat(np.array([values[n] for n in numbers], np.float32), counts))

    behaviour = [t.behaviour_logprob[trained] for t, trained in zip(loaded, is_trained, strict=True)]
    return PolicyBatch(
        tokens=TokenBatch.pack([t.token_ids for t in loaded], is_trained, [t.temperature for t in loaded]),
        behaviour_logprob=torch.from_numpy(np.concatenate([np.zeros(0, np.float32), *behaviour])),
        advantage=per_label(selection.advantages),
        weight=per_label(selection.weights),
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
