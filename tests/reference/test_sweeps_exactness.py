"""Segmented backpropagation equals whole backpropagation, in fp64 on the bare module, to 1e-9 for every parameter.

The reference runs each trajectory alone, whole, with the head written out (learner_cases.whole_step). The loss is one
that no split by segments gives. DeepSpeed and fp32: tests/e2e/test_deepspeed_exactness.py.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from learner_cases import (
    NUM_BINS,
    all_arrays,
    make_batch,
    make_config,
    make_critic,
    make_loss,
    make_model,
    sweep_step,
    whole_step,
    with_routes,
    worst_error,
)

from segue.conf.schema import (
    AdvantageConfig,
    AdvantageKind,
    Checkpointing,
    CispoConfig,
    GspoConfig,
    LearnerConfig,
    LossConfig,
    LossKind,
)
from segue.learner.batch import TokenBatch
from segue.learner.course import Course
from segue.learner.critic import make_critic_loss
from segue.learner.failure import reproduce, save_failure
from segue.learner.policy_batch import PolicyBatch, make_policy_loss, policy_loss
from segue.learner.schedule import MicroStep, RankSchedule, Segment
from segue.model.checkpoint import export_checkpoint
from segue.model.inputs import PackedInputs
from segue.model.routing import Routing
from segue.model.state import DifferentiableState
from segue.model.value_head import ValueHead

# ragged: a single token, exact multiples of 64, and one more and one less than those
LENGTHS = [300, 64, 65, 1, 200, 127, 2, 192]
WHOLE = 320


@pytest.fixture(scope="module")
def model():
    return make_model(make_config())


@pytest.fixture(scope="module")
def batch():
    return make_batch(LENGTHS)


@pytest.fixture(scope="module")
def reference(model, batch):
    return whole_step(model, batch, make_loss(batch))


def total(results, name):
    return sum(getattr(result.tokens, name) for result in results)


@pytest.mark.parametrize("checkpointing", Checkpointing)
@pytest.mark.parametrize(
    ("segment_tokens", "micro_step_tokens"), [(64, 64), (64, 200), (128, 300), (WHOLE, WHOLE), (WHOLE, 1000)]
)
def test_segmented_gradients_equal_whole_ones(
    model, batch, reference, segment_tokens, micro_step_tokens, checkpointing
):
    gradients, logprob, _ = reference
    model.checkpointing = checkpointing
    found, results = sweep_step(
        model, batch, make_loss(batch), segment_tokens=segment_tokens, micro_step_tokens=micro_step_tokens
    )
    model.checkpointing = Checkpointing.none
    error, name = worst_error(found, gradients)
    assert error <= 1e-9, name
    assert float((total(results, "logprob") - logprob).abs().max()) <= 1e-11
    # null where no segment ran twice
    assert [result.gauge for result in results] == [None if segment_tokens == WHOLE else 0.0]
    assert all(result.failure is None for result in results)


@pytest.mark.parametrize("kind", [kind for kind in LossKind if kind is not LossKind.custom])
def test_every_policy_loss_has_its_whole_gradient_by_segments(model, kind):
    tokens = make_batch([140, 64, 129, 66])
    rng = np.random.default_rng(3)
    _, logprob, _ = whole_step(model, tokens, make_loss(tokens))
    trajectory = np.repeat(np.arange(4), [len(tokens.label_numbers([i])) for i in range(4)])
    # ratios around 1 that leave each loss's bounds on both sides
    drift = rng.normal(scale=0.4, size=len(trajectory)) + np.array([0.1, -0.1, 0.02, -0.02])[trajectory]
    batch = PolicyBatch(
        tokens=tokens,
        behaviour_logprob=logprob - torch.from_numpy(drift),
        advantage=torch.tensor([1.0, -0.5, -2.0, 0.7], dtype=torch.float64)[trajectory],
        weight=torch.from_numpy(np.array([0.01, 0.02, 0.005, 0.03])[trajectory]),
        trajectory=torch.from_numpy(trajectory),
    )
    config = LossConfig(
        kind=kind, gspo=GspoConfig(clip_low=0.05, clip_high=0.05), cispo=CispoConfig(ratio_low=0.8, ratio_high=1.2)
    )
    whole = policy_loss(batch, config, logprob, torch.arange(len(logprob)))
    assert bool(whole.is_high_J.any())
    assert not bool(whole.is_high_J.all())
    loss_fn = make_policy_loss(batch, config)
    gradients, _, _ = whole_step(model, tokens, loss_fn)
    found, results = sweep_step(model, tokens, loss_fn, segment_tokens=64, micro_step_tokens=128, num_ranks=2)
    error, name = worst_error(found, gradients)
    assert error <= 1e-9, name
    assert sum(result.loss for result in results) == pytest.approx(whole.loss.item(), rel=1e-9)


@pytest.fixture(scope="module")
def judged():
    """A short ragged batch, of which one trajectory has no label."""
    return make_batch([200, 64, 1, 65, 130])


@pytest.fixture(scope="module")
def judged_reference(model, judged):
    return whole_step(model, judged, make_loss(judged), make_critic(model))


@pytest.mark.parametrize(
    ("segment_tokens", "micro_step_tokens", "num_ranks", "sweep_all"),
    [(64, 64, 1, False), (64, 200, 2, True), (256, 500, 3, True)],
)
def test_values_send_their_whole_gradient_through_the_segments(
    model, judged, judged_reference, segment_tokens, micro_step_tokens, num_ranks, sweep_all
):
    # a loss that multiplies each trajectory's values by its log-probabilities
    gradients, logprob, _ = judged_reference
    found, results = sweep_step(
        model,
        judged,
        make_loss(judged),
        segment_tokens=segment_tokens,
        micro_step_tokens=micro_step_tokens,
        num_ranks=num_ranks,
        sweep_all=sweep_all,
        critic=make_critic(model),
    )
    assert {"value_head.weight", "value_head.bias"} < gradients.keys()
    error, name = worst_error(found, gradients)
    assert error <= 1e-9, name
    assert float((total(results, "logprob") - logprob).abs().max()) <= 1e-11
    assert {result.gauge for result in results} == {0.0}


@pytest.mark.parametrize("whiten", [True, False])
def test_the_critics_loss_has_its_whole_gradient_by_segments(model, whiten):
    # ranks run in turn here, so that only one can be told of the others' sums
    tokens, num_ranks = make_batch([140, 64, 129]), 1 if whiten else 2
    rng = np.random.default_rng(4)
    counts = [len(tokens.label_numbers([i])) for i in range(3)]
    borders = list(zip(tokens.offsets[:-1], tokens.offsets[1:], strict=True))
    courses = tuple(
        Course(
            before=np.flatnonzero(tokens.is_label[start:end]) - 1,
            reward=rng.normal(size=count),
            after=np.array([count // 2]),
            next=np.array([count // 2 + 1]),
            end=end - start - 1 if number == 1 else None,
            of_label=np.arange(count),
        )
        for number, ((start, end), count) in enumerate(zip(borders, counts, strict=True))
    )
    batch = PolicyBatch(
        tokens=tokens,
        behaviour_logprob=torch.from_numpy(rng.uniform(-5.0, -3.0, sum(counts))),
        advantage=torch.zeros(sum(counts), dtype=torch.float64),
        weight=torch.from_numpy(rng.uniform(0.01, 0.03, sum(counts))),
        trajectory=torch.from_numpy(np.repeat(np.arange(3), counts)),
        courses=courses,
    )
    config = LearnerConfig(
        advantage=AdvantageConfig(kind=AdvantageKind.token_gae, whiten=whiten), loss=LossConfig(kind=LossKind.ppo_clip)
    )
    loss_fn = make_critic_loss(batch, config, lambda sums: sums, is_warming_up=False)
    critic = make_critic(model)
    gradients, _, _ = whole_step(model, tokens, loss_fn, critic)
    found, results = sweep_step(
        model,
        tokens,
        loss_fn,
        segment_tokens=64,
        micro_step_tokens=128,
        num_ranks=num_ranks,
        sweep_all=config.advantage.needs_whole_step,
        critic=critic,
    )
    error, name = worst_error(found, gradients)
    assert error <= 1e-9, name
    assert {result.gauge for result in results} == {0.0}


@torch.no_grad()
def test_values_are_those_of_whole_trajectories_run_alone(model, judged):
    critic = make_critic(model)
    with torch.enable_grad():
        _, results = sweep_step(
            model, judged, make_loss(judged), segment_tokens=64, micro_step_tokens=200, num_ranks=2, critic=critic
        )
    found = total(results, "value")
    for start, end in zip(judged.offsets[:-1], judged.offsets[1:], strict=True):
        inputs = PackedInputs.pack([torch.from_numpy(judged.token_ids[start:end])])
        hidden, _ = model(inputs, DifferentiableState.zeros(model.config, 1, torch.float64), Routing())
        wanted = (hidden * critic.weight).sum(1) + critic.bias
        assert float((found[start:end] - wanted).abs().max()) <= 1e-11


def test_values_may_train_the_critic_alone(model, judged):
    def of_values(arrays):
        return (arrays.value - 1.0).square().sum()

    critic = make_critic(model)
    both, alone = (
        sweep_step(
            model,
            judged,
            of_values,
            segment_tokens=64,
            micro_step_tokens=128,
            critic=critic,
            value_reaches_model=value_reaches_model,
        )[0]
        for value_reaches_model in (True, False)
    )
    for name, gradient in alone.items():
        if name.startswith("value_head"):
            assert torch.equal(gradient, both[name])
        else:
            # exactly: the optimiser must not move what the policy is made of
            assert not gradient.any(), name
    assert both["model.embed_tokens.weight"].any()


def test_a_fresh_critic_says_nothing_and_sends_nothing(model, judged):
    fresh = ValueHead(model.config.hidden_size, torch.float64)
    found, results = sweep_step(
        model, judged, lambda a: (a.value - 1.0).square().sum(), segment_tokens=64, micro_step_tokens=128, critic=fresh
    )
    assert not results[0].tokens.value.any()
    # (v - 1)² at 0 has the slope -2, for each of the tokens
    assert float(found.pop("value_head.bias")) == -2.0 * judged.num_tokens
    assert found.pop("value_head.weight").all()
    assert not any(gradient.any() for gradient in found.values())


def test_the_carried_gradient_matters_here(model, batch, reference):
    # the same segments with states cut off from the graph: what a truncating learner would call its gradient
    model.zero_grad()
    logprobs, entropies = [], []
    for start, end in zip(batch.offsets[:-1], batch.offsets[1:], strict=True):
        tokens = torch.from_numpy(batch.token_ids[start:end])
        labels = torch.from_numpy(batch.is_label[start:end])
        temperature = torch.from_numpy(batch.temperature[start:end])
        state, hidden = DifferentiableState.zeros(model.config, 1, torch.float64), []
        for begin in range(0, len(tokens), 64):
            out, new = model(PackedInputs.pack([tokens[begin : begin + 64]]), state, Routing())
            hidden.append(out)
            whole = state.extended_by(new)
            state = DifferentiableState.unflatten(model.config, [tensor.detach() for tensor in whole.flatten()])
        log_p = torch.log_softmax(model.lm_head(torch.cat(hidden))[:-1] / temperature[1:, None].double(), -1)
        logprobs.append(log_p.gather(1, tokens[1:, None])[labels[1:], 0])
        entropies.append(-(log_p.exp() * log_p).sum(-1)[labels[1:]])
    logprob = torch.cat(logprobs)
    make_loss(batch)(all_arrays(batch, logprob, torch.cat(entropies))).backward()
    truncated = {name: p.grad if p.grad is not None else torch.zeros_like(p) for name, p in model.named_parameters()}
    truncated = {name: grad.clone() for name, grad in truncated.items()}
    model.zero_grad()
    assert torch.allclose(logprob.detach(), reference[1])
    error, _ = worst_error(truncated, reference[0])
    assert error > 0.1


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
@pytest.mark.parametrize("sweep_all", [False, True])
def test_ranks_and_sweep_all_change_nothing(model, batch, reference, num_ranks, sweep_all):
    gradients, logprob, _ = reference
    found, results = sweep_step(
        model,
        batch,
        make_loss(batch),
        segment_tokens=64,
        micro_step_tokens=128,
        num_ranks=num_ranks,
        sweep_all=sweep_all,
    )
    error, name = worst_error(found, gradients)
    assert error <= 1e-9, name
    assert float((total(results, "logprob") - logprob).abs().max()) <= 1e-11
    loss = make_loss(batch)(all_arrays(batch, logprob, total(results, "entropy")))
    assert sum(result.loss for result in results) == pytest.approx(float(loss), rel=1e-10)


def test_packing_order_changes_nothing(model, batch, reference):
    order = [5, 2, 7, 0, 3, 6, 1, 4]
    cut = [slice(start, end) for start, end in zip(batch.offsets[:-1], batch.offsets[1:], strict=True)]
    shuffled = TokenBatch.pack(
        [batch.token_ids[cut[i]] for i in order],
        [batch.is_label[cut[i]] for i in order],
        [batch.temperature[cut[i]] for i in order],
    )
    # the loss knows labels by the numbers of the first order
    numbers = torch.cat([batch.label_numbers([i]) for i in order])
    loss = make_loss(batch)
    found, results = sweep_step(
        model,
        shuffled,
        lambda arrays: loss(arrays._replace(label_numbers=numbers[arrays.label_numbers])),
        segment_tokens=64,
        micro_step_tokens=200,
    )
    error, name = worst_error(found, reference[0])
    assert error <= 1e-9, name
    assert float((results[0].tokens.logprob - reference[1][numbers]).abs().max()) <= 1e-11


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_router_statistics_count_each_token_once(model, batch, reference, num_ranks):
    _, results = sweep_step(
        model, batch, make_loss(batch), segment_tokens=64, micro_step_tokens=128, num_ranks=num_ranks
    )
    histogram, load = total(results, "route_histogram"), total(results, "expert_load")
    # every expert has one margin a token
    assert (histogram.sum(2) == sum(LENGTHS)).all()
    assert histogram.shape[2] == NUM_BINS
    routes = reference[2]
    for layer in range(load.shape[0]):
        assert load[layer].tolist() == routes[:, layer].flatten().bincount(minlength=load.shape[1]).tolist()
    _, whole = sweep_step(model, batch, make_loss(batch), segment_tokens=WHOLE, micro_step_tokens=1000)
    assert torch.equal(whole[0].tokens.expert_load, load)
    # margins near the border of a bin may round to the other side
    assert int((whole[0].tokens.route_histogram - histogram).abs().sum()) <= 4


def test_experts_given_with_the_batch_are_taken_in_both_runs(model, batch):
    routes = torch.from_numpy(np.random.default_rng(1).permuted(np.tile(np.arange(8), (sum(LENGTHS), 3, 1)), axis=2))
    given = with_routes(batch, routes[:, :, :2].contiguous())
    gradients, logprob, taken = whole_step(model, given, make_loss(batch))
    assert torch.equal(taken, routes[:, :, :2])
    found, results = sweep_step(model, given, make_loss(batch), segment_tokens=64, micro_step_tokens=128)
    error, name = worst_error(found, gradients)
    assert error <= 1e-9, name
    assert float((results[0].tokens.logprob - logprob).abs().max()) <= 1e-11
    assert results[0].gauge == 0.0


def test_both_runs_are_bit_equal_in_fp32_and_bf16_too():
    # at least four segments a trajectory, packed
    batch = make_batch([300, 256, 270, 64])
    for dtype in (torch.float32, torch.bfloat16):
        _, results = sweep_step(
            make_model(make_config(), dtype), batch, make_loss(batch), segment_tokens=64, micro_step_tokens=200
        )
        assert results[0].gauge == 0.0


class Shaking(torch.nn.Module):
    """Wraps a module; from its second run on, log-probabilities move and the router's scores turn over."""

    def __init__(self, module):
        super().__init__()
        self.module = module
        self.num_rebuilds = 0

    def forward(self, *inputs):
        if torch.is_grad_enabled() and not inputs[5]:
            # a rebuild: every expert's bias changes sign, so a router left to itself chooses others
            self.num_rebuilds += 1
            biases = list(self.module.buffers())
            for bias in biases:
                bias.mul_(-1.0)
            outputs = self.module(*inputs)
            for bias in biases:
                bias.mul_(-1.0)
            return outputs
        return self.module(*inputs)


