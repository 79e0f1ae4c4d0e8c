"""config.json: public field names both ways, models published before K3, refusals."""

import json
from pathlib import Path
from typing import Any

import pytest
from model_cases import make_config, make_linear_config

from segue.conf.model_config import HiddenAct, LayerKind
from segue.model.published_config import load_published_config, parse_published_config, published_config

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
        "tie_word_embeddings must be False, got True; "
        "moe_router_activation_func must be sigmoid, got softmax; "
        "num_key_value_heads must be 3 (num_attention_heads); "
        "vocab_size is missing; hidden_act must be one of situ, silu, got 'gelu'; "
        "linear_attn_config.num_heads is missing"
    )


def test_whole_numbers_are_read_where_any_number_may_stand() -> None:
    content = published_config(make_config(), "float32") | {"routed_scaling_factor": 2}
    value = parse_published_config(content).routed_scaling_factor
    assert (value, type(value)) == (2.0, float)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": "96"}, "hidden_size must be an integer, got '96'"),
        ({"hidden_size": 96.5}, "hidden_size must be an integer, got 96.5"),
        ({"hidden_size": None}, "hidden_size must be an integer, got None"),
        ({"hidden_size": True}, "hidden_size must be an integer, got True"),
        ({"hidden_size": 2**31}, "hidden_size must be an integer, got 2147483648"),
        ({"hidden_size": 0}, "hidden_size must be at least 1, got 0"),
        ({"rms_norm_eps": "1e-5"}, "rms_norm_eps must be a number, got '1e-5'"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps must be a number, got nan"),
        ({"rms_norm_eps": 0}, "rms_norm_eps must be above 0, got 0.0"),
        ({"routed_scaling_factor": None}, "routed_scaling_factor must be a number, got None"),
        ({"routed_scaling_factor": float("inf")}, "routed_scaling_factor must be a number, got inf"),
        ({"mla_use_output_gate": "yes"}, "mla_use_output_gate must be true or false, got 'yes'"),
        ({"q_lora_rank": "12"}, "q_lora_rank must be an integer or null, got '12'"),
        ({"hidden_act": []}, r"hidden_act must be one of situ, silu, got \[\]"),
        ({"linear_attn_config": None}, "linear_attn_config must be an object, got None"),
        ({"model_type": "kimi_k3"}, "text_config must be an object where model_type is kimi_k3, got None"),
        ({"model_type": "kimi_k3", "text_config": [1]}, r"text_config must be an object .*, got \[1\]"),
    ],
)
def test_a_value_of_another_type_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_published_config(published_config(make_config(), "float32") | changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"full_attn_layers": "4"}, "full_attn_layers must be a list, each an integer, got '4'"),
        ({"full_attn_layers": [2, 5.0]}, r"full_attn_layers must be a list, each an integer, got \[2, 5.0\]"),
        ({"gate_lower_bound": "x"}, "gate_lower_bound must be a number or null, got 'x'"),
        ({"gate_lower_bound": -6}, r"gate_lower_bound must be in \[-5, 0\) or null, got -6.0"),
        # KDA layers are 1, 3 and 4
        ({"kda_layers": [1, 2, 3]}, r"kda_layers must be the layers that full_attn_layers leaves, got \[1, 2, 3\]"),
        ({"kda_layers": [1, 3]}, r"kda_layers must be the layers .*, got \[1, 3\]"),
        ({"kda_layers": [1, 3, 3, 4]}, r"kda_layers must be the layers .*, got \[1, 3, 3, 4\]"),
        ({"kda_layers": [1, 3, 6]}, r"kda_layers must be the layers .*, got \[1, 3, 6\]"),
        ({"kda_layers": [[1], 3, 4]}, r"kda_layers must be the layers .*, got \[\[1\], 3, 4\]"),
        ({"kda_layers": None}, "kda_layers must be the layers .*, got None"),
    ],
)
def test_a_wrong_value_of_the_linear_section_is_named(changes: dict[str, Any], message: str) -> None:
    content = published_config(make_config(), "float32")
    content["linear_attn_config"] |= changes
    with pytest.raises(ValueError, match=f"^linear_attn_config.{message}"):
        parse_published_config(content)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (None, ": No such file or directory"),
        (b"{", ": Expecting property name"),
        (b"[]", ", got list"),
        (b"\xff", ": 'utf-8' codec can't decode"),
        (b"[" * 100_000, ": maximum recursion depth"),
    ],
)
def test_a_file_that_describes_no_model_is_named(data: bytes | None, reason: str, tmp_path: Path) -> None:
    if data is not None:
        (tmp_path / "config.json").write_bytes(data)
    with pytest.raises(ValueError) as caught:
        load_published_config(tmp_path)
    expected = f"{tmp_path}/config.json must hold the JSON object that describes a model{reason}"
    assert str(caught.value).startswith(expected)


def test_a_file_is_read_and_its_faults_carry_its_name(tmp_path: Path) -> None:
    content = published_config(make_config(), "float32")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "kimi_k3", "text_config": content}))
    assert load_published_config(tmp_path) == (make_config(), True)
    (tmp_path / "config.json").write_text(json.dumps(content | {"hidden_size": "x"}))
    with pytest.raises(ValueError, match=f"^{tmp_path}/config.json: hidden_size must be an integer, got 'x'$"):
        load_published_config(tmp_path)
