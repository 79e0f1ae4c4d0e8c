"""Which trajectories and tokens a reinforcement step trains, and with what numbers."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from learner_cases import make_group, make_trajectory

from segue.conf.schema import AdvantageConfig, LearnerConfig, LossConfig, NormalisationKind, ZeroVariance
from segue.learner.policy_batch import PolicyBatch, load_policy_batch, make_policy_loss
from segue.learner.selection import Selection, select_trajectories
from segue.learner.staleness import is_fresh
from segue.rollout.stored_group import StoredGroup
from segue.rollout.trajectory import Outcome, PolicyVersion, Source


def build(groups, config=None, version=(0, 0), restored=(0,), bound=0) -> tuple[Selection, PolicyBatch]:
    """A step's selection, and the arrays of all that it runs."""
    fresh = partial(is_fresh, version=PolicyVersion(*version), restored_steps=restored, max_staleness=bound)
    stored = [StoredGroup.of(group) for group in groups]
    selection = select_trajectories(stored, config or LearnerConfig(), fresh)
    return selection, load_policy_batch(stored, selection, range(len(selection.lengths)), fresh)


def failed(seed):
    return make_trajectory(seed, reward=0.0, outcome=Outcome.infrastructure_error, outcome_terms={})


def test_a_mixed_batch_is_laid_out_by_hand():
    good, bad, broken = make_trajectory(1, reward=1.0), make_trajectory(2, reward=0.0), failed(3)
    even = [make_trajectory(seed, reward=1.0) for seed in (4, 5)]
    selection, batch = build([make_group([good, bad, broken]), make_group(even)])
    # the group of equal rewards is not run, the broken one not rewarded: (1, 0) around 1/2
    assert batch.tokens.lengths == [good.num_tokens, bad.num_tokens]
    counts = [good.num_trainable, bad.num_trainable]
    assert batch.advantage.tolist() == [0.5] * counts[0] + [-0.5] * counts[1]
    # the tokens of the skipped group stay in N, those of the broken one do not
    num_counted = sum(counts) + sum(trajectory.num_trainable for trajectory in even)
    assert selection.num_trained_tokens == num_counted
    assert batch.weight.tolist() == pytest.approx([1 / num_counted] * sum(counts))
    expected = np.concatenate([t.behaviour_logprob[t.trainable] for t in (good, bad)])
    assert batch.behaviour_logprob.tolist() == expected.tolist()
    assert (selection.num_skipped, selection.num_infrastructure, selection.num_stale_tokens) == (2, 1, 0)


def test_keeping_zero_variance_groups_runs_them_without_advantage():
    config = LearnerConfig(advantage=AdvantageConfig(zero_variance=ZeroVariance.keep))
    even = [make_trajectory(seed, reward=1.0) for seed in (4, 5)]
    selection, batch = build([make_group(even), make_group([failed(6)])], config)
    assert batch.tokens.lengths == [trajectory.num_tokens for trajectory in even]
    assert not batch.advantage.any()
    # the broken trajectory is not run even so
    assert (selection.num_skipped, selection.num_infrastructure) == (0, 1)


def test_a_trajectory_at_its_groups_mean_is_run():
    # rewards (0, 1, 2): the middle one has advantage 0, but the squared log-ratio holds it
    _selection, batch = build([make_group([make_trajectory(seed, reward=float(seed)) for seed in (0, 1, 2)])])
    assert len(batch.tokens.lengths) == 3
    assert sorted(set(batch.advantage.tolist())) == [-1.0, 0.0, 1.0]


def test_stale_tokens_are_context_and_count_nowhere():
    old = make_trajectory(1, reward=1.0)
    # its second turn was sampled three steps later
    late = np.zeros(old.num_tokens, np.int32)
    late[old.turns[1].start : old.turns[1].end] = 3
    spanning = make_trajectory(1, reward=1.0, policy_step=late)
    young = make_trajectory(2, reward=0.0, version=PolicyVersion(0, 3))
    selection, batch = build([make_group([spanning, young])], version=(0, 4), bound=1)
    first, second = (turn.end - turn.start for turn in spanning.turns)
    assert selection.num_stale_tokens == first
    assert selection.num_trained_tokens == second + young.num_trainable
    # the whole stream is fed, the labels are those of the second turn
    assert batch.tokens.lengths == [spanning.num_tokens, young.num_tokens]
    is_label = batch.tokens.is_label[: spanning.num_tokens]
    assert np.flatnonzero(is_label).tolist() == list(range(spanning.turns[1].start, spanning.turns[1].end))


def test_a_wholly_stale_trajectory_still_counts_as_a_reward_but_is_not_run():
    old, young = make_trajectory(1, reward=1.0), make_trajectory(2, reward=0.0, version=PolicyVersion(0, 5))
    selection, batch = build([make_group([old, young])], version=(0, 5), bound=0)
    assert batch.tokens.lengths == [young.num_tokens]
    assert batch.advantage.unique().tolist() == [-0.5]
    # neither run nor skipped for its group's sake
    assert selection.num_skipped == 0


def test_demonstrations_are_refused():
    shown = make_trajectory(1, reward=1.0, source=Source.demonstrator)
    with pytest.raises(ValueError, match="group group must hold the policy's trajectories, got demonstrator's"):
        build([make_group([shown, shown])])


def test_nothing_to_train_is_an_empty_batch():
    _selection, batch = build([make_group([failed(1), failed(2)])])
    assert batch.tokens.lengths == []
    assert batch.tokens.num_labels == len(batch.weight) == 0


def test_the_loss_takes_each_labels_own_numbers():
    config = LearnerConfig(loss=LossConfig(normalisation=NormalisationKind.sequence_mean, tau=0.1))
    _selection, batch = build([make_group([make_trajectory(1, reward=1.0), make_trajectory(2, reward=0.0)])], config)
    numbers = torch.tensor([5, 0, batch.tokens.num_labels - 1])
    logprob = batch.behaviour_logprob[numbers] + torch.tensor([0.1, -0.2, 0.0])
    loss = make_policy_loss(batch, config)(logprob, torch.zeros(3), numbers)
    expected = sum(
        float(batch.weight[n]) * (0.1 * r * r - float(np.exp(r)) * float(batch.advantage[n]))
        for n, r in zip(numbers.tolist(), (0.1, -0.2, 0.0), strict=True)
    )
    assert float(loss) == pytest.approx(expected, rel=1e-5)


def test_a_rank_loads_its_own_trajectories_only():
    groups = [make_group([make_trajectory(seed, reward=seed % 2) for seed in (start, start + 1)]) for start in (0, 2)]
    selection, whole = build(groups)
    loaded: list[int] = []
    stored = [StoredGroup.of(group) for group in groups]
    watched = [replace(group, load=lambda i, g=group: (loaded.append(i), g.load(i))[1]) for group in stored]
    part = load_policy_batch(
        watched, selection, [1, 2], partial(is_fresh, version=PolicyVersion(0, 0), restored_steps=(0,), max_staleness=0)
    )
    assert loaded == [1, 0]
    assert part.tokens.lengths == list(selection.lengths[1:3])
    own = whole.tokens.label_numbers([1, 2])
    assert torch.equal(part.behaviour_logprob, whole.behaviour_logprob[own])
    assert torch.equal(part.advantage, whole.advantage[own])
    assert torch.equal(part.weight, whole.weight[own])
