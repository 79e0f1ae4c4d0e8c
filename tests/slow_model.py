"""The model once more, one token and one head at a time, from the published equations and the published weight names.

It shares no code with `model/` and `kernels/`; the tests compare the two.
"""

import math

import torch
from torch import Tensor

from segue.conf.model_config import HiddenAct, LayerKind, ModelConfig


def slow_hidden(weights: dict[str, Tensor], config: ModelConfig, token_ids: Tensor) -> Tensor:
    """Hidden states [T, D] after the final norm, of one sequence from an empty state."""
    x = weights["model.embed_tokens.weight"][token_ids]
    has_residual_mix = config.attn_res_block_size is not None
    bank: list[Tensor] = []
    for layer, kind in enumerate(config.layer_kinds):
        w = {
            name.removeprefix(f"model.layers.{layer}."): tensor
            for name, tensor in weights.items()
            if name.startswith(f"model.layers.{layer}.")
        }
        attend = _kda if kind is LayerKind.kda else _mla
        before = _mix([*bank, x], w, "self_attention") if bank else x
        attended = attend(w, config, _norm(before, w["input_layernorm.weight"], config.rms_norm_eps))
        if has_residual_mix and layer % config.attn_res_block_size == 0:
            bank.append(x)
            x = attended
        else:
            x = x + attended
        before = _mix([*bank, x], w, "mlp") if bank else x
        normed = _norm(before, w["post_attention_layernorm.weight"], config.rms_norm_eps)
        feed_forward = _dense if layer < config.first_k_dense_replace else _moe
        x = x + torch.stack([feed_forward(w, config, token) for token in normed])
    if has_residual_mix:
        x = _mix([*bank, x], {k.removeprefix("model."): v for k, v in weights.items()}, "output_attn")
    return _norm(x, weights["model.norm.weight"], config.rms_norm_eps)


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return weight * x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt()


def _mix(sources: list[Tensor], w: dict[str, Tensor], place: str) -> Tensor:
    norm_weight, query = w[f"{place}_res_norm.weight"], w[f"{place}_res_proj.weight"][0]
    mixed = []
    for t in range(len(sources[0])):
        scores = [float(_norm(source[t], norm_weight, 1e-5) @ query) for source in sources]
        exps = [math.exp(score) for score in scores]
        mixed.append(sum(exp / sum(exps) * source[t] for exp, source in zip(exps, sources, strict=True)))
    return torch.stack(mixed)


def _kda(w: dict[str, Tensor], config: ModelConfig, x: Tensor) -> Tensor:
    linear = config.linear_attn_config
    size, bound = linear.head_dim, linear.gate_lower_bound

    def conv(name: str) -> Tensor:
        projected = x @ w[f"self_attn.{name}_proj.weight"].T
        taps = w[f"self_attn.{name}_conv1d.weight"][:, 0]
        rows = []
        for t in range(len(x)):
            row = torch.zeros_like(projected[0])
            for j in range(4):
                if t - 3 + j >= 0:
                    row = row + taps[:, j] * projected[t - 3 + j]
            rows.append(row * torch.sigmoid(row))
        return torch.stack(rows)

    q, k, v = conv("q"), conv("k"), conv("v")
    z = x @ w["self_attn.f_a_proj.weight"].T @ w["self_attn.f_b_proj.weight"].T + w["self_attn.dt_bias"]
    beta = torch.sigmoid(x @ w["self_attn.b_proj.weight"].T)
    if linear.use_full_rank_gate:
        gate = x @ w["self_attn.g_proj.weight"].T
    else:
        gate = x @ w["self_attn.g_a_proj.weight"].T @ w["self_attn.g_b_proj.weight"].T
    heads = []
    for h in range(linear.num_heads):
        part = slice(h * size, (h + 1) * size)
        rate = w["self_attn.A_log"][h].exp()
        state = torch.zeros(size, size, dtype=x.dtype)
        outputs = []
        for t in range(len(x)):
            query = q[t, part] / (q[t, part].pow(2).sum() + 1e-6).sqrt() / math.sqrt(size)
            key = k[t, part] / (k[t, part].pow(2).sum() + 1e-6).sqrt()
            if bound is not None:
                log_decay = bound * torch.sigmoid(rate * z[t, part])
            else:
                log_decay = -rate * torch.log1p(z[t, part].exp())
            state = log_decay.exp()[:, None] * state
            state = state + beta[t, h] * torch.outer(key, v[t, part] - state.T @ key)
            outputs.append(_norm(state.T @ query, w["self_attn.o_norm.weight"], config.rms_norm_eps))
        heads.append(torch.stack(outputs) * torch.sigmoid(gate[:, part]))
    return torch.cat(heads, 1) @ w["self_attn.o_proj.weight"].T


