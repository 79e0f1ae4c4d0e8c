"""ModelConfig: derived shapes and refusals."""

import pytest

from segue.conf.model_config import LayerKind, LinearAttnConfig, ModelConfig


def test_layers_are_numbered_from_one_in_the_file_and_from_zero_here() -> None:
    config = ModelConfig()
    assert config.layer_kinds == (LayerKind.kda, LayerKind.kda, LayerKind.kda, LayerKind.mla)
    assert (config.kda_layers, config.mla_layers, config.moe_layers) == ((0, 1, 2), (3,), (1, 2, 3))


def test_state_shapes_follow_the_heads() -> None:
    config = ModelConfig()
    # 3 heads of 32; three taps of history over q, k and v; latent 48 and shared key 16
    assert config.recurrent_shape == (3, 32, 32)
    assert config.conv_shape == (3, 3 * 96)
    assert config.latent_row_size == 64


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 0}, "model.hidden_size must be at least 1, got 0"),
        ({"attn_res_block_size": 0}, "model.attn_res_block_size must be at least 1, got 0"),
        ({"num_experts_per_token": 32}, r"model.num_experts_per_token must be in \[1, 31\], got 32"),
        ({"first_k_dense_replace": 4}, r"model.first_k_dense_replace must be in \[0, 3\], got 4"),
        (
            {"linear_attn_config": LinearAttnConfig(gate_lower_bound=-6.0)},
            r"gate_lower_bound must be in \[-5, 0\) or null, got -6.0",
        ),
        (
            {"linear_attn_config": LinearAttnConfig(num_heads=0)},
            "model.linear_attn_config.num_heads must be at least 1, got 0",
        ),
        ({"linear_attn_config": LinearAttnConfig(full_attn_layers=[0])}, "1-based layer numbers up to 4, got 0"),
        (
            {"linear_attn_config": LinearAttnConfig(full_attn_layers=[4, 4])},
            r"full_attn_layers must name each layer once, got \[4, 4\]",
        ),
        ({"num_hidden_layers": 10**6}, "model.num_hidden_layers must be at most 1000, got 1000000"),
        ({"num_experts": 10**6}, "model.num_experts must be at most 65536, got 1000000"),
        ({"hidden_size": 10**9}, "model.hidden_size must be at most 1048576, got 1000000000"),
        ({"num_attention_heads": 10**9}, "model.num_attention_heads must be at most 65536, got 1000000000"),
        (
            {"linear_attn_config": LinearAttnConfig(head_dim=2**21)},
            "model.linear_attn_config.head_dim must be at most 1048576, got 2097152",
        ),
        ({"max_position_embeddings": 2**31}, "model.max_position_embeddings must be at most 2147483647"),
        ({"rms_norm_eps": 0.0}, "model.rms_norm_eps must be above 0, got 0.0"),
        ({"qk_norm_eps": -1e-6}, "model.qk_norm_eps must be above 0, got -1e-06"),
        ({"initializer_range": 0.0}, "model.initializer_range must be above 0, got 0.0"),
        ({"activation_situ_beta": -4.0}, "model.activation_situ_beta must be above 0, got -4.0"),
        ({"activation_situ_linear_beta": float("nan")}, "model.activation_situ_linear_beta must be above 0, got nan"),
        ({"routed_scaling_factor": 0.0}, "model.routed_scaling_factor must be above 0, got 0.0"),
    ],
)
def test_impossible_models_are_refused(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ModelConfig(**changes)
