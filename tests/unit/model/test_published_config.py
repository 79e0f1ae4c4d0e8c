"""config.json: public field names both ways, models published before K3, refusals."""

import pytest
from model_cases import make_config, make_linear_config

from segue.conf.model_config import HiddenAct, LayerKind
from segue.model.published_config import parse_published_config, published_config

# the public config.json of moonshotai/Kimi-Linear-48B-A3B-Instruct, the fields that say something here
KIMI_LINEAR_48B = {
    "architectures": ["KimiLinearForCausalLM"],
    "model_type": "kimi_linear",
    "first_k_dense_replace": 1,
    "hidden_act": "silu",
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "kv_lora_rank": 512,
    "linear_attn_config": {
        "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
        "head_dim": 128,
        "kda_layers": [1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 14, 15, 17, 18, 19, 21, 22, 23, 25, 26],
        "num_heads": 32,
        "short_conv_kernel_size": 4,
    },
    "mla_use_nope": True,
    "moe_intermediate_size": 1024,
    "moe_layer_freq": 1,
    "moe_renormalize": True,
    "moe_router_activation_func": "sigmoid",
    "num_attention_heads": 32,
    "num_expert_group": 1,
    "num_experts": 256,
    "num_experts_per_token": 8,
    "num_hidden_layers": 27,
    "num_key_value_heads": 32,
    "num_nextn_predict_layers": 0,
    "num_shared_experts": 1,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "routed_scaling_factor": 2.446,
    "tie_word_embeddings": False,
    "topk_group": 1,
    "use_grouped_topk": True,
    "v_head_dim": 128,
    "vocab_size": 163840,
}


@pytest.mark.parametrize("config", [make_config(), make_linear_config(), make_config(initializer_range=0.01)])
def test_a_configuration_comes_back(config) -> None:
    assert parse_published_config(published_config(config, "float32")) == config


def test_layer_numbers_are_published_from_one() -> None:
    linear = published_config(make_config(), "float32")["linear_attn_config"]
    assert (linear["kda_layers"], linear["full_attn_layers"]) == ([1, 3, 4], [2, 5])


def test_absent_k3_fields_mean_kimi_linear() -> None:
    config = parse_published_config(KIMI_LINEAR_48B)
    assert config.linear_attn_config.gate_lower_bound is None
    assert not config.linear_attn_config.use_full_rank_gate
    assert not config.mla_use_output_gate
    assert config.routed_expert_hidden_size is None
    assert config.attn_res_block_size is None
    assert config.hidden_act is HiddenAct.silu
    assert config.layer_kinds.count(LayerKind.kda) == 20


def test_what_the_model_is_not_is_refused_in_one_error() -> None:
    content = published_config(make_config(), "float32") | {
        "tie_word_embeddings": True,
        "moe_router_activation_func": "softmax",
        "num_key_value_heads": 1,
        "hidden_act": "gelu",
    }
    del content["vocab_size"], content["linear_attn_config"]["num_heads"]
    with pytest.raises(ValueError) as error:
        parse_published_config(content)
    assert str(error.value) == (
        "config.json: tie_word_embeddings must be False, got True; "
        "moe_router_activation_func must be sigmoid, got softmax; "
        "num_key_value_heads must be 3 (num_attention_heads); "
        "vocab_size is missing; linear_attn_config.num_heads is missing; "
        "hidden_act must be one of ['silu', 'situ'], got gelu"
    )
