"""Imitation: demonstrations through the same sweeps, with the cross-entropy of what the demonstrator wrote."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from segue.learner.batch import TokenBatch
from segue.learner.loss import cross_entropy_loss
from segue.learner.sweeps import LossFunction, TrajectoryArrays
from segue.rollout.trajectory import Trajectory


def make_imitation_batch(trajectories: Sequence[Trajectory]) -> TokenBatch:
    """Lay out demonstrations; labels are their trainable tokens, at temperature 1."""
    return TokenBatch.pack(
        [trajectory.token_ids for trajectory in trajectories],
        [trajectory.trainable for trajectory in trajectories],
        [np.ones(trajectory.num_tokens, np.float32) for trajectory in trajectories],
    )


def make_imitation_loss(num_labels: int) -> LossFunction:
    """Mean negative log-probability over all labels of the step, of which there are `num_labels` on all ranks."""
    weight = 1.0 / max(num_labels, 1)

    def loss(arrays: TrajectoryArrays) -> Tensor:
        return cross_entropy_loss(arrays.logprob, torch.full_like(arrays.logprob, weight))

    return loss
