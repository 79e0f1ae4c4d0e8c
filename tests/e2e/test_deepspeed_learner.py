"""A learner rank's life on one and two ranks: steps, checkpoints, imitation, an empty step and a failure.

The gradients and updates themselves: test_deepspeed_exactness.py.
"""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from learner_cases import QK_CLIP, make_config, make_step_groups
from rank_processes import run_ranks
from safetensors.torch import load_file

from segue.learner.failure import reproduce
from segue.model.checkpoint import import_checkpoint
from segue.model.inputs import PackedInputs
from segue.model.network import build_model
from segue.model.routing import Routing
from segue.model.state import DifferentiableState

# all ranks run before the first test
pytestmark = pytest.mark.timeout(900)
SCRIPT = Path(__file__).with_name("learner_rank.py")
# layer 0 begins the first block, where there is nothing to mix yet
UNUSED = ("model.layers.0.self_attention_res_norm.weight", "model.layers.0.self_attention_res_proj.weight")
both = pytest.mark.parametrize("num_ranks", [1, 2])
every_stage = pytest.mark.parametrize("stage", [1, 2, 3])


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("learner")
    # two ranks first: one rank takes up their checkpoint
    for num_ranks in (2, 1):
        run_ranks(SCRIPT, num_ranks, path)
    return path


def facts(folder: Path, num_ranks: int, rank: int = 0) -> dict:
    return json.loads((folder / f"facts-{num_ranks}-{rank}.json").read_text())


def weights(folder: Path, name: str, num_ranks: int) -> dict[str, torch.Tensor]:
    return load_file(folder / f"{name}-{num_ranks}.safetensors")


def largest_difference(first: dict, second: dict) -> float:
    assert first.keys() == second.keys()
    return max(float((first[name] - second[name]).abs().max()) for name in first)


@every_stage
def test_ranks_report_the_same(folder, stage):
    first, second = (facts(folder, 2, rank) for rank in (0, 1))
    for name in (f"first-{stage}", f"second-{stage}", f"resumed-{stage}"):
        for report in (first, second):
            report[name].pop("learner/tokens/per_s")
        assert first[name] == second[name]


@every_stage
def test_the_number_of_ranks_changes_neither_metrics_nor_weights(folder, stage):
    one, two = (facts(folder, num_ranks)[f"first-{stage}"] for num_ranks in (1, 2))
    assert one.keys() == two.keys()
    for name in one.keys() - {"router/bias_kl/mean_nats", "learner/tokens/per_s"}:
        # there is no critic in either
        if one[name] is None:
            assert two[name] is None, name
        elif not name.startswith(("learner/micro_steps", "critic/")):
            assert one[name] == pytest.approx(two[name], rel=1e-4, abs=1e-6), name
    first, second = (weights(folder, f"first-{stage}", num_ranks) for num_ranks in (1, 2))
    for name, tensor in first.items():
        # AdamW's first update is lr times the gradient's sign, which rounding may turn where the gradient is nothing
        is_equal = (tensor - second[name]).abs() <= 1e-5
        assert float(is_equal.double().mean()) >= 0.99, name


def first_trajectories():
    return [trajectory for group in make_step_groups(0) for trajectory in group.trajectories]


def run_again(start: dict[str, torch.Tensor]):
    """Policy's and behaviour's log-probabilities and entropy of each trajectory's trained tokens at these weights.

    Each trajectory goes alone through a fresh model, with the head written out.
    """
    model = build_model(make_config(), torch.float32)
    model.load_state_dict(start)
    logprob, entropy, behaviour = [], [], []
    for trajectory in first_trajectories():
        tokens = torch.from_numpy(trajectory.token_ids.astype(np.int64))
        state = DifferentiableState.zeros(model.config, 1, torch.float32)
        with torch.no_grad():
            log_p = torch.log_softmax(model.lm_head(model(PackedInputs.pack([tokens]), state, Routing())[0]), -1)[:-1]
        trained = trajectory.trainable[1:]
        own = log_p.gather(1, tokens[1:, None])[:, 0].numpy()[trained]
        logprob.append(own)
        entropy.append(-(log_p.exp() * log_p).sum(-1).numpy()[trained])
        behaviour.append(trajectory.behaviour_logprob[trajectory.trainable])
    return logprob, behaviour, entropy


