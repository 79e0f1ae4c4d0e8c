"""Imitation batches and their loss."""

import math

import numpy as np
import pytest
import torch
from learner_cases import all_arrays, make_trajectory

from segue.learner.pretrain import make_imitation_batch, make_imitation_loss
from segue.rollout.trajectory import Source


def test_labels_are_what_the_demonstrator_wrote_at_temperature_one():
    shown = [make_trajectory(seed, reward=1.0, source=Source.demonstrator) for seed in (1, 2)]
    batch = make_imitation_batch(shown)
    assert batch.lengths == [trajectory.num_tokens for trajectory in shown]
    assert batch.is_label.tolist() == np.concatenate([trajectory.trainable for trajectory in shown]).tolist()
    assert set(batch.temperature.tolist()) == {1.0}


def test_the_loss_is_the_mean_over_all_labels_of_the_step_whatever_the_split():
    batch = make_imitation_batch([make_trajectory(1, reward=1.0), make_trajectory(2, reward=1.0)])
    loss = make_imitation_loss(batch.num_labels)
    logprob = torch.full((batch.num_labels,), math.log(0.25))
    first = batch.label_numbers([0])
    whole = all_arrays(batch, logprob)
    parts = [loss(whole._replace(logprob=logprob[n], label_numbers=n)) for n in (first, batch.label_numbers([1]))]
    assert float(sum(parts)) == pytest.approx(math.log(4.0), rel=1e-6)
    assert float(parts[0]) == pytest.approx(math.log(4.0) * len(first) / batch.num_labels, rel=1e-6)