@pytest.mark.parametrize("is_exact", [True, False])
def test_an_inexact_backend_replays_the_first_runs_experts(model, batch, reference, is_exact):
    found, results = sweep_step(
        model,
        batch,
        make_loss(batch),
        segment_tokens=64,
        micro_step_tokens=128,
        is_exact=is_exact,
        wrap=Shaking,
    )
    error, _ = worst_error(found, reference[0])
    if is_exact:
        # the gauge sees it, and the gradients are wrong
        assert results[0].gauge > 1e-3
        assert error > 1e-3
    else:
        assert results[0].gauge == 0.0
        assert error <= 1e-9


class Breaking(torch.nn.Module):
    """Wraps a module; the first rebuild gives NaN, the others are right."""

    def __init__(self, module):
        super().__init__()
        self.module = module
        self.is_broken = False

    def forward(self, *inputs):
        logprob, *others = self.module(*inputs)
        if torch.is_grad_enabled() and not inputs[5] and not self.is_broken:
            self.is_broken = True
            logprob = logprob * float("nan")
        return logprob, *others


def test_a_rebuild_that_is_not_a_number_is_no_equal_run(model, batch):
    _, results = sweep_step(model, batch, make_loss(batch), segment_tokens=64, micro_step_tokens=128, wrap=Breaking)
    assert np.isnan(results[0].gauge)