@both
@every_stage
def test_metrics_equal_a_second_derivation(folder, stage, num_ranks):
    report = facts(folder, num_ranks)
    logprob, behaviour, entropy = run_again(weights(folder, f"start-{stage}", num_ranks))
    log_ratio = np.concatenate(logprob) - np.concatenate(behaviour)
    ratio = np.exp(log_ratio)
    outside = (ratio < 0.7) | (ratio > 1.4)
    # advantages by hand: rewards (0, 1, 0) and (1, 0, 1)
    advantage = np.repeat([-1 / 3, 2 / 3, -1 / 3, 1 / 3, -2 / 3, 1 / 3], [len(row) for row in logprob])
    loss = np.where(outside, 0.0, -ratio * advantage) + 0.005 * log_ratio**2
    found = report[f"first-{stage}"]
    assert found["policy/ratio/mean"] == pytest.approx(ratio.mean(), rel=1e-4)
    assert found["policy/clipped_low/share"] == pytest.approx((ratio < 0.7).mean(), abs=1e-9)
    assert found["policy/clipped_high/share"] == pytest.approx((ratio > 1.4).mean(), abs=1e-9)
    assert found["policy/logprob_gap/mean_nats"] == pytest.approx(np.abs(log_ratio).mean(), rel=1e-4)
    assert found["policy/logprob_gap/max_nats"] == pytest.approx(np.abs(log_ratio).max(), rel=1e-4)
    assert found["policy/kl_estimate/mean_nats"] == pytest.approx((ratio - 1 - log_ratio).mean(), rel=1e-4)
    assert found["policy/entropy/mean_nats"] == pytest.approx(np.concatenate(entropy).mean(), rel=1e-4)
    assert found["update/loss/total"] == pytest.approx(loss.mean(), rel=1e-3)
    assert found["learner/tokens/counted"] == len(log_ratio)
    assert found["learner/tokens/run"] == sum(trajectory.num_tokens for trajectory in first_trajectories())
    assert found["learner/gauge/max_nats"] == 0.0
    assert found["update/learning_rate/value"] == 1e-2
    assert found["router/violation/max"] >= found["router/violation/mean"] > 0.0
    assert 0.0 < found["router/bias_kl/mean_nats"] < 0.1


@both
@every_stage
def test_norms_of_the_gradients_parts_add_up_to_the_whole_norm(folder, stage, num_ranks):
    prefix = "update/gradient/norm/"
    for name in (f"first-{stage}", f"second-{stage}"):
        found = facts(folder, num_ranks)[name]
        parts = {key.removeprefix(prefix): value for key, value in found.items() if key.startswith(prefix)}
        assert parts.keys() == {
            "embedding", "head", "residual", "norm", "kda", "mla", "dense", "router", "experts", "shared",
        }  # fmt: skip
        assert min(parts.values()) > 0.0
        # the whole norm is summed in single precision, over the raw gradient, which is clipped to 1 afterwards
        assert math.hypot(*parts.values()) == pytest.approx(found["update/gradient/norm"], rel=1e-5)


@both
def test_a_loss_of_whole_trajectories_under_advantages_of_the_whole_step_equals_a_second_derivation(folder, num_ranks):
    logprob, behaviour, _ = run_again(weights(folder, "start-1", num_ranks))
    means = [float(np.mean(own - other)) for own, other in zip(logprob, behaviour, strict=True)]
    # rewards (0, 1, 0) and (1, 0, 1): centred by group, deviation over all six √((6/9 + 6/9) / 6) = √(2/9)
    advantages = [value / (2 / 9) ** 0.5 for value in (-1 / 3, 2 / 3, -1 / 3, 1 / 3, -2 / 3, 1 / 3)]
    terms, low, high = [], 0, 0
    for mean, advantage, own in zip(means, advantages, logprob, strict=True):
        ratio = np.exp(mean)
        terms.append(-min(ratio * advantage, np.clip(ratio, 0.95, 1.05) * advantage))
        low += len(own) * (advantage < 0 and ratio < 0.95)
        high += len(own) * (advantage > 0 and ratio > 1.05)
    num_tokens = sum(map(len, logprob))
    for rank in range(num_ranks):
        found = facts(folder, num_ranks, rank)["by-sequence"]
        assert found["update/loss/total"] == pytest.approx(np.mean(terms), rel=1e-3)
        assert found["policy/clipped_low/share"] == pytest.approx(low / num_tokens, abs=1e-9)
        assert found["policy/clipped_high/share"] == pytest.approx(high / num_tokens, abs=1e-9)
    # the bounds bite, and not everywhere
    assert 0 < low + high < num_tokens


