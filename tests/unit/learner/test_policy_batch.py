"""Which trajectories and tokens a reinforcement step trains, and with what numbers."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from learner_cases import all_arrays, make_group, make_trajectory

from segue.conf.schema import (
    AdvantageConfig,
    AdvantageKind,
    CispoConfig,
    GspoConfig,
    LearnerConfig,
    LossConfig,
    LossKind,
    MaskedRatioConfig,
    NormalisationKind,
    PpoClipConfig,
    ReinforceConfig,
    ZeroVariance,
)
from segue.learner.measure import join_sums, policy_metrics, policy_sums
from segue.learner.policy_batch import PolicyBatch, load_policy_batch, make_policy_loss
from segue.learner.selection import Selection, select_trajectories
from segue.learner.staleness import is_fresh
from segue.rollout.stored_group import StoredGroup
from segue.rollout.trajectory import Outcome, PolicyVersion, Source


def build(groups, config=None, version=(0, 0), restored=(0,), bound=0) -> tuple[Selection, PolicyBatch]:
    """A step's selection, and the arrays of all that it runs."""
    fresh = partial(is_fresh, version=PolicyVersion(*version), restored_steps=restored, max_staleness=bound)
    stored, config = [StoredGroup.of(group) for group in groups], config or LearnerConfig()
    selection = select_trajectories(stored, config, fresh)
    return selection, load_policy_batch(stored, selection, range(len(selection.lengths)), fresh, config.advantage)


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
    assert batch.trajectory.tolist() == [0] * counts[0] + [1] * counts[1]
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


def test_a_second_use_trains_the_same_numbers_less_what_has_aged_beyond_the_bound():
    first, second = make_trajectory(1, reward=1.0), make_trajectory(2, reward=0.0)
    # the second turn of one was sampled a step later
    steps = np.zeros(first.num_tokens, np.int32)
    steps[first.turns[1].start : first.turns[1].end] = 1
    group = make_group([replace(first, policy_step=steps), second])
    selection, batch = build([group], version=(0, 1), bound=1)
    assert selection.num_stale_tokens == 0
    # one step on: what was sampled at step 0 is two steps old, what was sampled at step 1 is trained once more
    later, rest = build([group], version=(0, 2), bound=1)
    num_kept = first.turns[1].end - first.turns[1].start
    assert later.num_stale_tokens == selection.num_trained_tokens - num_kept
    assert later.num_trained_tokens == num_kept
    # the same advantage beside the same behaviour: its sibling's reward counts though nothing of it is trained
    is_kept = slice(first.turns[0].end - first.turns[0].start, first.num_trainable)
    assert rest.advantage.tolist() == batch.advantage[is_kept].tolist() == [0.5] * num_kept
    assert rest.behaviour_logprob.tolist() == batch.behaviour_logprob[is_kept].tolist()
    # the denominator is that of the step, which another batch shares out anew
    assert rest.weight.tolist() == pytest.approx([1 / num_kept] * num_kept)


def test_demonstrations_are_refused():
    shown = make_trajectory(1, reward=1.0, source=Source.demonstrator)
    with pytest.raises(ValueError, match="group group must hold the policy's trajectories, got demonstrator's"):
        build([make_group([shown, shown])])


def test_nothing_to_train_is_an_empty_batch():
    _selection, batch = build([make_group([failed(1), failed(2)])])
    assert batch.tokens.lengths == []
    assert batch.tokens.num_labels == len(batch.weight) == 0


def with_turn_rewards(seed, *rewards, outcome=0.0, **changes):
    """A trajectory of two turns that earned these."""
    plain = make_trajectory(seed, reward=outcome, **changes)
    turns = [replace(turn, reward_terms={"process": r}) for turn, r in zip(plain.turns, rewards, strict=True)]
    return replace(plain, turns=tuple(turns))


def test_each_turns_tokens_take_its_own_advantage():
    config = LearnerConfig(advantage=AdvantageConfig(kind=AdvantageKind.turn_returns, discount=0.5))
    # the second turn of the second trajectory is too old: it is not trained, but its reward counts
    steps = np.zeros(make_trajectory(2, reward=0.0).num_tokens, np.int32)
    first, second = with_turn_rewards(1, 0.0, 1.0, outcome=1.0), with_turn_rewards(2, 1.0, 0.0)
    steps[second.turns[0].start : second.turns[0].end] = 3
    first = replace(first, policy_step=np.where(first.trainable, 3, 0).astype(np.int32))
    selection, batch = build([make_group([first, replace(second, policy_step=steps)])], config, version=(0, 3))
    # returns (1, 2) and (1, 0): the first turns earned the same, the second ones 2 and 0
    assert selection.advantages == ((0.0, 1.0), (0.0, -1.0))
    lengths = [turn.end - turn.start for turn in first.turns]
    assert batch.advantage.tolist() == [0.0] * lengths[0] + [1.0] * lengths[1] + [0.0] * (
        second.turns[0].end - second.turns[0].start
    )


