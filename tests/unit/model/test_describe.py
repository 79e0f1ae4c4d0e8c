"""describe: published sizes of K3 and Kimi-Linear, and the arithmetic of state and operations."""

import time

import pytest
from model_cases import make_config, make_model

from segue.conf.load import load_config
from segue.conf.model_config import MAX_EXPERTS, MAX_LAYERS, MAX_SIZE, LinearAttnConfig, ModelConfig
from segue.conf.schema import Precision
from segue.model.describe import describe
from segue.model.network import build_model
from segue.model.pool import StatePool
from segue.model.precision import dtype_of


def test_k3_has_the_published_sizes() -> None:
    started = time.perf_counter()
    costs = describe(load_config(["model=k3"]).model)
    assert time.perf_counter() - started < 20
    parameters = costs["parameters"]
    assert parameters["total"] == pytest.approx(2.7795e12, rel=2e-5)
    assert parameters["active"] == pytest.approx(1.0419e11, rel=2e-5)
    layers = parameters["per_layer"]
    assert layers["kda"] == pytest.approx(443.74e6, rel=2e-5)
    assert layers["mla"] == pytest.approx(232.20e6, rel=2e-5)
    assert layers["routed_expert"] == pytest.approx(33.03e6, rel=1e-4)
    assert layers["moe_without_routed_experts"] == pytest.approx(189.93e6, rel=2e-5)
    assert costs["layers"] == {"kda": 69, "mla": 24, "dense": 1, "moe": 92}
    # 69 layers x 96 heads x 128 x 128 x 4 bytes; 3 x 36864 x 2 bytes; 24 layers x 576 x 2 bytes
    state = costs["state_bytes"]["bf16"]
    assert state["recurrent"] == 69 * 96 * 128 * 128 * 4 == 434_110_464
    assert state["conv"] == 69 * 3 * 36864 * 2
    assert state["row_per_token"] == 27_648
    assert state["sequence"][1_048_576] == 434_110_464 + 15_261_696 + 27_648 * 1_048_576


def test_the_other_models_have_their_sizes() -> None:
    sizes = {}
    for name in ("kimi_linear_48b", "mini", "tiny", "tiny_vllm"):
        parameters = describe(load_config([f"model={name}"]).model)["parameters"]
        sizes[name] = (parameters["total"], parameters["active"])
    # Kimi-Linear is published as 48B-A3B; the others by design: about 1B, about 1M, 7.2M
    assert sizes["kimi_linear_48b"] == pytest.approx((49.1e9, 3.1e9), rel=0.01)
    assert sizes["mini"][0] == pytest.approx(1e9, rel=0.05)
    assert sizes["tiny"][0] == pytest.approx(1.238e6, rel=0.001)
    assert sizes["tiny_vllm"][0] == pytest.approx(7.2e6, rel=0.01)


def test_the_largest_model_that_a_configuration_allows_is_summed_in_seconds() -> None:
    most = dict.fromkeys(("intermediate_size", "moe_intermediate_size", "kv_lora_rank", "v_head_dim"), MAX_SIZE)
    most |= dict.fromkeys(
        ("vocab_size", "hidden_size", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim"), MAX_SIZE
    )
    linear = LinearAttnConfig(full_attn_layers=[MAX_LAYERS], num_heads=MAX_SIZE, head_dim=MAX_SIZE)
    config = ModelConfig(
        num_hidden_layers=MAX_LAYERS, num_experts=MAX_EXPERTS, num_attention_heads=2**16, num_shared_experts=MAX_SIZE,
        routed_expert_hidden_size=MAX_SIZE, linear_attn_config=linear, **most,
    )  # fmt: skip
    started = time.perf_counter()
    costs = describe(config)
    assert time.perf_counter() - started < 30
    # 999 layers of 65,536 experts, three matrices of 2^20 x 2^20 each: no sum has overflowed
    assert costs["parameters"]["components"]["routed experts"] == 999 * 3 * 2**56
    assert costs["weights_bytes"]["fp32"] == 4 * costs["parameters"]["total"]


def test_components_and_active_parameters_add_up() -> None:
    config = make_config()
    costs = describe(config)["parameters"]
    model = make_model(config)
    assert sum(costs["components"].values()) == costs["total"] == sum(p.numel() for p in model.parameters())
    # by hand: 4 MoE layers x 6 experts x 3 matrices of 10 x 14, of which 2 experts are met; embedding 40 x 24
    assert costs["components"]["routed experts"] == 4 * 6 * 3 * 140
    assert costs["active"] == costs["total"] - 40 * 24 - 4 * 4 * 3 * 140


def test_operations_grow_with_the_context_in_mla_layers_only() -> None:
    flops = describe(make_config())["flops_per_token"]
    # 3 KDA layers x 2 heads x 16 x 16 entries, 7 operations each
    assert flops["kda_state"] == 3 * 2 * 16 * 16 * 7
    step = 65_536 - 8_192
    # 2 MLA layers x 3 heads; expanded: score over 8 + 4, value over 6; absorbed: score over 10 + 4, value over 10
    assert flops["prefill"][65_536] - flops["prefill"][8_192] == 2 * 3 * 2 * (12 + 6) * step
    assert flops["decode"][65_536] - flops["decode"][8_192] == 2 * 3 * 2 * (14 + 10) * step


@pytest.mark.parametrize("precision", Precision)
def test_bytes_are_those_of_a_model_and_a_pool_of_the_precision(precision: Precision) -> None:
    config = make_config()
    costs = describe(config)
    model = build_model(config, dtype_of(precision), "meta")
    assert costs["weights_bytes"][precision.name] == sum(p.nbytes for p in model.parameters())
    pool = StatePool(config, num_slots=1, num_pages=1, page_size=8, dtype=dtype_of(precision), device="cpu")
    state = costs["state_bytes"][precision.name]
    assert state["recurrent"] == sum(tensor.nbytes for tensor in pool.recurrent)
    assert state["conv"] == sum(tensor.nbytes for tensor in pool.conv)
    assert 8 * state["row_per_token"] == sum(tensor.nbytes for tensor in pool.pages)
    assert state["sequence"][8_192] == state["recurrent"] + state["conv"] + 8_192 * state["row_per_token"]