def _mla(w: dict[str, Tensor], config: ModelConfig, x: Tensor) -> Tensor:
    content, rest, value = config.qk_nope_head_dim, config.qk_rope_head_dim, config.v_head_dim
    if config.q_lora_rank is None:
        q = x @ w["self_attn.q_proj.weight"].T
    else:
        latent = _norm(x @ w["self_attn.q_a_proj.weight"].T, w["self_attn.q_a_layernorm.weight"], config.qk_norm_eps)
        q = latent @ w["self_attn.q_b_proj.weight"].T
    compressed = x @ w["self_attn.kv_a_proj_with_mqa.weight"].T
    shared_key = compressed[:, config.kv_lora_rank :]
    latent = _norm(compressed[:, : config.kv_lora_rank], w["self_attn.kv_a_layernorm.weight"], config.qk_norm_eps)
    expanded = latent @ w["self_attn.kv_b_proj.weight"].T
    heads = []
    for h in range(config.num_attention_heads):
        query = q[:, h * (content + rest) : (h + 1) * (content + rest)]
        key_value = expanded[:, h * (content + value) : (h + 1) * (content + value)]
        keys = torch.cat([key_value[:, :content], shared_key], 1)
        outputs = []
        for t in range(len(x)):
            scores = torch.softmax(keys[: t + 1] @ query[t] / math.sqrt(content + rest), 0)
            outputs.append(scores @ key_value[: t + 1, content:])
        heads.append(torch.stack(outputs))
    out = torch.cat(heads, 1)
    if config.mla_use_output_gate:
        out = out * torch.sigmoid(x @ w["self_attn.g_proj.weight"].T)
    return out @ w["self_attn.o_proj.weight"].T


def _activate(config: ModelConfig, gate: Tensor, up: Tensor) -> Tensor:
    if config.hidden_act is HiddenAct.silu:
        return gate * torch.sigmoid(gate) * up
    b, c = config.activation_situ_beta, config.activation_situ_linear_beta
    return b * torch.tanh(gate / b) * torch.sigmoid(gate) * c * torch.tanh(up / c)


def _dense(w: dict[str, Tensor], config: ModelConfig, x: Tensor, prefix: str = "mlp.") -> Tensor:
    hidden = _activate(config, w[f"{prefix}gate_proj.weight"] @ x, w[f"{prefix}up_proj.weight"] @ x)
    return w[f"{prefix}down_proj.weight"] @ hidden


def _moe(w: dict[str, Tensor], config: ModelConfig, x: Tensor) -> Tensor:
    prefix = "block_sparse_moe."
    scores = torch.sigmoid(w[f"{prefix}gate.weight"] @ x).tolist()
    bias = w[f"{prefix}gate.e_score_correction_bias"].tolist()
    order = sorted(range(config.num_experts), key=lambda e: scores[e] + bias[e], reverse=True)
    chosen = order[: config.num_experts_per_token]
    denominator = sum(scores[e] for e in chosen) if config.moe_renormalize else 1.0
    has_latent = config.routed_expert_hidden_size is not None
    z = w[f"{prefix}routed_expert_down_proj.weight"] @ x if has_latent else x
    u = torch.zeros_like(z)
    for e in chosen:
        hidden = _activate(config, w[f"{prefix}experts.{e}.w1.weight"] @ z, w[f"{prefix}experts.{e}.w3.weight"] @ z)
        u = u + scores[e] / denominator * config.routed_scaling_factor * (w[f"{prefix}experts.{e}.w2.weight"] @ hidden)
    if has_latent and config.latent_moe_use_norm:
        u = _norm(u, w[f"{prefix}routed_expert_norm.weight"], config.rms_norm_eps)
    if has_latent:
        u = w[f"{prefix}routed_expert_up_proj.weight"] @ u
    return u + _dense(w, config, x, f"{prefix}shared_experts.")