def test_a_group_is_run_where_one_of_its_turns_has_an_advantage():
    config = LearnerConfig(advantage=AdvantageConfig(kind=AdvantageKind.turn_returns))
    # rewards are 1 and 1, but the second turns earned 1 and 0
    selection, _batch = build([make_group([with_turn_rewards(1, 0.0, 1.0), with_turn_rewards(2, 1.0, 0.0)])], config)
    assert selection.num_skipped == 0
    assert selection.advantages == ((0.0, 0.5), (0.0, -0.5))
    by_reward, _ = build([make_group([with_turn_rewards(1, 0.0, 1.0), with_turn_rewards(2, 1.0, 0.0)])])
    assert by_reward.num_skipped == 2


def test_a_deviation_over_the_step_sees_all_groups():
    config = LearnerConfig(advantage=AdvantageConfig(kind=AdvantageKind.reinforce_pp))
    near = make_group([make_trajectory(1, reward=1.0), make_trajectory(2, reward=0.0)])
    far = make_group([make_trajectory(3, reward=7.0), make_trajectory(4, reward=0.0)])
    even = make_group([make_trajectory(seed, reward=1.0) for seed in (5, 6)])
    selection, _ = build([near, far, even], config)
    # centred ±1/2, ±7/2 and 0 twice: deviation √((2/4 + 98/4) / 6) = √(25/6)
    deviation = (25 / 6) ** 0.5
    assert [turns[0] for turns in selection.advantages] == pytest.approx(
        [value / deviation for value in (0.5, -0.5, 3.5, -3.5)], rel=1e-5
    )


def test_the_loss_takes_each_labels_own_numbers():
    masked = MaskedRatioConfig(tau=0.1)
    config = LearnerConfig(loss=LossConfig(normalisation=NormalisationKind.sequence_mean, masked_ratio=masked))
    _selection, batch = build([make_group([make_trajectory(1, reward=1.0), make_trajectory(2, reward=0.0)])], config)
    numbers = torch.tensor([5, 0, batch.tokens.num_labels - 1])
    logprob = batch.behaviour_logprob[numbers] + torch.tensor([0.1, -0.2, 0.0])
    arrays = all_arrays(batch.tokens, logprob)._replace(label_numbers=numbers)
    loss = make_policy_loss(batch, config.loss)(arrays)
    expected = sum(
        float(batch.weight[n]) * (0.1 * r * r - float(np.exp(r)) * float(batch.advantage[n]))
        for n, r in zip(numbers.tolist(), (0.1, -0.2, 0.0), strict=True)
    )
    assert float(loss) == pytest.approx(expected, rel=1e-5)


# a loss with settings other than the defaults, and its gradient by log ratio r and advantage A of a token
GRADIENTS = {
    LossKind.masked_ratio: (
        LossConfig(masked_ratio=MaskedRatioConfig(ratio_low=0.95, ratio_high=1.5, tau=0.1)),
        lambda r, a: 0.2 * r - (np.exp(r) * a if 0.95 <= np.exp(r) <= 1.5 else 0.0),
    ),
    LossKind.ppo_clip: (
        LossConfig(kind=LossKind.ppo_clip, ppo_clip=PpoClipConfig(clip_low=0.05, clip_high=0.3, dual_clip=1.2)),
        lambda r, a: 0.0 if (a < 0 and not 0.95 <= np.exp(r) <= 1.2) or (a > 0 and np.exp(r) > 1.3) else -np.exp(r) * a,
    ),
    LossKind.cispo: (
        LossConfig(kind=LossKind.cispo, cispo=CispoConfig(ratio_low=0.95, ratio_high=1.2)),
        lambda r, a: -np.clip(np.exp(r), 0.95, 1.2) * a,
    ),
    LossKind.reinforce: (
        LossConfig(kind=LossKind.reinforce, reinforce=ReinforceConfig(ratio_high=1.2)),
        lambda r, a: -min(np.exp(r), 1.2) * a,
    ),
}
LOG_RATIOS = (-0.3, -0.1, 0.05, 0.25, 0.35, 0.6)


