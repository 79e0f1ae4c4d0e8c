"""The arrays of one reinforcement step on one rank: loaded for the trajectories that it runs, and their loss.

Legend: J labels (trained tokens of these trajectories).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from segue.conf.schema import AdvantageConfig, LossConfig, LossKind
from segue.learner.batch import TokenBatch
from segue.learner.course import Course, make_course
from segue.learner.loss import (
    PolicyLoss,
    clipped_ratio_loss,
    clipped_sequence_loss,
    masked_ratio_loss,
    weighted_logprob_loss,
)
from segue.learner.selection import Freshness, Selection
from segue.learner.sweeps import LossFunction, TrajectoryArrays
from segue.learner.user_loss import TrainedTokens, user_loss
from segue.rollout.stored_group import StoredGroup


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PolicyBatch:
    """One rank's trajectories of a step."""

    tokens: TokenBatch
    behaviour_logprob: Tensor
    """[J] float32, nats."""
    advantage: Tensor
    """[J] float32; 0 while a critic's values are to come."""
    weight: Tensor
    """[J] float32."""
    trajectory: Tensor
    """[J] int64: number of its trajectory in `tokens`."""
    courses: tuple[Course, ...] = ()
    """Of each trajectory, for a critic; none without one."""
    first_values: tuple[Tensor | None, ...] = ()
    """Of each trajectory, at its course's places: the critic's at the first of its uses, None at the first; none at all
    where values are not clipped."""


def load_policy_batch(
    groups: Sequence[StoredGroup],
    selection: Selection,
    numbers: Sequence[int],
    is_fresh: Freshness,
    config: AdvantageConfig,
) -> PolicyBatch:
    """Load and lay out.

    Args:
        groups: that the selection was made from.
        selection: of the step.
        numbers: which of its trajectories, in this order.
        is_fresh: that the selection was made with.
        config: that the selection was made with.
    """
    loaded = [groups[group].load(index) for group, index in (selection.members[n] for n in numbers)]
    is_trained = [t.trainable & is_fresh(t.policy_incarnation, t.policy_step) for t in loaded]
    counts = [int(trained.sum()) for trained in is_trained]
    # every trained token lies in a turn
    by_turn = [
        int(trained[turn.start : turn.end].sum())
        for t, trained in zip(loaded, is_trained, strict=True)
        for turn in t.turns
    ]
    advantages = np.array([value for n in numbers for value in selection.advantages[n]], np.float32)
    weights = np.array([selection.weights[n] for n in numbers], np.float32)
    behaviour = [t.behaviour_logprob[trained] for t, trained in zip(loaded, is_trained, strict=True)]
    return PolicyBatch(
        tokens=TokenBatch.pack([t.token_ids for t in loaded], is_trained, [t.temperature for t in loaded]),
        behaviour_logprob=torch.from_numpy(np.concatenate([np.zeros(0, np.float32), *behaviour])),
        advantage=torch.from_numpy(np.repeat(advantages, by_turn)),
        weight=torch.from_numpy(np.repeat(weights, counts)),
        trajectory=torch.from_numpy(np.repeat(np.arange(len(loaded)), counts)),
        courses=tuple(make_course(t, trained, config.kind) for t, trained in zip(loaded, is_trained, strict=True))
        if config.has_critic
        else (),
    )


def make_policy_loss(batch: PolicyBatch, config: LossConfig) -> LossFunction:
    """The configured loss of a batch's labels."""

    def loss(arrays: TrajectoryArrays) -> Tensor:
        return policy_loss(batch, config, arrays.logprob, arrays.label_numbers).loss

    return loss


def policy_loss(batch: PolicyBatch, config: LossConfig, logprob: Tensor, numbers: Tensor) -> PolicyLoss:
    """The configured loss of whole trajectories.

    Args:
        logprob: [K] nats, of the labels with these numbers; carries the gradient.
        numbers: [K] int64, of all labels of some trajectories, trajectory after trajectory.
    """
    arrays = (logprob, batch.behaviour_logprob[numbers], batch.advantage[numbers], batch.weight[numbers])
    match config.kind:
        case LossKind.masked_ratio:
            masked = config.masked_ratio
            return masked_ratio_loss(*arrays, ratio_low=masked.ratio_low, ratio_high=masked.ratio_high, tau=masked.tau)
        case LossKind.ppo_clip:
            ppo = config.ppo_clip
            return clipped_ratio_loss(*arrays, clip_low=ppo.clip_low, clip_high=ppo.clip_high, dual_clip=ppo.dual_clip)
        case LossKind.cispo:
            cispo = config.cispo
            return weighted_logprob_loss(*arrays, ratio_low=cispo.ratio_low, ratio_high=cispo.ratio_high)
        case LossKind.gspo:
            gspo = config.gspo
            return clipped_sequence_loss(
                *arrays, batch.trajectory[numbers], clip_low=gspo.clip_low, clip_high=gspo.clip_high
            )
        case LossKind.reinforce:
            return weighted_logprob_loss(*arrays, ratio_low=0.0, ratio_high=config.reinforce.ratio_high)
        case LossKind.custom:
            logprob, behaviour, advantage, weight = arrays
            tokens = TrainedTokens(
                policy_logprob_J=logprob,
                behaviour_logprob_J=behaviour,
                advantage_J=advantage,
                weight_J=weight,
                trajectory_J=batch.trajectory[numbers],
            )
            return user_loss(tokens, config.custom)
