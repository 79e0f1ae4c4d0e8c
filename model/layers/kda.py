"""Kimi Delta Attention: linear attention whose state decays per channel and is rewritten by the delta rule.

Legend: T new tokens, N sequences, D model width, H heads, K key width (= value width), W convolution taps.
"""

import torch
from torch import Tensor, nn

from segue.conf.model_config import ModelConfig
from segue.kernels.kda.decode import kda_decode
from segue.kernels.kda.op import kda, kda_step
from segue.kernels.norm.op import gated_head_norm
from segue.kernels.short_conv.op import short_conv, short_conv_step
from segue.model.layers.linear import Derived, JointLinear, Linear, RmsNorm, ShortConv, side_by_side
from segue.model.state import StateStore


class KimiDeltaAttention(nn.Module):
    """One KDA layer; `kda_index` is its place among the KDA layers.

    Source:
        Kimi K3 technical report, arXiv 2607.24653, sec. 2.1.1; Kimi Linear report for the unbounded gate.
    """

    def __init__(self, config: ModelConfig, kda_index: int, dtype: torch.dtype) -> None:
        super().__init__()
        linear = config.linear_attn_config
        self.kda_index = kda_index
        self.num_heads, self.head_dim = linear.num_heads, linear.head_dim
        self.lower_bound = linear.gate_lower_bound
        self.has_full_rank_gate = linear.use_full_rank_gate
        width, wide = self.num_heads * self.head_dim, torch.promote_types(dtype, torch.float32)

        self.q_proj = Linear(config.hidden_size, width, dtype)
        self.k_proj = Linear(config.hidden_size, width, dtype)
        self.v_proj = Linear(config.hidden_size, width, dtype)
        self.q_conv1d = ShortConv(width, linear.short_conv_kernel_size, dtype)
        self.k_conv1d = ShortConv(width, linear.short_conv_kernel_size, dtype)
        self.v_conv1d = ShortConv(width, linear.short_conv_kernel_size, dtype)
        self.f_a_proj = Linear(config.hidden_size, self.head_dim, dtype)
        self.f_b_proj = Linear(self.head_dim, width, dtype)
        self.dt_bias = nn.Parameter(torch.empty(width, dtype=wide))
        self.A_log = nn.Parameter(torch.empty(self.num_heads, dtype=wide))
        self.b_proj = Linear(config.hidden_size, self.num_heads, dtype)
        if self.has_full_rank_gate:
            self.g_proj = Linear(config.hidden_size, width, dtype)
        else:
            self.g_a_proj = Linear(config.hidden_size, self.head_dim, dtype)
            self.g_b_proj = Linear(self.head_dim, width, dtype)
        self._joint_proj = JointLinear(
            self.q_proj, self.k_proj, self.v_proj, self.b_proj, self.f_a_proj,
            self.g_proj if self.has_full_rank_gate else self.g_a_proj,
        )  # fmt: skip
        self._taps = Derived(_join_taps, self.q_conv1d, self.k_conv1d, self.v_conv1d)
        self.o_norm = RmsNorm(self.head_dim, config.rms_norm_eps, wide)
        self.o_proj = Linear(width, config.hidden_size, dtype)

    def forward(self, x: Tensor, store: StateStore) -> Tensor:
        """[T, D] to [T, D]; reads and writes the layer's state."""
        if store.incremental:
            return self._step(x, store)
        qkv = torch.cat([self.q_proj(x), self.k_proj(x), self.v_proj(x)], dim=1)
        conv_weight = torch.cat([self.q_conv1d.weight, self.k_conv1d.weight, self.v_conv1d.weight]).squeeze(1)
        recurrent, conv = store.read_recurrent(self.kda_index)
        qkv, conv = short_conv(qkv, conv_weight, conv, store.offsets)

        q, k, v = qkv.view(-1, 3, self.num_heads, self.head_dim).unbind(1)
        decay_logits = self.f_b_proj(self.f_a_proj(x)).view(-1, self.num_heads, self.head_dim)
        gates = (decay_logits, self.b_proj(x), self.A_log, self.dt_bias)
        o, recurrent = kda(q, k, v, *gates, recurrent, store.offsets, lower_bound=self.lower_bound)
        store.write_recurrent(self.kda_index, recurrent, conv)

        output_gate = self.g_proj(x) if self.has_full_rank_gate else self.g_b_proj(self.g_a_proj(x))
        return self.o_proj(gated_head_norm(o, output_gate, self.o_norm.weight, self.o_norm.eps))

    def _step(self, x: Tensor, store: StateStore) -> Tensor:
        """The same for one token of every sequence: recurrent form, products of `x` together."""
        q, k, v, beta_logits, decay, output_gate = self._joint_proj(x)
        qkv, decay_logits = side_by_side(q, k, v), self.f_b_proj(decay)
        if not self.has_full_rank_gate:
            output_gate = self.g_b_proj(output_gate)
        step = self._step_in_place if x.is_cuda else self._step_apart
        return self.o_proj(step(qkv, decay_logits, beta_logits, output_gate, store))

    def _step_apart(
        self, qkv: Tensor, decay_logits: Tensor, beta_logits: Tensor, output_gate: Tensor, store: StateStore
    ) -> Tensor:
        """From projections to what the output projection takes, [T, H * V], by an operator after the other."""
        recurrent, conv = store.read_recurrent(self.kda_index)
        qkv, conv = short_conv_step(qkv, self._taps().T, conv)
        q, k, v = qkv.view(-1, 3, self.num_heads, self.head_dim).unbind(1)
        gates = (decay_logits.view(-1, self.num_heads, self.head_dim), beta_logits, self.A_log, self.dt_bias)
        o, recurrent = kda_step(q, k, v, *gates, recurrent, lower_bound=self.lower_bound)
        store.write_recurrent(self.kda_index, recurrent, conv)
        return gated_head_norm(o, output_gate, self.o_norm.weight, self.o_norm.eps)

    def _step_in_place(
        self, qkv: Tensor, decay_logits: Tensor, beta_logits: Tensor, output_gate: Tensor, store: StateStore
    ) -> Tensor:
        """The same in one launch, which finds each sequence's state where all states are."""
        recurrent, conv, slots = store.recurrent_in_place(self.kda_index)
        y = kda_decode(
            qkv.unsqueeze(1), decay_logits.unsqueeze(1), beta_logits.unsqueeze(1), output_gate.unsqueeze(1),
            self._taps(), self.A_log, self.dt_bias, self.o_norm.weight, recurrent, conv, slots,
            lower_bound=self.lower_bound, eps=self.o_norm.eps,
        )  # fmt: skip
        return y.squeeze(1)


def _join_taps(*weights: Tensor) -> Tensor:
    """Convolution weights [C, 1, W] side by side, tap after tap, [W, 3 C]."""
    return torch.cat(weights).squeeze(1).T.contiguous()
