"""Parts of the model and the norms of their gradients."""

import pytest
import torch
from learner_cases import make_config

from segue.learner.gradient_norm import component_norms, component_of
from segue.model.network import build_model


def test_every_parameter_belongs_to_the_part_that_it_is_named_after():
    config = make_config()
    names = [name for name, _ in build_model(config, torch.float32, "meta").named_parameters()]
    assert component_of("value_head.weight", config) == "critic"
    parts = {name: component_of(name, config) for name in names}
    # layers 0 and 2 are KDA, 1 and 3 MLA; layer 0 is dense; written out from the model's description
    expected = {
        "model.embed_tokens.weight": "embedding",
        "lm_head.weight": "head",
        "model.norm.weight": "norm",
        "model.output_attn_res_proj.weight": "residual",
        "model.layers.0.self_attn.q_proj.weight": "kda",
        "model.layers.0.self_attn.A_log": "kda",
        "model.layers.2.self_attn.q_conv1d.weight": "kda",
        "model.layers.2.self_attn.o_norm.weight": "norm",
        "model.layers.1.self_attn.q_b_proj.weight": "mla",
        "model.layers.3.self_attn.o_proj.weight": "mla",
        "model.layers.3.self_attn.q_a_layernorm.weight": "norm",
        "model.layers.0.input_layernorm.weight": "norm",
        "model.layers.0.mlp.gate_proj.weight": "dense",
        "model.layers.0.mlp_res_norm.weight": "residual",
        "model.layers.0.mlp_res_proj.weight": "residual",
        "model.layers.1.self_attention_res_proj.weight": "residual",
        "model.layers.1.block_sparse_moe.gate.weight": "router",
        "model.layers.1.block_sparse_moe.experts.w2": "experts",
        "model.layers.1.block_sparse_moe.routed_expert_down_proj.weight": "experts",
        "model.layers.1.block_sparse_moe.routed_expert_norm.weight": "norm",
        "model.layers.1.block_sparse_moe.shared_experts.gate_proj.weight": "shared",
    }
    assert {name: parts[name] for name in expected} == expected


def test_norms_add_up_the_squares_of_all_ranks_and_parameters_of_a_part():
    squares = {
        "model.embed_tokens.weight": torch.tensor(9.0),
        "model.layers.0.mlp.gate_proj.weight": torch.tensor(1.0),
        "model.layers.0.mlp.up_proj.weight": torch.tensor(3.0),
    }
    # the other rank has 16 of the embedding, and 12 of the dense layer
    found = component_norms(squares, make_config(), lambda sums: sums.add_(torch.tensor([16.0, 12.0])))
    assert found == {
        "update/gradient/norm/embedding": pytest.approx(5.0),
        "update/gradient/norm/dense": pytest.approx(4.0),
    }
