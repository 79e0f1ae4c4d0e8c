"""KDA with lower-bounded decay in its chunk form: one autograd function with a hand-written backward.

The log decay is at least -5, so over a tile of 16 tokens its sum G is at least -80, and exp(-G) at most e^80, which
fp32 holds. The decay between tokens i and j of a tile, exp(G_i - G_j), is therefore the product of one factor per
token, and all tiles, the diagonal ones too, are dense matrix products. Nothing refers to a token's future: G starts at
the tile's start.

T tokens, N sequences, H heads, K key width, V value width, B tiles, C tokens of a tile.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from segue.kernels.common.sigmoid import sigmoid_
from segue.kernels.kda.gate import L2_EPS
from segue.kernels.kda.layout import CHUNK, ChunkLayout
from segue.kernels.kda.scan import Scan, Tiles, scan_backward, scan_forward


class _Tokens(NamedTuple):
    """Tokens in tiles, before the decay factors are applied."""

    query: Tensor
    """[B, C, K]: normalised, times the query scale."""
    key: Tensor
    """[B, C, K]: normalised."""
    query_rate: Tensor
    """[B, C, 1]: factor from the input to `query`."""
    key_rate: Tensor
    gate: Tensor
    """[B, C, K]: sigmoid(exp(A_log) * (logit + dt_bias)); 0 for padding."""
    decay_in: Tensor
    """[B, C, K]: decay from the tile's start through each token."""


