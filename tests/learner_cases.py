"""Small models, ragged trajectories and whole-sequence gradients for the learner's tests.

Weights decay slowly (alpha of at least 0.998 a token): with fast decay a state that leaks, or is lost, hides.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from segue.conf.model_config import LinearAttnConfig, ModelConfig
from segue.learner.bare_backend import BareBackend
from segue.learner.batch import TokenBatch
from segue.learner.schedule import RankSchedule, SegmentSchedule
from segue.learner.segment_module import SegmentModule, state_layout
from segue.learner.sweeps import LossFunction, SweepResult, TrajectoryArrays, run_sweeps
from segue.model.inputs import PackedInputs
from segue.model.network import SegueModel, build_model
from segue.model.routing import Routing
from segue.model.state import DifferentiableState
from segue.model.value_head import ValueHead
from segue.rollout.trajectory import Group, Outcome, PolicyVersion, Source, Trajectory, Turn

NUM_BINS = 64
QK_CLIP = 4.2
"""Both heads of layer 1 score beyond it on `make_step_groups(0)` with weights from seed 0, those of layer 3 do not."""


def make_config(num_hidden_layers: int = 4) -> ModelConfig:
    """KDA and MLA in turn, a dense layer and then MoE layers, residual blocks of two; about 70,000 parameters."""
    return ModelConfig(
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=num_hidden_layers,
        num_attention_heads=2,
        intermediate_size=64,
        q_lora_rank=16,
        kv_lora_rank=16,
        qk_nope_head_dim=16,
        qk_rope_head_dim=8,
        v_head_dim=16,
        linear_attn_config=LinearAttnConfig(
            full_attn_layers=list(range(2, num_hidden_layers + 1, 2)), num_heads=2, head_dim=32
        ),
        num_experts=8,
        num_experts_per_token=2,
        moe_intermediate_size=16,
        routed_expert_hidden_size=16,
    )


def make_model(config: ModelConfig, dtype: torch.dtype = torch.float64, seed: int = 0) -> SegueModel:
    """Slow decay, residual queries and router biases away from their start at zero, one expert that no token takes."""
    generator = torch.Generator().manual_seed(seed)
    model = build_model(config, dtype)
    model.init_weights(generator)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if name.endswith("A_log"):
                parameter.copy_(0.1 * noise)
            elif name.endswith("dt_bias"):
                parameter.copy_(-9.0 + noise.clamp(-1.0, 1.0))
            elif name.endswith("f_b_proj.weight"):
                parameter.mul_(0.1)
            elif name.endswith("res_proj.weight"):
                parameter.copy_(0.03 * noise)
            elif name.endswith("lm_head.weight"):
                parameter.copy_(0.3 * noise)
            elif name.endswith(("o_proj.weight", "down_proj.weight", "up_proj.weight")):
                # a quieter residual loses fewer digits, so that fp32 bounds can be tight
                parameter.mul_(0.5)
        for buffer in model.buffers():
            buffer.copy_(0.1 * torch.randn(buffer.shape, generator=generator))
        # a score is below 1, so the first expert of the first MoE layer is never among the chosen
        next(model.buffers())[0] = -2.0
    return model


def make_batch(lengths: Sequence[int], vocab_size: int = 64, seed: int = 0) -> TokenBatch:
    """Random tokens, two thirds of them labels, temperatures between 0.7 and 1.3."""
    rng = np.random.default_rng(seed)
    token_ids = [rng.integers(0, vocab_size, length) for length in lengths]
    is_label = [rng.random(length) < 2 / 3 for length in lengths]
    for labels in is_label:
        labels[0] = False
    temperature = [rng.uniform(0.7, 1.3, length).astype(np.float32) for length in lengths]
    return TokenBatch.pack(token_ids, is_label, temperature)


def with_routes(batch: TokenBatch, routes: Tensor) -> TokenBatch:
    """The same batch with experts [T, L, k] to take."""
    return replace(batch, replay_ids=routes.numpy())


def make_loss(batch: TokenBatch, seed: int = 0) -> LossFunction:
    """A loss that no split by segments gives: per trajectory a square of its weighted log-probabilities."""
    rng = np.random.default_rng(seed)
    weight = torch.from_numpy(rng.normal(size=batch.num_labels))
    # of one sign, so that what cancels in fp32 is no more than without values
    token_weight = torch.from_numpy(rng.uniform(0.5, 1.5, batch.num_tokens))
    token_owner = torch.from_numpy(np.repeat(np.arange(len(batch.lengths)), batch.lengths))
    owner = token_owner[torch.from_numpy(batch.is_label)]

    def loss(arrays: TrajectoryArrays) -> Tensor:
        logprob, own = arrays.logprob, weight[arrays.label_numbers].to(arrays.logprob)
        sums = logprob.new_zeros(len(batch.lengths)).index_add(0, owner[arrays.label_numbers], logprob * own)
        total = (0.01 * sums.square() + sums).sum() + 0.1 * (arrays.entropy * own).sum()
        if not len(arrays.value):
            return total
        # of each trajectory the product of what its values and its log-probabilities come to
        told = token_weight[arrays.token_numbers].to(logprob) * (arrays.value - 0.3).square()
        values = logprob.new_zeros(len(batch.lengths)).index_add(0, token_owner[arrays.token_numbers], told)
        return total + (values * (1.0 + 0.1 * sums)).sum()

    return loss


def make_critic(model: SegueModel, seed: int = 0) -> ValueHead:
    """A critic away from its start at zero, where it would send no gradient on."""
    weight = model.lm_head.weight
    head, generator = ValueHead(weight.shape[1], weight.dtype), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator))
    return head


def all_arrays(
    batch: TokenBatch, logprob: Tensor, entropy: Tensor | None = None, value: Tensor | None = None
) -> TrajectoryArrays:
    """What a loss is given of a batch's labels and tokens all together."""
    return TrajectoryArrays(
        logprob=logprob,
        entropy=torch.zeros_like(logprob) if entropy is None else entropy,
        value=logprob.new_zeros(0) if value is None else value,
        label_numbers=torch.arange(len(logprob)),
        token_numbers=torch.arange(0 if value is None else batch.num_tokens),
    )