class Recording(torch.nn.Module):
    """Wraps a module and notes each run: tokens, labels, grad mode, whether it counts."""

    def __init__(self, module):
        super().__init__()
        self.module = module
        self.runs = []

    def forward(self, *inputs):
        self.runs.append((len(inputs[0]), len(inputs[1]), torch.is_grad_enabled(), inputs[5]))
        return self.module(*inputs)


def test_one_segment_trajectories_run_once_and_swept_segments_twice(model):
    batch = make_batch([50, 60, 130])
    wrapped = []

    def wrap(module):
        wrapped.append(Recording(module))
        return wrapped[0]

    sweep_step(model, batch, make_loss(batch), segment_tokens=64, micro_step_tokens=64, wrap=wrap)
    runs = [(tokens, grad, counts) for tokens, _, grad, counts in wrapped[0].runs]
    swept, rebuilt = (64, False, True), (64, True, False)
    # 130 = 64 + 64 + 2; the last segments are of 2, 50 and 60 tokens and fit in pairs (60 + 2, 50)
    assert runs == [swept, swept, (62, True, True), (50, True, True), rebuilt, rebuilt]


@pytest.mark.parametrize("has_critic", [False, True])
def test_a_dummy_adds_nothing(model, has_critic):
    batch, critic = make_batch([200, 64]), make_critic(model) if has_critic else None
    plain, results = sweep_step(model, batch, make_loss(batch), segment_tokens=64, micro_step_tokens=64, critic=critic)

    def with_dummies(rank: RankSchedule) -> RankSchedule:
        dummy = MicroStep(segments=())
        return replace(rank, swept=(*rank.swept, dummy, dummy), last=(*rank.last, dummy))

    found, more = sweep_step(
        model,
        batch,
        make_loss(batch),
        segment_tokens=64,
        micro_step_tokens=64,
        critic=critic,
        reschedule=with_dummies,
    )
    for name, gradient in plain.items():
        assert torch.equal(found[name], gradient), name
    assert torch.equal(more[0].tokens.logprob, results[0].tokens.logprob)
    assert torch.equal(more[0].tokens.value, results[0].tokens.value)
    assert torch.equal(more[0].tokens.route_histogram, results[0].tokens.route_histogram)
    assert torch.equal(more[0].tokens.expert_load, results[0].tokens.expert_load)
    assert more[0].loss == results[0].loss


