"""The critic's loss and metrics, against loops over trajectories, turns and tokens.

The estimate itself is in tests/reference/test_gae.py, the places of values in test_course.py, the gradient through
segments in tests/reference/test_sweeps_exactness.py.
"""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from learner_cases import all_arrays, make_group, make_trajectory

from segue.conf.schema import AdvantageConfig, AdvantageKind, CriticConfig, LearnerConfig, LossConfig, LossKind
from segue.learner.course import make_course, most_places
from segue.learner.critic import critic_metrics, critic_sums, judge, make_critic_loss
from segue.learner.measure import join_sums
from segue.learner.policy_batch import load_policy_batch, policy_loss
from segue.learner.selection import select_trajectories
from segue.learner.staleness import is_fresh
from segue.rollout.stored_group import StoredGroup, TrajectorySummary
from segue.rollout.trajectory import Outcome, PolicyVersion

KINDS = (AdvantageKind.turn_gae, AdvantageKind.token_gae)
DISCOUNT, DECAY, TARGET_DECAY, COEFFICIENT = 0.9, 0.8, 0.5, 0.3


def make_config(kind, **advantage):
    return LearnerConfig(
        advantage=AdvantageConfig(kind=kind, discount=DISCOUNT, gae_lambda=DECAY, **advantage),
        critic=CriticConfig(target_lambda=TARGET_DECAY, coefficient=COEFFICIENT),
        loss=LossConfig(kind=LossKind.reinforce),
    )


def earning(seed, *rewards, outcome=Outcome.success, total=0.0):
    """Two turns that earned these."""
    plain = make_trajectory(seed, reward=total, outcome=outcome)
    turns = [replace(turn, reward_terms={"process": r}) for turn, r in zip(plain.turns, rewards, strict=True)]
    return replace(plain, turns=tuple(turns))


TRAJECTORIES = (
    earning(1, 0.5, 0.25, total=1.0),
    earning(2, 0.0, 1.0, outcome=Outcome.truncated_turns),
    # equal rewards: a group mean would teach nothing of these
    earning(3, 1.0, 0.0),
    earning(4, 0.0, 1.0, outcome=Outcome.failure),
)


def make_step(config):
    """All trajectories' batch, log-probabilities a little off, and random values in double precision."""
    fresh = partial(is_fresh, version=PolicyVersion(0, 0), restored_steps=(0,), max_staleness=0)
    groups = [StoredGroup.of(make_group(TRAJECTORIES[:2])), StoredGroup.of(make_group(TRAJECTORIES[2:]))]
    selection = select_trajectories(groups, config, fresh)
    batch = load_policy_batch(groups, selection, range(len(selection.lengths)), fresh, config.advantage)
    rng = np.random.default_rng(0)
    drift = torch.from_numpy(rng.normal(scale=0.1, size=batch.tokens.num_labels))
    value = torch.from_numpy(rng.normal(size=batch.tokens.num_tokens))
    return batch, all_arrays(batch.tokens, batch.behaviour_logprob + drift, value=value)