@both
@every_stage
def test_a_resumed_run_is_the_uninterrupted_one(folder, stage, num_ranks):
    report = facts(folder, num_ranks)
    for name in report[f"second-{stage}"].keys() - {"learner/tokens/per_s"}:
        assert report[f"resumed-{stage}"][name] == report[f"second-{stage}"][name], name
    straight, resumed = (weights(folder, f"{name}-{stage}", num_ranks) for name in ("straight", "resumed"))
    for name, tensor in straight.items():
        assert torch.equal(tensor, resumed[name]), name
    # and it is not what it was loaded from
    assert largest_difference(resumed, weights(folder, f"resumed-loaded-{stage}", num_ranks)) > 1e-3


@both
@every_stage
def test_a_checkpoint_is_taken_up_by_another_stage_and_number_of_ranks(folder, stage, num_ranks):
    other = stage % 3 + 1
    loaded, saved = weights(folder, f"moved-loaded-{stage}", num_ranks), weights(folder, f"first-{other}", 2)
    for name, tensor in saved.items():
        assert torch.equal(tensor, loaded[name]), name
    moved, straight = weights(folder, f"moved-{stage}", num_ranks), weights(folder, f"straight-{other}", 2)
    for name, tensor in straight.items():
        # moments and their count came along, else the second update would be a first one, lr in size
        is_equal = (tensor - moved[name]).abs() <= 1e-4
        assert float(is_equal.double().mean()) >= 0.99, name


@both
@every_stage
def test_an_export_holds_the_published_weights(folder, stage, num_ranks):
    config, model = import_checkpoint(folder / f"export-{stage}-{num_ranks}")
    assert config == make_config()
    for name, tensor in weights(folder, f"moved-{stage}", num_ranks).items():
        assert torch.equal(model.state_dict()[name], tensor), name


def test_muon_resumes_to_the_bit_and_on_another_stage(folder):
    report = facts(folder, 2)
    for name in report["muon-second"].keys() - {"learner/tokens/per_s"}:
        assert report["muon-resumed"][name] == report["muon-second"][name], name
    first, straight, resumed, moved = (
        weights(folder, f"muon-{name}", 2) for name in ("first", "straight", "resumed", "moved")
    )
    for name, tensor in straight.items():
        for loaded in ("resumed", "moved"):
            assert torch.equal(weights(folder, f"muon-loaded-{loaded}", 2)[name], first[name]), name
        assert torch.equal(tensor, resumed[name]), name
        # a momentum that was lost would turn the update
        assert float((tensor - moved[name]).abs().max()) <= 1e-5, name
    assert largest_difference(first, straight) > 1e-3


def test_muon_updates_alike_on_one_rank_and_two(folder):
    first, second = (weights(folder, "muon-first", num_ranks) for num_ranks in (1, 2))
    for name, tensor in first.items():
        is_equal = (tensor - second[name]).abs() <= 1e-4
        assert float(is_equal.double().mean()) >= 0.99, name
    one, two = (facts(folder, num_ranks)["muon-first"] for num_ranks in (1, 2))
    for head in ("1/0", "1/1", "3/0", "3/1"):
        name = f"attention/max_logit/{head}"
        # the largest over all ranks, whoever has that trajectory
        assert one[name] == pytest.approx(two[name], rel=1e-5)


