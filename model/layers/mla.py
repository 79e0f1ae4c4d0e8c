"""Gated multi-head latent attention without positions.

Legend: T new tokens, D model width, H heads, Dn and Dr query parts, Dv value width, L latent width, R = Dr.
"""

import torch
from torch import Tensor, nn

from segue.conf.model_config import ModelConfig
from segue.kernels.common.sigmoid import sigmoid
from segue.model.layers.linear import JointLinear, Linear, RmsNorm
from segue.model.state import StateStore


class GatedMla(nn.Module):
    """One MLA layer; `mla_index` is its place among the MLA layers.

    Source:
        Kimi K3 technical report, arXiv 2607.24653, sec. 2.1.2.
    """

    def __init__(self, config: ModelConfig, mla_index: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.mla_index = mla_index
        self.num_heads = config.num_attention_heads
        self.latent_size, self.shared_key_size = config.kv_lora_rank, config.qk_rope_head_dim
        self.query_size = query_size = config.qk_nope_head_dim + config.qk_rope_head_dim
        key_value_size = config.qk_nope_head_dim + config.v_head_dim
        self.scale = query_size**-0.5
        self.has_query_latent = config.q_lora_rank is not None
        self.has_output_gate = config.mla_use_output_gate

        if config.q_lora_rank is not None:
            self.q_a_proj = Linear(config.hidden_size, config.q_lora_rank, dtype)
            self.q_a_layernorm = RmsNorm(config.q_lora_rank, config.qk_norm_eps, dtype)
            self.q_b_proj = Linear(config.q_lora_rank, self.num_heads * query_size, dtype)
        else:
            self.q_proj = Linear(config.hidden_size, self.num_heads * query_size, dtype)
        self.kv_a_proj_with_mqa = Linear(config.hidden_size, config.latent_row_size, dtype)
        self.kv_a_layernorm = RmsNorm(self.latent_size, config.qk_norm_eps, dtype)
        self.kv_b_proj = Linear(self.latent_size, self.num_heads * key_value_size, dtype)
        if self.has_output_gate:
            self.g_proj = Linear(config.hidden_size, self.num_heads * config.v_head_dim, dtype)
        query_proj = self.q_a_proj if self.has_query_latent else self.q_proj
        gate_proj = (self.g_proj,) if self.has_output_gate else ()
        self._joint_proj = JointLinear(query_proj, self.kv_a_proj_with_mqa, *gate_proj)
        self.o_proj = Linear(self.num_heads * config.v_head_dim, config.hidden_size, dtype)

    def forward(self, x: Tensor, store: StateStore) -> Tensor:
        """[T, D] to [T, D]; adds the tokens' latent rows to the state."""
        if store.incremental:
            q, latent_row, *gate = self._joint_proj(x)
        else:
            q = self.q_a_proj(x) if self.has_query_latent else self.q_proj(x)
            latent_row = self.kv_a_proj_with_mqa(x)
            gate = [self.g_proj(x)] if self.has_output_gate else []
        if self.has_query_latent:
            q = self.q_b_proj(self.q_a_layernorm(q))
        latent, shared_key = latent_row.split([self.latent_size, self.shared_key_size], dim=1)
        rows = torch.cat([self.kv_a_layernorm(latent), shared_key], dim=1)
        kv_b = self.kv_b_proj.weight.view(self.num_heads, -1, self.latent_size)
        q = q.view(-1, self.num_heads, self.query_size)
        o = store.attend(self.mla_index, q, rows, kv_b, scale=self.scale)

        # the gate meets the attention output before that is rounded to the model's dtype
        o = o.flatten(1)
        if gate:
            o = o * sigmoid(gate[0].to(o.dtype))
        return self.o_proj(o.to(x.dtype))
