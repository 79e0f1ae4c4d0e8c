"""Small models whose weights hide nothing, for the tests of `model/`.

Weights decay slowly (alpha of at least 0.998 a token): with fast decay a state that leaks, or is lost, hides. Values
that start at zero or one (pseudo-queries, norm weights, router bias) are drawn too.
"""

from dataclasses import replace

import torch
from torch import Tensor

from segue.conf.model_config import HiddenAct, LinearAttnConfig, ModelConfig
from segue.model.inputs import PackedInputs
from segue.model.network import SegueModel, build_model
from segue.model.routing import Routing
from segue.model.state import DifferentiableState


def make_config(**changes) -> ModelConfig:
    """KDA MLA KDA KDA MLA: both kinds begin, continue and end blocks of 2; the last block is partial."""
    config = ModelConfig(
        vocab_size=40,
        hidden_size=24,
        num_hidden_layers=5,
        num_attention_heads=3,
        intermediate_size=40,
        q_lora_rank=12,
        kv_lora_rank=10,
        qk_nope_head_dim=8,
        qk_rope_head_dim=4,
        v_head_dim=6,
        linear_attn_config=LinearAttnConfig(full_attn_layers=[2, 5], num_heads=2, head_dim=16),
        num_experts=6,
        num_experts_per_token=2,
        num_shared_experts=2,
        moe_intermediate_size=10,
        routed_expert_hidden_size=14,
    )
    return replace(config, **changes)


def make_linear_config() -> ModelConfig:
    """The same layers as Kimi-Linear has them: no K3 feature."""
    linear = LinearAttnConfig(
        full_attn_layers=[2, 5], num_heads=2, head_dim=16, use_full_rank_gate=False, gate_lower_bound=None
    )
    return make_config(
        linear_attn_config=linear,
        hidden_act=HiddenAct.silu,
        q_lora_rank=None,
        mla_use_output_gate=False,
        routed_expert_hidden_size=None,
        latent_moe_use_norm=False,
        attn_res_block_size=None,
        routed_scaling_factor=2.446,
        num_shared_experts=1,
    )


def make_model(config: ModelConfig, *, dtype: torch.dtype = torch.float64, seed: int = 0) -> SegueModel:
    """A model with drawn weights and slow decay."""
    generator = torch.Generator().manual_seed(seed)
    model = build_model(config, dtype)
    model.init_weights(generator)

    def draw(tensor: Tensor) -> Tensor:
        return torch.randn(tensor.shape, generator=generator, dtype=torch.float64)

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("A_log"):
                parameter.copy_(0.1 * draw(parameter))
            elif name.endswith("dt_bias"):
                parameter.copy_(-9 - draw(parameter).abs())
            elif name.endswith("f_b_proj.weight"):
                parameter.mul_(0.1)
            elif "_res_proj." in name:
                parameter.copy_(draw(parameter))
            elif parameter.dim() == 1:
                parameter.copy_(1 + 0.3 * draw(parameter))
        for buffer in model.buffers():
            buffer.copy_(0.2 * draw(buffer))
    return model


def make_tokens(length: int, *, seed: int, vocab_size: int = 40) -> Tensor:
    """[length] int64."""
    return torch.randint(0, vocab_size, (length,), generator=torch.Generator().manual_seed(seed))


def run_whole(model: SegueModel, sequences: list[Tensor], routing: Routing | None = None) -> list[Tensor]:
    """Hidden states of sequences packed into one forward from empty states, per sequence."""
    inputs = PackedInputs.pack(sequences)
    state = DifferentiableState.zeros(model.config, len(sequences), model.lm_head.weight.dtype)
    hidden, _ = model(inputs, state, routing or Routing())
    return list(hidden.split([len(sequence) for sequence in sequences]))


def max_error(value: Tensor, reference: Tensor) -> float:
    """Largest difference over the root mean square of the reference."""
    return ((value - reference).abs().max() / reference.square().mean().sqrt()).item()
