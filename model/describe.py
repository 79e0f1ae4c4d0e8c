"""What a model costs: parameters, state and operations, counted on a model without memory."""

from collections import Counter
from typing import Any

import torch

from segue.conf.model_config import LayerKind, ModelConfig
from segue.conf.schema import Precision
from segue.model.network import SegueModel, build_model
from segue.model.precision import dtype_of
from segue.model.value_head import ValueHead

CONTEXT_LENGTHS = (8_192, 65_536, 262_144, 1_048_576)
"""Tokens at which costs that grow with the context are given: 8K, 64K, 256K, 1M."""


def describe(config: ModelConfig) -> dict[str, Any]:
    """Costs of a model, as a plain dictionary.

    Returns:
        `layers`: counts by kind.
        `parameters`: `total`; `active` (those that one token meets: its experts of all, the head, not the embedding
            table); `components` (sums by part); `per_layer` (one KDA layer, one MLA layer, one routed expert, one
            MoE layer without its routed experts).
        `weights_bytes`: by `learner.precision`, without buffers; in bf16 the few that stay float32 are counted as such.
        `state_bytes`: of one sequence, by `learner.precision`: `recurrent` (float32 in both), `conv`, `row_per_token`,
            and `sequence`, their sum by context length.
        `flops_per_token`: multiplications and additions of one token's forward: `matmul` (weights), `kda_state`
            (recurrent form), and by context length `decode` (all of it, latent attention absorbed) and `prefill` (all
            of it, latent attention expanded).
    """
    model = build_model(config, dtype_of(Precision.bf16), "meta")
    components = _components(model)
    total = sum(components.values())
    share = config.num_experts_per_token / config.num_experts
    active = total - components["embedding"] - round(components["routed experts"] * (1 - share))
    return {
        "layers": {
            "kda": len(config.kda_layers),
            "mla": len(config.mla_layers),
            "dense": config.first_k_dense_replace,
            "moe": len(config.moe_layers),
        },
        "parameters": {
            "total": total,
            "active": active,
            "components": components,
            "per_layer": _per_layer(model, config),
        },
        "weights_bytes": {
            Precision.fp32.name: 4 * total,
            Precision.bf16.name: sum(parameter.nbytes for parameter in model.parameters()),
        },
        "state_bytes": {precision.name: _state_bytes(config, precision) for precision in Precision},
        "flops_per_token": _flops_per_token(config, active),
    }


def num_critic_parameters(config: ModelConfig) -> int:
    """Of the value head, which the learner trains beside the model and nobody else holds."""
    with torch.device("meta"):
        head = ValueHead(config.hidden_size, torch.float32)
    return sum(parameter.numel() for parameter in head.parameters())


def _components(model: SegueModel) -> dict[str, int]:
    """Parameters by part of the model; every parameter belongs to one part."""
    kinds = model.config.layer_kinds
    sums: Counter[str] = Counter()
    for name, parameter in model.named_parameters():
        sums[_component(name, kinds)] += parameter.numel()
    return dict(sums)


def _component(name: str, kinds: tuple[LayerKind, ...]) -> str:
    if name.startswith("lm_head"):
        return "head"
    if name.startswith("model.embed_tokens"):
        return "embedding"
    if "_res_norm." in name or "_res_proj." in name:
        return "attention residuals"
    if ".self_attn." in name:
        layer = int(name.split(".")[2])
        return "KDA" if kinds[layer] is LayerKind.kda else "MLA"
    if ".experts.w" in name:
        return "routed experts"
    if ".shared_experts." in name:
        return "shared experts"
    if ".gate.weight" in name:
        return "router"
    if ".routed_expert_" in name:
        return "latent projections"
    return "dense MLP" if ".mlp." in name else "norms"


def _per_layer(model: SegueModel, config: ModelConfig) -> dict[str, int]:
    def count(prefix: str) -> int:
        return sum(p.numel() for name, p in model.named_parameters() if name.startswith(prefix))

    sizes = {}
    for key, indices in (("kda", config.kda_layers), ("mla", config.mla_layers)):
        if indices:
            sizes[key] = count(f"model.layers.{indices[0]}.self_attn.")
    moe = f"model.layers.{config.moe_layers[0]}.block_sparse_moe."
    routed = count(f"{moe}experts.")
    sizes["routed_expert"] = routed // config.num_experts
    sizes["moe_without_routed_experts"] = count(moe) - routed
    return sizes


def _state_bytes(config: ModelConfig, precision: Precision) -> dict[str, Any]:
    num_heads, value_size, key_size = config.recurrent_shape
    num_taps, num_channels = config.conv_shape
    size = dtype_of(precision).itemsize
    recurrent = 4 * len(config.kda_layers) * num_heads * value_size * key_size
    conv = size * len(config.kda_layers) * num_taps * num_channels
    row = size * len(config.mla_layers) * config.latent_row_size
    return {
        "recurrent": recurrent,
        "conv": conv,
        "row_per_token": row,
        "sequence": {length: recurrent + conv + row * length for length in CONTEXT_LENGTHS},
    }


def _flops_per_token(config: ModelConfig, active: int) -> dict[str, Any]:
    num_heads, value_size, key_size = config.recurrent_shape
    # per state entry: decay 1, prediction 2, rank-one update 2, read 2
    kda_state = 7 * len(config.kda_layers) * num_heads * value_size * key_size
    num_mla, num_mla_heads = len(config.mla_layers), config.num_attention_heads
    query_size = config.qk_nope_head_dim + config.qk_rope_head_dim
    # per earlier token and head: a score and a weighted value
    expanded = 2 * num_mla * num_mla_heads * (query_size + config.v_head_dim)
    absorbed = 2 * num_mla * num_mla_heads * (config.latent_row_size + config.kv_lora_rank)
    matmul = 2 * active
    return {
        "matmul": matmul,
        "kda_state": kda_state,
        "decode": {length: matmul + kda_state + absorbed * length for length in CONTEXT_LENGTHS},
        "prefill": {length: matmul + kda_state + expanded * length for length in CONTEXT_LENGTHS},
    }