def test_clipped_heads_are_scaled_in_masters_and_published_weights(folder):
    found = facts(folder, 2)["muon-first"]
    assert found["attention/clipped/heads"] == 2.0
    first, second = ([found[f"attention/max_logit/{layer}/{head}"] for head in (0, 1)] for layer in (1, 3))
    assert min(first) > QK_CLIP > max(second)
    clipped, free = (weights(folder, f"muon-{name}", 2) for name in ("first", "free"))
    state = load_file(folder / "checkpoint-muon-2" / "state.safetensors")
    changed = set()
    for name, tensor in clipped.items():
        if not torch.equal(tensor, free[name]):
            changed.add(name)
        if f"master/{name}" in state:
            assert torch.equal(state[f"master/{name}"], tensor), name
    path = "model.layers.1.self_attn."
    assert changed == {path + "q_b_proj.weight", path + "kv_b_proj.weight"}
    # heads have 16 + 8 and 16 + 16 rows
    head = int(np.argmax(first))
    gamma = QK_CLIP / first[head]
    query, key_value = (
        (clipped[path + name] / free[path + name]).view(2, -1, 16) for name in ("q_b_proj.weight", "kv_b_proj.weight")
    )
    torch.testing.assert_close(query[head, :16], torch.full((16, 16), gamma**0.5), rtol=1e-5, atol=0)
    torch.testing.assert_close(query[head, 16:], torch.full((8, 16), gamma), rtol=1e-5, atol=0)
    torch.testing.assert_close(key_value[head, :16], torch.full((16, 16), gamma**0.5), rtol=1e-5, atol=0)
    assert bool((key_value[:, 16:] == 1.0).all())


@both
def test_in_the_critics_warm_up_the_policy_stays_and_values_learn_returns(folder, num_ranks):
    start, after = weights(folder, "critic-start", num_ranks), weights(folder, "critic-warm-up", num_ranks)
    for name, tensor in start.items():
        # the balance of the router goes on
        assert torch.equal(tensor, after[name]) == (not name.endswith("correction_bias")), name
    found = facts(folder, num_ranks)["critic-warm-up"]
    # rewards (0, 1, 0) and (1, 0, 1), all of the outcome: what each of two turns should have been told is the reward
    trajectories = first_trajectories()
    counts = np.array([[turn.end - turn.start for turn in trajectory.turns] for trajectory in trajectories])
    rewards = np.array([trajectory.reward for trajectory in trajectories])
    share = counts / counts.sum()
    assert found["critic/target/mean"] == pytest.approx(float((share.sum(1) * rewards).sum()), rel=1e-6)
    # a fresh critic says 0 everywhere, which explains nothing
    assert (found["critic/value/mean"], found["critic/explained_variance/share"]) == (0.0, 0.0)
    # before both turns and after the first the reward is to come, after the second nothing
    loss = 0.5 * float(((2 * share[:, 0] + share[:, 1]) * rewards**2).sum())
    assert found["critic/loss/mean"] == pytest.approx(loss, rel=1e-6)
    assert found["update/loss/total"] == pytest.approx(0.5 * loss, rel=1e-6)
    # AdamW's first step is its learning rate, of the head twice the model's 1e-2
    state = load_file(folder / f"checkpoint-critic-{num_ranks}" / "state.safetensors")
    assert float(state["master/value_head.bias"]) == pytest.approx(0.02, rel=1e-3)
    assert state["master/value_head.weight"].abs().tolist() == pytest.approx([0.02] * 32, rel=1e-3)
    # all segments ran twice, since advantages are whitened over the step
    assert (found["learner/micro_steps/last"], found["learner/gauge/max_nats"]) == (0, 0.0)


