"""AdamW's groups."""

from learner_cases import make_config, make_model

from segue.conf.schema import OptimizerConfig
from segue.learner.optimizer import build_optimizer


def test_only_matrices_decay():
    model = make_model(make_config())
    optimizer = build_optimizer(model.named_parameters(), OptimizerConfig(weight_decay=0.1), {})
    decays = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    names = {name: decays[id(p)] for name, p in model.named_parameters()}
    assert len(names) == len(decays)
    undecayed = {name.split("layers.0.")[-1] for name, decay in names.items() if decay == 0.0 and ".layers.0." in name}
    # written out from the model's description: norms, decay parameters, taps, pseudo-queries
    assert undecayed == {
        "self_attn.A_log", "self_attn.dt_bias", "self_attn.o_norm.weight",
        "self_attn.q_conv1d.weight", "self_attn.k_conv1d.weight", "self_attn.v_conv1d.weight",
        "input_layernorm.weight", "post_attention_layernorm.weight",
        "self_attention_res_norm.weight", "self_attention_res_proj.weight",
        "mlp_res_norm.weight", "mlp_res_proj.weight",
    }  # fmt: skip
    assert names["model.embed_tokens.weight"] == 0.0
    assert names["lm_head.weight"] == names["model.layers.1.block_sparse_moe.experts.w1"] == 0.1