class BoundedKDA(torch.autograd.Function):
    """Arguments as `kda`, with the layout in place of the offsets; parameters and state in the computing dtype."""

    @staticmethod
    def forward(
        ctx: Any,
        q_THK: Tensor,
        k_THK: Tensor,
        v_THV: Tensor,
        gate_logits_THK: Tensor,
        beta_logits_TH: Tensor,
        A_log_H: Tensor,
        dt_bias: Tensor,
        state_NHVK: Tensor,
        layout: ChunkLayout,
        lower_bound: float,
    ) -> tuple[Tensor, Tensor]:
        dtype, H = state_NHVK.dtype, layout.num_heads
        query, key, value, gate = (layout.to_tiles(x).to(dtype) for x in (q_THK, k_THK, v_THV, gate_logits_THK))
        query_rate, key_rate = _inverse_norm(query).mul_(query.shape[-1] ** -0.5), _inverse_norm(key)
        query.mul_(query_rate)
        key.mul_(key_rate)
        gate.unflatten(0, (-1, H)).add_(dt_bias.view(H, 1, -1)).mul_(A_log_H.exp()[:, None, None])
        sigmoid_(gate)
        beta = sigmoid_(layout.to_tiles(beta_logits_TH[:, :, None]).to(dtype).squeeze(-1))
        # padding neither decays nor writes
        gate.view(-1, gate.shape[-1]).index_fill_(0, layout.padding, 0)
        beta.view(-1).index_fill_(0, layout.padding, 0)
        decay_in = (_running_sum(lower_bound, gate) @ gate).exp_()
        tokens = _Tokens(query, key, query_rate, key_rate, gate, decay_in)

        key_back, query_in, key_in = key / decay_in, query * decay_in, key * decay_in
        tiles = Tiles(
            query_in=query_in,
            key_in=key_in,
            key_out=key_back * decay_in[:, -1:],
            decay=decay_in[:, -1],
            query_key=(query_in @ key_back.mT).tril_(),
            beta=beta,
        )
        state = layout.to_ranked(state_NHVK)
        output, final, scan = scan_forward(tiles, key_in @ key_back.mT, value, state, layout)
        ctx.save_for_backward(gate_logits_THK, A_log_H, dt_bias, *tokens, *tiles, *scan)
        ctx.layout, ctx.lower_bound = layout, lower_bound
        ctx.dtypes = [x.dtype for x in (q_THK, k_THK, v_THV, gate_logits_THK, beta_logits_TH)]
        return layout.to_tokens(output).to(v_THV.dtype), layout.from_ranked(final)

    @staticmethod
    def backward(ctx: Any, d_o_THV: Tensor, d_state_NHVK: Tensor) -> tuple[Tensor | None, ...]:
        gate_logits_THK, A_log_H, dt_bias, *saved = ctx.saved_tensors
        layout: ChunkLayout = ctx.layout
        num_tokens, num_tiles = len(_Tokens._fields), len(Tiles._fields)
        query, key, query_rate, key_rate, gate, decay_in = _Tokens(*saved[:num_tokens])
        tiles, scan = Tiles(*saved[num_tokens:][:num_tiles]), Scan(*saved[num_tokens + num_tiles :])
        d_output = layout.to_tiles(d_o_THV).to(query.dtype)
        d_output.view(-1, d_output.shape[-1]).index_fill_(0, layout.padding, 0)
        d, d_key_key, d_value, d_initial = scan_backward(d_output, layout.to_ranked(d_state_NHVK), tiles, scan, layout)

        # to the queries and keys with their decay factors
        key_back = key / decay_in
        d_query_in = d.query_in.baddbmm_(d.query_key, key_back)
        d_key_in = d.key_in.baddbmm_(d_key_key, key_back)
        d_total_end = (tiles.key_out * d.key_out).sum(1).addcmul_(tiles.decay, d.decay)
        d_key_back = d.key_out.mul_(tiles.decay[:, None])
        d_key_back.baddbmm_(d.query_key.mT, tiles.query_in).baddbmm_(d_key_key.mT, tiles.key_in)

        # to the running sum of log decays: each factor is an exponential of it, so the gradient is a product
        d_total, from_key_in = tiles.query_in * d_query_in, tiles.key_in * d_key_in
        from_key_back = key_back.mul_(d_key_back)
        query_dot = d_total.sum(-1, keepdim=True)
        key_dot = from_key_in.sum(-1, keepdim=True).add_(from_key_back.sum(-1, keepdim=True))
        d_total.add_(from_key_in).sub_(from_key_back)
        d_total[:, -1].add_(d_total_end)
        d_gate = _running_sum(ctx.lower_bound, gate).mT @ d_total
        d_logits_THK = layout.to_tokens(d_gate.mul_(gate).addcmul_(d_gate, gate, value=-1))
        d_logits_THK.mul_(A_log_H.exp()[:, None])
        d_bias_HK = d_logits_THK.sum(0)
        # exp(A_log) multiplies logit + dt_bias
        d_A_log_HK = (d_logits_THK * gate_logits_THK).sum(0).addcmul_(d_bias_HK, dt_bias.view_as(d_bias_HK))

        # through the L2 norms: what lies along the vector drops out
        d_query = d_query_in.mul_(decay_in).addcmul_(query, query_dot, value=-query.shape[-1]).mul_(query_rate)
        d_key = d_key_in.mul_(decay_in).addcdiv_(d_key_back, decay_in).addcmul_(key, key_dot, value=-1).mul_(key_rate)
        d_beta_logits = d.beta.mul_(1 - tiles.beta)
        d_tokens = [*map(layout.to_tokens, (d_query, d_key, d_value)), d_logits_THK]
        d_tokens.append(layout.to_tokens(d_beta_logits[:, :, None]).squeeze(-1))
        d_inputs = [x.to(dtype) for x, dtype in zip(d_tokens, ctx.dtypes, strict=True)]
        return *d_inputs, d_A_log_HK.sum(-1), d_bias_HK.flatten(), layout.from_ranked(d_initial), None, None


def _inverse_norm(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().add_(L2_EPS).rsqrt_()


def _running_sum(scale: float, like: Tensor) -> Tensor:
    """[C, C]: times [C, K], the sum of the rows up to each, times `scale`."""
    return like.new_full((CHUNK, CHUNK), scale).tril_()