def make_drifted(loss):
    """A batch, and log-probabilities that drifted from the behaviour's by `LOG_RATIOS` in turn."""
    config = LearnerConfig(loss=loss)
    _, batch = build([make_group([make_trajectory(1, reward=1.0), make_trajectory(2, reward=0.0)])], config)
    drift = torch.tensor(LOG_RATIOS).repeat(batch.tokens.num_labels)[: batch.tokens.num_labels]
    return batch, (batch.behaviour_logprob + drift).requires_grad_(), drift.tolist()


@pytest.mark.parametrize("kind", GRADIENTS)
def test_the_configured_loss_is_taken_with_its_settings(kind):
    config, gradient = GRADIENTS[kind]
    batch, logprob, drift = make_drifted(config)
    make_policy_loss(batch, config)(all_arrays(batch.tokens, logprob)).backward()
    expected = [
        w * gradient(r, a) for w, r, a in zip(batch.weight.tolist(), drift, batch.advantage.tolist(), strict=True)
    ]
    assert logprob.grad.tolist() == pytest.approx(expected, rel=1e-4, abs=1e-7)


@pytest.mark.parametrize(("clip_high", "is_free"), [(0.2, True), (0.05, False)])
def test_the_sequence_loss_is_taken_with_its_settings_and_whole_trajectories(clip_high, is_free):
    config = LossConfig(
        kind=LossKind.gspo,
        gspo=GspoConfig(clip_low=0.05, clip_high=clip_high),
        normalisation=NormalisationKind.sequence_mean,
    )
    batch, logprob, drift = make_drifted(config)
    # the second trajectory alone, as the sweeps may ask for it, then the first
    for trajectory, advantage in ((1, -0.5), (0, 0.5)):
        numbers = batch.tokens.label_numbers([trajectory])
        own = logprob.detach()[numbers].requires_grad_()
        make_policy_loss(batch, config)(all_arrays(batch.tokens, own)._replace(label_numbers=numbers)).backward()
        mean = np.mean([drift[n] for n in numbers])
        assert 1.05 < np.exp(mean) < 1.2
        is_held = advantage > 0 and not is_free
        expected = 0.0 if is_held else -np.exp(mean) * advantage / 2 / len(numbers)
        assert own.grad.tolist() == pytest.approx([expected] * len(numbers), rel=1e-4)


def test_the_metrics_count_clipped_tokens_on_each_side():
    config, _ = GRADIENTS[LossKind.ppo_clip]
    batch, logprob, drift = make_drifted(config)
    sums = policy_sums(logprob.detach(), torch.ones_like(logprob.detach()), batch, config)
    metrics = policy_metrics(join_sums(sums, lambda values: values), 0.6)
    pairs = list(zip(np.exp(drift), batch.advantage.tolist(), strict=True))
    low = [a < 0 and ratio < 0.95 for ratio, a in pairs]
    high = [ratio > (1.2 if a < 0 else 1.3) for ratio, a in pairs]
    assert metrics["policy/clipped_low/share"] == pytest.approx(np.mean(low))
    assert metrics["policy/clipped_high/share"] == pytest.approx(np.mean(high))
    assert metrics["policy/ratio/mean"] == pytest.approx(np.mean([ratio for ratio, _ in pairs]), rel=1e-5)


def test_a_rank_loads_its_own_trajectories_only():
    groups = [make_group([make_trajectory(seed, reward=seed % 2) for seed in (start, start + 1)]) for start in (0, 2)]
    selection, whole = build(groups)
    loaded: list[int] = []
    stored = [StoredGroup.of(group) for group in groups]
    watched = [replace(group, load=lambda i, g=group: (loaded.append(i), g.load(i))[1]) for group in stored]
    fresh = partial(is_fresh, version=PolicyVersion(0, 0), restored_steps=(0,), max_staleness=0)
    part = load_policy_batch(watched, selection, [1, 2], fresh, AdvantageConfig())
    assert loaded == [1, 0]
    assert part.tokens.lengths == list(selection.lengths[1:3])
    own = whole.tokens.label_numbers([1, 2])
    assert torch.equal(part.behaviour_logprob, whole.behaviour_logprob[own])
    assert torch.equal(part.advantage, whole.advantage[own])
    assert torch.equal(part.weight, whole.weight[own])