def test_a_trajectory_does_not_see_its_neighbours(model):
    # the loss of the first by the embeddings of tokens that only the second uses is exactly zero
    rng = np.random.default_rng(0)
    first, second = rng.integers(0, 32, 200), rng.integers(32, 64, 150)
    labels = [np.append(False, np.ones(199, bool)), np.append(False, np.ones(149, bool))]
    ones = [np.ones(200, np.float32), np.ones(150, np.float32)]
    batch = TokenBatch.pack([first, second], labels, ones)
    found, _ = sweep_step(
        model,
        batch,
        lambda arrays: (arrays.logprob * (arrays.label_numbers < 199)).sum(),
        segment_tokens=64,
        micro_step_tokens=128,
    )
    embedding = found["model.embed_tokens.weight"]
    assert (embedding[32:] == 0.0).all()
    assert embedding[:32].abs().sum(1).min() > 0.0


@pytest.mark.parametrize("poison", ["loss", "size", "weight", "embedding"])
def test_the_first_micro_step_that_is_not_finite_is_kept(poison):
    model, batch = make_model(make_config()), make_batch([200, 64])
    loss = make_loss(batch)
    if poison in ("loss", "size"):
        # a factor of 1e18 leaves everything finite, but for squares in float32
        factor = float("nan") if poison == "loss" else 1e18

        def bad_loss(arrays):
            return loss(arrays) * (factor if 100 in arrays.label_numbers else 1.0)

        _, results = sweep_step(model, batch, bad_loss, segment_tokens=64, micro_step_tokens=64)
        # the loss of the first trajectory, all of whose labels are taken with its last segment
        wanted = Segment(trajectory=0, start=192, end=200)
    else:
        with torch.no_grad():
            if poison == "weight":
                model.model.norm.weight[0] = float("inf")
            else:
                # reaches every router behind the first layer
                model.model.embed_tokens.weight[batch.token_ids[200]] = float("nan")
        _, results = sweep_step(model, batch, loss, segment_tokens=64, micro_step_tokens=64)
        wanted = Segment(trajectory=1, start=0, end=64)
    failure = results[0].failure
    assert wanted in failure.step.segments
    assert failure.inputs.token_ids.tolist() == batch.inputs(failure.step).token_ids.tolist()