@both
def test_a_critic_is_resumed_with_the_policy_and_never_published(folder, num_ranks):
    report = facts(folder, num_ranks)
    for name in report["critic-second"].keys() - {"learner/tokens/per_s"}:
        assert report["critic-resumed"][name] == report["critic-second"][name], name
    assert report["critic-second"]["critic/value/mean"] > 0.0
    # values moved by more than 0.01, and what they were at the groups' first use was in the checkpoint
    assert report["critic-warm-up"]["critic/clipped/share"] == 0.0
    assert report["critic-second"]["critic/clipped/share"] > 0.0
    second, resumed = (weights(folder, f"critic-{name}", num_ranks) for name in ("second", "resumed"))
    assert largest_difference(second, resumed) == 0.0
    assert largest_difference(second, weights(folder, "critic-warm-up", num_ranks)) > 1e-3
    assert second.keys() == weights(folder, "first-1", num_ranks).keys()


def test_the_number_of_ranks_does_not_change_what_a_critic_says(folder):
    one, two = (facts(folder, num_ranks)["critic-second"] for num_ranks in (1, 2))
    for name in ("loss/mean", "explained_variance/share", "value/mean", "target/mean", "clipped/share"):
        assert one[f"critic/{name}"] == pytest.approx(two[f"critic/{name}"], rel=1e-3), name
    assert one["update/loss/total"] == pytest.approx(two["update/loss/total"], rel=1e-3)


@both
def test_imitation_learns_its_demonstrations_with_frozen_routers(folder, num_ranks):
    reports = facts(folder, num_ranks)["imitation"]
    losses = [report["update/loss/total"] for report in reports]
    # random tokens: the start knows no better than a uniform guess among 64, and one seen twelve times is remembered
    assert losses[0] == pytest.approx(math.log(64), rel=0.1)
    assert losses[-1] < losses[0] - 1.0
    # 2 updates of warm-up, 12 in all, down to a tenth
    rates = [report["update/learning_rate/value"] for report in reports]
    assert rates[:3] == pytest.approx([1e-2 / 3, 2e-2 / 3, 1e-2])
    assert rates[-1] == pytest.approx(1e-3)
    assert all(report["router/bias_kl/mean_nats"] is None for report in reports)
    start, end = weights(folder, "frozen-start", num_ranks), weights(folder, "frozen-end", num_ranks)
    for name in start:
        assert torch.equal(start[name], end[name]) == (name.endswith("correction_bias") or name in UNUSED), name


@both
def test_scores_are_the_loss_of_the_step_that_follows(folder, num_ranks):
    scores, first = facts(folder, num_ranks)["scores"], facts(folder, num_ranks)["imitation"][0]
    assert len(scores) == 4 and max(scores) < 0
    assert -sum(scores) / first["learner/tokens/counted"] == pytest.approx(first["update/loss/total"], rel=1e-5)
    # whichever rank has a trajectory
    assert scores == pytest.approx(facts(folder, 3 - num_ranks)["scores"], rel=1e-5)


@both
def test_a_step_without_advantages_changes_nothing(folder, num_ranks):
    report = facts(folder, num_ranks)["empty"]
    assert report["update/applied/count"] == 0.0
    assert (report["learner/trajectories/run"], report["learner/trajectories/skipped"]) == (0, 2)
    start, end = weights(folder, "empty-start", num_ranks), weights(folder, "empty-end", num_ranks)
    assert largest_difference(start, end) == 0.0


@both
def test_a_step_that_is_not_finite_stops_before_the_update_and_can_be_run_again(folder, num_ranks):
    start, end = weights(folder, "failed-start", num_ranks), weights(folder, "failed-end", num_ranks)
    assert largest_difference(start, end) == 0.0
    messages = [facts(folder, num_ranks, rank)["failure"] for rank in range(num_ranks)]
    kept = list((folder / f"run-{num_ranks}" / "failures").glob("*.safetensors"))
    # one rank has the bad trajectory; the other stops with it
    assert len(kept) == 1
    assert sum(str(kept[0]) in message for message in messages) == 1
    assert sum("another rank" in message for message in messages) == num_ranks - 1
    found = reproduce(kept[0], folder / f"run-{num_ranks}" / "failures" / "step-00000000-model")
    # weights, state and outputs are sound: what was put in are log-probabilities of the behaviour that are no numbers
    assert found[0] == "cotangent of logprob"
    assert any(name.startswith("gradient of ") for name in found)
