"""SegueModel: names, activation checkpointing, dtypes, where gradients arrive."""

import pytest
import torch
from model_cases import make_config, make_linear_config, make_model, make_tokens, run_whole

from segue.conf.schema import Checkpointing
from segue.model.inputs import PackedInputs
from segue.model.layers import kda as kda_layer
from segue.model.layers import moe as moe_layer
from segue.model.network import build_model
from segue.model.routing import Routing
from segue.model.state import DifferentiableState

CONFIGS = {"k3": make_config(), "kimi_linear": make_linear_config()}
UNREAD = {"model.layers.0.self_attention_res_norm.weight", "model.layers.0.self_attention_res_proj.weight"}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_checkpointing_changes_neither_gradient_nor_count_nor_state(config) -> None:
    model = make_model(config)
    tokens = [make_tokens(40, seed=1), make_tokens(23, seed=2)]
    results = []
    for mode in (Checkpointing.none, Checkpointing.block):
        model.checkpointing = mode
        model.zero_grad()
        routing = Routing(count=True, num_bins=16)
        state = DifferentiableState.zeros(config, 2, torch.float64)
        hidden, after = model(PackedInputs.pack(tokens), state, routing)
        loss = hidden.square().sum() + sum(t.square().sum() for t in (*after.recurrent, *after.conv, *after.rows))
        loss.backward()
        gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        results.append([hidden, *after.flatten(), routing.histogram, routing.expert_ids, *gradients])
    assert len(results[0]) == len(results[1])
    assert all(torch.equal(one, two) for one, two in zip(*results, strict=True))


def test_checkpointing_takes_the_recorded_experts_when_it_runs_again() -> None:
    """A router whose second run would choose otherwise, as rounding can make it, still takes the first run's."""
    model = make_model(make_config())
    model.checkpointing = Checkpointing.block
    routing = Routing(count=True, num_bins=16)
    (hidden,) = run_whole(model, [make_tokens(20, seed=1)], routing)
    first = routing.expert_ids.clone()
    histogram = routing.histogram.clone()
    with torch.no_grad():
        for buffer in model.buffers():
            buffer.copy_(-5 * buffer)
    hidden.square().sum().backward()
    gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    assert torch.equal(routing.expert_ids, first)
    assert torch.equal(routing.histogram, histogram)

    plain = make_model(make_config())
    (hidden,) = run_whole(plain, [make_tokens(20, seed=1)])
    hidden.square().sum().backward()
    for name, parameter in plain.named_parameters():
        assert name not in gradients or torch.equal(parameter.grad, gradients[name]), name


def test_checkpointing_keeps_fewer_activations() -> None:
    model = make_model(make_config())
    kept = {}
    for mode in Checkpointing:
        model.checkpointing = mode
        sizes: dict[int, int] = {}

        def save(tensor: torch.Tensor, sizes: dict[int, int] = sizes) -> torch.Tensor:
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
            run_whole(model, [make_tokens(60, seed=1)])
        kept[mode] = sum(sizes.values())
    assert kept[Checkpointing.block] < 0.5 * kept[Checkpointing.none]


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_every_parameter_but_the_first_residual_pair_gets_a_gradient(config) -> None:
    model = make_model(config)
    (hidden,) = run_whole(model, [make_tokens(60, seed=1)])
    model.lm_head(hidden).square().sum().backward()
    without = {name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()}
    assert without == (UNREAD if config.attn_res_block_size else set())


def test_a_model_in_bfloat16_keeps_what_must_not_be_rounded() -> None:
    model = make_model(make_config(), dtype=torch.bfloat16)
    wide = {name.split(".", 3)[-1] for name, p in model.named_parameters() if p.dtype is torch.float32}
    convs = {f"self_attn.{part}_conv1d.weight" for part in "qkv"}
    assert wide == convs | {"self_attn.A_log", "self_attn.dt_bias", "self_attn.o_norm.weight"}
    assert {p.dtype for p in model.parameters()} == {torch.float32, torch.bfloat16}
    assert {b.dtype for b in model.buffers()} == {torch.float32}


def test_states_router_logits_and_routing_weights_are_wide_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config()
    model = make_model(config, dtype=torch.bfloat16)
    seen: dict[str, set[torch.dtype]] = {"logits": set(), "weights": set(), "decay": set()}

    def route(logits, bias, **kwargs):
        routes = real_route(logits, bias, **kwargs)
        seen["logits"].add(logits.dtype)
        seen["weights"] |= {routes.weights.dtype, routes.scores.dtype}
        return routes

    def kda(q, k, v, gate_logits, beta_logits, A_log, dt_bias, state, offsets, **kwargs):
        o, state = real_kda(q, k, v, gate_logits, beta_logits, A_log, dt_bias, state, offsets, **kwargs)
        seen["decay"] |= {A_log.dtype, dt_bias.dtype, state.dtype}
        return o, state

    real_route, real_kda = moe_layer.route, kda_layer.kda
    monkeypatch.setattr(moe_layer, "route", route)
    monkeypatch.setattr(kda_layer, "kda", kda)
    state = DifferentiableState.zeros(config, 1, torch.bfloat16)
    hidden, after = model(PackedInputs.pack([make_tokens(30, seed=1)]), state, Routing())
    assert seen == {name: {torch.float32} for name in seen}
    assert {t.dtype for t in after.recurrent} == {torch.float32}
    assert {t.dtype for t in (*after.conv, *after.rows, hidden)} == {torch.bfloat16}


def test_router_logits_are_not_rounded_under_autocast() -> None:
    model = make_model(make_config(), dtype=torch.float32)
    gate = model.model.layers[1].block_sparse_moe.gate
    x = torch.randn(5, 24, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = gate(x)
    assert torch.equal(logits, x @ gate.weight.T)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_bfloat16_stays_near_the_same_weights_in_fp64(seed: int) -> None:
    rounded = make_model(make_config(), dtype=torch.bfloat16, seed=seed)
    exact = make_model(make_config(), seed=seed)
    with torch.no_grad():
        for name, target in rounded.named_parameters():
            # sharp mixtures would multiply the rounding of their scores
            if "_res_proj." in name:
                target.zero_()
        for target, source in zip(exact.parameters(), rounded.parameters(), strict=True):
            target.copy_(source)
        routing = Routing()
        (reference,) = run_whole(exact, [make_tokens(40, seed=1)], routing)
        (hidden,) = run_whole(rounded, [make_tokens(40, seed=1)], Routing(replay_ids=routing.expert_ids))
    error = (hidden.double() - reference).square().mean().sqrt() / reference.square().mean().sqrt()
    # independent roundings of 2^-9 / sqrt(3) each: some hundred of them on the way from embedding to output
    assert error < 2**-9 / 3**0.5 * 300**0.5


def test_a_model_on_meta_has_the_same_tensors() -> None:
    real = {name: (t.shape, t.dtype) for name, t in make_model(make_config()).state_dict().items()}
    meta = build_model(make_config(), torch.float64, "meta")
    assert {name: (t.shape, t.dtype) for name, t in meta.state_dict().items()} == real
    assert {t.device.type for t in meta.state_dict().values()} == {"meta"}