def whole_step(
    model: SegueModel, batch: TokenBatch, loss_fn: LossFunction, critic: ValueHead | None = None
) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """Gradient of each parameter, log-probabilities and expert ids, each trajectory run alone, whole, without segments.

    The heads are written out here; nothing of the learner takes part but the batch's arrays.
    """
    named = dict(SegmentModule(model, NUM_BINS, critic).trained_parameters())
    zero_gradients(named)
    logprobs, entropies, values, routes = [], [], [], []
    for start, end in zip(batch.offsets[:-1], batch.offsets[1:], strict=True):
        token_ids = torch.from_numpy(batch.token_ids[start:end])
        temperature = torch.from_numpy(batch.temperature[start:end])
        is_label = torch.from_numpy(batch.is_label[start:end])
        replay = None if batch.replay_ids is None else torch.from_numpy(batch.replay_ids[start:end])
        dtype = model.lm_head.weight.dtype
        routing = Routing(replay_ids=replay)
        hidden, _ = model(PackedInputs.pack([token_ids]), DifferentiableState.zeros(model.config, 1, dtype), routing)
        wide = torch.promote_types(dtype, torch.float32)
        logits = model.lm_head(hidden).to(wide)[:-1] / temperature[1:, None].to(wide)
        log_p = torch.log_softmax(logits, -1)
        logprobs.append(log_p.gather(1, token_ids[1:, None]).squeeze(1)[is_label[1:]])
        entropies.append(-(log_p.exp() * log_p).sum(-1)[is_label[1:]])
        routes.append(routing.expert_ids)
        if critic is not None:
            values.append((hidden.to(wide) * critic.weight).sum(1) + critic.bias)
    logprob = torch.cat(logprobs)
    loss_fn(all_arrays(batch, logprob, torch.cat(entropies), torch.cat(values) if values else None)).backward()
    return taken_gradients(named), logprob.detach(), torch.cat(routes)


def zero_gradients(named: dict[str, nn.Parameter]) -> None:
    """Forget what was gathered."""
    for parameter in named.values():
        parameter.grad = None


def taken_gradients(named: dict[str, nn.Parameter]) -> dict[str, Tensor]:
    """What each parameter gathered, zeros where nothing, and forget it there."""
    grads = {name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in named.items()}
    zero_gradients(named)
    return grads