def derive(kind, values):
    """Advantage of each trainable token, and (place, target, weight in tokens) of each value that is learnt.

    Written from the definition: sums of surprises ahead, for each decision of each trajectory.
    """
    advantages, learnt, start = [], [], 0
    for trajectory in TRAJECTORIES:
        own = values[start : start + trajectory.num_tokens]
        spans = [(turn.start, turn.end) for turn in trajectory.turns]
        earned = [turn.reward_terms["process"] for turn in trajectory.turns]
        earned[-1] += sum(trajectory.outcome_terms.values())
        if kind is AdvantageKind.token_gae:
            earned = [
                r if t == end - 1 else 0.0 for (s, end), r in zip(spans, earned, strict=True) for t in range(s, end)
            ]
            spans = [(t, t + 1) for s, end in spans for t in range(s, end)]
        is_cut = trajectory.outcome is Outcome.truncated_turns
        expected = [own[first - 1] for first, _ in spans] + [own[-1] if is_cut else 0.0]
        surprises = [r + DISCOUNT * expected[k + 1] - expected[k] for k, r in enumerate(earned)]

        def ahead(k, decay, surprises=surprises):
            return sum((DISCOUNT * decay) ** (j - k) * surprises[j] for j in range(k, len(surprises)))

        targets = [expected[k] + ahead(k, TARGET_DECAY) for k in range(len(spans))] + [0.0]
        for k, (first, end) in enumerate(spans):
            advantages += [ahead(k, DECAY)] * (end - first)
            learnt.append((start + first - 1, targets[k], end - first))
            is_turns_end = end in [turn.end for turn in trajectory.turns]
            if is_turns_end and not (is_cut and k == len(spans) - 1):
                learnt.append((start + end - 1, targets[k + 1], end - first))
        start += trajectory.num_tokens
    return np.array(advantages), learnt


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("whiten", [True, False])
def test_the_loss_has_the_gradient_of_its_definition(kind, whiten):
    config = make_config(kind, whiten=whiten)
    batch, arrays = make_step(config)
    assert len(batch.tokens.lengths) == len(TRAJECTORIES)
    logprob, value = (tensor.clone().requires_grad_() for tensor in (arrays.logprob, arrays.value))
    loss_fn = make_critic_loss(batch, config, lambda sums: sums, is_warming_up=False)
    loss_fn(arrays._replace(logprob=logprob, value=value)).backward()

    advantages, learnt = derive(kind, arrays.value.numpy())
    if whiten:
        advantages = (advantages - advantages.mean()) / (advantages.std() + config.advantage.std_epsilon)
    ratio = (arrays.logprob - batch.behaviour_logprob).exp().numpy()
    wanted = -ratio * advantages / len(advantages)
    assert logprob.grad.numpy() == pytest.approx(wanted, rel=1e-4, abs=1e-9)
    # advantages are constants: what reaches the values is their own loss alone
    slope = np.zeros(batch.tokens.num_tokens)
    for place, target, num_tokens in learnt:
        slope[place] += COEFFICIENT * num_tokens / len(advantages) * (float(arrays.value[place]) - target)
    assert value.grad.numpy() == pytest.approx(slope, rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("loss", [LossKind.masked_ratio, LossKind.ppo_clip, LossKind.cispo])
def test_every_loss_of_tokens_takes_a_critics_advantages(kind, loss):
    config = make_config(kind)
    config.loss.kind = loss
    batch, arrays = make_step(config)
    logprob, again = (arrays.logprob.clone().requires_grad_() for _ in range(2))
    make_critic_loss(batch, config, lambda sums: sums, is_warming_up=False)(arrays._replace(logprob=logprob)).backward()
    advantages, _ = derive(kind, arrays.value.numpy())
    given = replace(batch, advantage=torch.from_numpy(advantages))
    policy_loss(given, config.loss, again, arrays.label_numbers).loss.backward()
    assert again.grad.any()
    assert logprob.grad.numpy() == pytest.approx(again.grad.numpy(), rel=1e-4, abs=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_in_the_warm_up_only_values_learn(kind):
    config = make_config(kind)
    batch, arrays = make_step(config)
    gradients = []
    for is_warming_up in (True, False):
        logprob, value = (tensor.clone().requires_grad_() for tensor in (arrays.logprob, arrays.value))
        loss_fn = make_critic_loss(batch, config, lambda sums: sums, is_warming_up=is_warming_up)
        loss_fn(arrays._replace(logprob=logprob, value=value)).backward()
        gradients.append((logprob.grad, value.grad))
    (no_logprob, alone), (with_logprob, beside) = gradients
    assert no_logprob is None
    assert with_logprob.any()
    assert torch.equal(alone, beside)


@pytest.mark.parametrize("kind", KINDS)
def test_values_of_a_second_use_are_clipped_around_those_of_the_first(kind):
    config = make_config(kind)
    config.critic.clip = 0.2
    batch, arrays = make_step(config)
    rng = np.random.default_rng(1)
    # the second trajectory is new; what is remembered may be longer than needed
    first = [torch.from_numpy(rng.normal(size=len(course.places) + 2)).float() for course in batch.courses]
    remembered = replace(batch, first_values=(first[0], None, *first[2:]))
    value = arrays.value.clone().requires_grad_()
    loss_fn = make_critic_loss(remembered, config, lambda sums: sums, is_warming_up=True)
    loss_fn(arrays._replace(value=value)).backward()

    judgement = judge(batch, arrays, config, lambda sums: sums)
    old, start, num_held = [], 0, 0
    for number, course in enumerate(batch.courses):
        now = arrays.value[start : start + batch.tokens.lengths[number]][course.places]
        old.append(now if number == 1 else first[number][: len(now)].double())
        start += batch.tokens.lengths[number]
    slope = np.zeros(batch.tokens.num_tokens)
    rows = zip(judgement.place_P.tolist(), judgement.target_P, judgement.weight_P, torch.cat(old), strict=True)
    for place, target, weight, before in rows:
        now = arrays.value[place]
        held = before + (now - before).clip(-0.2, 0.2)
        is_held = (held - target) ** 2 > (now - target) ** 2
        slope[place] += 0.0 if is_held else COEFFICIENT * float(weight * (now - target))
        num_held += int(is_held)
    assert 0 < num_held < len(judgement.place_P)
    assert value.grad.numpy() == pytest.approx(slope, rel=1e-5, abs=1e-9)
    # a first use has nothing to be clipped by
    sums = critic_sums(judgement, arrays.value, config.critic)
    assert critic_metrics(join_sums(sums, lambda sums: sums))["critic/clipped/share"] == 0.0
    again = critic_sums(judge(remembered, arrays, config, lambda sums: sums), arrays.value, config.critic)
    assert 0.0 < critic_metrics(join_sums(again, lambda sums: sums))["critic/clipped/share"] < 1.0


@pytest.mark.parametrize("kind", KINDS)
def test_places_are_no_more_than_a_summary_tells(kind):
    for trajectory in TRAJECTORIES:
        course = make_course(trajectory, trajectory.trainable, kind)
        assert len(course.places) <= most_places(TrajectorySummary.of(trajectory), kind)


@pytest.mark.parametrize("kind", KINDS)
def test_without_whitening_the_loss_is_a_sum_over_trajectories(kind):
    config = make_config(kind, whiten=False)
    batch, arrays = make_step(config)

    def refuse(sums):
        raise AssertionError("nothing of other trajectories is needed")

    loss_fn = make_critic_loss(batch, config, refuse, is_warming_up=False)
    parts = []
    for trajectories in ([2], [0, 3], [1], []):
        labels, tokens = batch.tokens.label_numbers(trajectories), batch.tokens.token_numbers(trajectories)
        own = arrays._replace(
            logprob=arrays.logprob[labels],
            entropy=arrays.entropy[labels],
            value=arrays.value[tokens],
            label_numbers=labels,
            token_numbers=tokens,
        )
        parts.append(float(loss_fn(own)))
    assert parts[-1] == 0.0
    assert sum(parts) == pytest.approx(float(loss_fn(arrays)), rel=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_metrics_equal_a_second_derivation(kind):
    config = make_config(kind)
    batch, arrays = make_step(config)
    judgement = judge(batch, arrays, config, lambda sums: sums)
    found = critic_metrics(join_sums(critic_sums(judgement, arrays.value, config.critic), lambda sums: sums))
    _, learnt = derive(kind, arrays.value.numpy())
    num_tokens = sum(trajectory.num_trainable for trajectory in TRAJECTORIES)
    squares = [n / num_tokens * (float(arrays.value[place]) - target) ** 2 for place, target, n in learnt]
    assert found["critic/loss/mean"] == pytest.approx(sum(squares) / 2, rel=1e-4)
    # over decisions only: the ends of turns would count rewards twice
    starts = np.cumsum([0, *(trajectory.num_tokens for trajectory in TRAJECTORIES)])
    ends = {start + turn.end - 1 for start, t in zip(starts, TRAJECTORIES, strict=False) for turn in t.turns}
    rows = np.array([(float(arrays.value[p]), target, n) for p, target, n in learnt if p not in ends])
    value, target, weight = rows.T
    mean = partial(np.average, weights=weight)
    assert found["critic/value/mean"] == pytest.approx(mean(value), rel=1e-4)
    assert found["critic/target/mean"] == pytest.approx(mean(target), rel=1e-4)
    error = target - value
    unexplained = mean((error - mean(error)) ** 2) / mean((target - mean(target)) ** 2)
    assert found["critic/explained_variance/share"] == pytest.approx(1.0 - unexplained, rel=1e-4)


def test_equal_targets_leave_nothing_to_explain():
    sums = {"loss": 0.1, "weight": 0.5, "value": 0.1, "target": 0.35, "target_square": 0.5 * 0.7**2}
    sums |= {"error": 0.25, "error_square": 0.2, "held": 0.0}
    assert critic_metrics(sums)["critic/explained_variance/share"] is None
    assert critic_metrics(sums)["critic/target/mean"] == pytest.approx(0.7)
    assert set(critic_metrics(None).values()) == {None}


def test_every_scored_trajectory_is_run_alone_too():
    config = make_config(AdvantageKind.turn_gae)
    fresh = partial(is_fresh, version=PolicyVersion(0, 0), restored_steps=(0,), max_staleness=0)
    broken = make_trajectory(5, reward=0.0, outcome=Outcome.infrastructure_error, outcome_terms={})
    groups = [StoredGroup.of(make_group([t])) for t in (TRAJECTORIES[2], broken)]
    selection = select_trajectories(groups, config, fresh)
    assert selection.members == ((0, 0),)
    assert (selection.num_skipped, selection.num_infrastructure) == (0, 1)
