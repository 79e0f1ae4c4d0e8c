"""Start values: distributions by kind of parameter, determinism over dtypes."""

import math

import pytest
import torch

from segue.conf.model_config import LinearAttnConfig, ModelConfig
from segue.model.network import SegueModel, build_model


def make_model(*, dtype: torch.dtype = torch.float32, **changes) -> SegueModel:
    config = ModelConfig(
        **{"linear_attn_config": LinearAttnConfig(full_attn_layers=[2], head_dim=64), "num_hidden_layers": 2, **changes}
    )
    model = build_model(config, dtype)
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.fill_(torch.nan)
    model.init_weights(torch.Generator().manual_seed(0))
    return model


def test_matrices_scale_with_their_input_and_output_projections_with_depth() -> None:
    model = make_model()
    depth = math.sqrt(2 * 2)
    expected = {
        "model.embed_tokens.weight": 0.5,
        "lm_head.weight": 0.02,
        "model.layers.0.self_attn.q_proj.weight": 96**-0.5,
        "model.layers.0.self_attn.f_b_proj.weight": 64**-0.5,
        "model.layers.0.self_attn.o_proj.weight": 192**-0.5 / depth,
        "model.layers.0.mlp.down_proj.weight": 384**-0.5 / depth,
        "model.layers.1.self_attn.q_b_proj.weight": 64**-0.5,
        "model.layers.1.self_attn.o_proj.weight": 96**-0.5 / depth,
        "model.layers.1.block_sparse_moe.gate.weight": 96**-0.5,
        "model.layers.1.block_sparse_moe.experts.w1": 48**-0.5,
        "model.layers.1.block_sparse_moe.experts.w3": 48**-0.5,
        "model.layers.1.block_sparse_moe.experts.w2": 48**-0.5 / depth,
        "model.layers.1.block_sparse_moe.routed_expert_down_proj.weight": 96**-0.5,
        "model.layers.1.block_sparse_moe.routed_expert_up_proj.weight": 48**-0.5 / depth,
        "model.layers.1.block_sparse_moe.shared_experts.down_proj.weight": 48**-0.5 / depth,
    }
    weights = model.state_dict()
    for name, std in expected.items():
        # a sample of n has a standard error of std / sqrt(2 n); 4 of them
        tolerance = 4 / math.sqrt(2 * weights[name].numel())
        assert weights[name].std().item() == pytest.approx(std, rel=tolerance), name


def test_a_given_range_holds_for_every_matrix() -> None:
    model = make_model(initializer_range=0.006)
    for name, parameter in model.named_parameters():
        is_matrix = parameter.dim() > 1 and "conv1d" not in name and "_res_proj" not in name
        if is_matrix and parameter.numel() > 3000:
            tolerance = 4 / math.sqrt(2 * parameter.numel())
            assert parameter.std().item() == pytest.approx(0.006, rel=tolerance), name


def test_decay_starts_between_its_bounds() -> None:
    model = make_model()
    attention = model.model.layers[0].self_attn
    assert (attention.A_log == 0).all()
    steps = torch.log1p(attention.dt_bias.exp())
    assert steps.min() >= 1e-3 * 0.999
    assert steps.max() <= 1e-1 * 1.001
    # log-uniform over a factor of 100: the mean of the logarithm is its middle, std of the mean log(100) / sqrt(12 n)
    middle = (math.log(1e-3) + math.log(1e-1)) / 2
    assert steps.log().mean().item() == pytest.approx(middle, abs=4 * math.log(100) / math.sqrt(12 * 192))
    # the log decay at zero projection, -5 sigmoid(dt_bias), lies in the published range
    decay = -5 * torch.sigmoid(attention.dt_bias)
    assert decay.min() > -0.477
    assert decay.max() < -0.0049


def test_mixtures_start_uniform_norms_at_one_and_biases_at_zero() -> None:
    model = make_model()
    for name, tensor in model.state_dict().items():
        if "_res_proj" in name or name.endswith("e_score_correction_bias"):
            assert (tensor == 0).all(), name
        elif "norm" in name:
            assert (tensor == 1).all(), name
        elif "conv1d" in name:
            assert tensor.abs().max() <= 0.5
            assert tensor.std().item() == pytest.approx(1 / math.sqrt(12), rel=0.1)


def test_the_same_seed_gives_the_same_weights_in_every_dtype() -> None:
    wide, narrow = make_model().state_dict(), make_model(dtype=torch.bfloat16).state_dict()
    for name, tensor in narrow.items():
        assert torch.equal(tensor, wide[name].to(tensor.dtype)), name