def sweep_step(
    model: SegueModel,
    batch: TokenBatch,
    loss_fn: LossFunction,
    *,
    segment_tokens: int,
    micro_step_tokens: int,
    num_ranks: int = 1,
    sweep_all: bool = False,
    is_exact: bool = True,
    critic: ValueHead | None = None,
    value_reaches_model: bool = True,
    wrap: Callable[[nn.Module], nn.Module] = lambda module: module,
    reschedule: Callable[[RankSchedule], RankSchedule] = lambda rank: rank,
) -> tuple[dict[str, Tensor], list[SweepResult]]:
    """The same gradients by the sweeps on the bare module; ranks run one after another and gather in one place."""
    module = SegmentModule(model, NUM_BINS, critic)
    module.value_reaches_model = value_reaches_model
    named = module.trained_parameters()
    zero_gradients(named)
    backend = BareBackend(wrap(module), state_layout(model))
    schedule = SegmentSchedule.build(
        batch.lengths, num_ranks, segment_tokens, micro_step_tokens, pair_cost=0.01, sweep_all=sweep_all
    )
    results = [
        run_sweeps(
            backend, reschedule(rank), batch, loss_fn, is_exact=is_exact, counts_routes=True, measures_logits=True
        )
        for rank in schedule.ranks
    ]
    return taken_gradients(named), results


def relative_errors(grads: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    """max|difference| / RMS(reference) by tensor; where the reference is zero, 0 if met exactly, else infinite."""
    assert grads.keys() == reference.keys()
    errors = {}
    for name, wanted in reference.items():
        difference = float((grads[name].double() - wanted.double()).abs().max())
        rms = float(wanted.double().square().mean().sqrt())
        errors[name] = difference / rms if rms else (0.0 if difference == 0.0 else float("inf"))
    return errors


def rms_errors(grads: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    """RMS(difference) / RMS(reference) of the tensors whose reference is not zero."""
    return {
        name: float((grads[name].double() - wanted).square().mean().sqrt() / wanted.square().mean().sqrt())
        for name, wanted in reference.items()
        if wanted.any()
    }


def worst_error(grads: dict[str, Tensor], reference: dict[str, Tensor]) -> tuple[float, str]:
    """Largest of the relative errors, with its tensor's name."""
    return max((error, name) for name, error in relative_errors(grads, reference).items())


FIRST_VERSION = PolicyVersion(0, 0)


def make_trajectory(
    seed: int, *, reward: float, source: Source = Source.policy, version: PolicyVersion = FIRST_VERSION, **changes
) -> Trajectory:
    """A prompt, a turn, an observation and a turn of random lengths and tokens, about 150 tokens together."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(20, 60, 4)
    borders = np.concatenate([[0], np.cumsum(lengths)]).tolist()
    trainable = np.zeros(borders[-1], np.bool_)
    trainable[borders[1] : borders[2]] = trainable[borders[3] : borders[4]] = True
    sampled = trainable & (source is Source.policy)
    turns = tuple(
        Turn(start=borders[i], end=borders[i + 1], temperature=1.0, reward_terms={}, num_calls=1) for i in (1, 3)
    )
    fields = {
        "token_ids": rng.integers(0, 64, borders[-1]).astype(np.int32),
        "trainable": trainable,
        "source": source,
        "behaviour_logprob": np.where(sampled, rng.uniform(-5.0, -3.0, borders[-1]), 0.0).astype(np.float32),
        "policy_incarnation": np.where(sampled, version.incarnation, 0).astype(np.int32),
        "policy_step": np.where(sampled, version.step, 0).astype(np.int32),
        "turns": turns,
        "outcome_terms": {"success": reward},
        "outcome": Outcome.success if reward > 0 else Outcome.failure,
        "task_id": "task",
        "group_id": "group",
        "index": 0,
        "attempt": 0,
        "seed": seed,
    }
    return Trajectory(**(fields | changes))


def make_group(trajectories: Sequence[Trajectory]) -> Group:
    """Trajectories that are compared with each other."""
    return Group(
        task_id="task",
        group_id="group",
        trajectories=tuple(trajectories),
        first_version=FIRST_VERSION,
        last_version=PolicyVersion(9, 99),
        made_by="test",
    )


def make_step_groups(step: int) -> list[Group]:
    """Two groups of three with mixed rewards, sampled by the weights of this step."""
    version = PolicyVersion(0, step)
    return [
        make_group([make_trajectory(10 * step + i, reward=i % 2, version=version) for i in range(start, start + 3)])
        for start in (0, 3)
    ]
