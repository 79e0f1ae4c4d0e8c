"""Imitation: demonstrations through the same sweeps, with the cross-entropy of what the demonstrator wrote."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from segue.learner.batch import TokenBatch
from segue.learner.loss import cross_entropy_loss
from segue.learner.sweeps import LossFunction
from segue.rollout.trajectory import Trajectory


def make_imitation_batch(trajectories: Sequence[Trajectory]) -> TokenBatch:
    """Lay out the demonstrations that have trainable tokens; labels are those, at temperature 1."""
    chosen = [trajectory for trajectory in trajectories if trajectory.trainable.any()]
    return TokenBatch.pack(
        [trajectory.token_ids for trajectory in chosen],
        [trajectory.trainable for trajectory in chosen],
        [np.ones(trajectory.num_tokens, np.float32) for trajectory in chosen],
    )


def make_imitation_loss(batch: TokenBatch) -> LossFunction:
    """Mean negative log-probability over all labels of the step."""
    weight = 1.0 / max(batch.num_labels, 1)

    def loss(logprob: Tensor, entropy: Tensor, numbers: Tensor) -> Tensor:
        return cross_entropy_loss(logprob, torch.full_like(logprob, weight))

    return loss