def test_the_kept_micro_step_shows_a_weight_that_is_not_finite(tmp_path):
    model, batch = make_model(make_config(), torch.float32), make_batch([64])
    with torch.no_grad():
        model.model.norm.weight[0] = float("inf")
    _, results = sweep_step(model, batch, make_loss(batch), segment_tokens=64, micro_step_tokens=64)
    save_failure(results[0].failure, tmp_path / "micro.safetensors", {})
    export_checkpoint(model, tmp_path / "model")
    assert reproduce(tmp_path / "micro.safetensors", tmp_path / "model")[0] == "weight model.norm.weight"


def test_the_kept_micro_step_shows_a_critic_that_is_not_finite(tmp_path):
    model, batch = make_model(make_config(), torch.float32), make_batch([200])
    critic = make_critic(model)
    with torch.no_grad():
        critic.bias.fill_(float("nan"))
    # found where the loss is taken; the swept segments' states are sound
    _, results = sweep_step(model, batch, make_loss(batch), segment_tokens=64, micro_step_tokens=64, critic=critic)
    save_failure(results[0].failure, tmp_path / "micro.safetensors", critic.state_dict())
    export_checkpoint(model, tmp_path / "model")
    found = reproduce(tmp_path / "micro.safetensors", tmp_path / "model")
    assert found[:2] == ["weight value_head.bias", "value"]
    assert "gradient of value_head.weight" in found
