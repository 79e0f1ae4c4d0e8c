"""KDA with lower-bounded decay in its chunk form: one autograd function with a hand-written backward.

The log decay is at least -5, so over a tile of 16 tokens its sum G is at least -80, and exp(-G) at most e^80, which
fp32 holds. The decay between tokens i and j of a tile, exp(G_i - G_j), is therefore the product of one factor per
token, and all tiles, the diagonal ones too, are dense matrix products. Nothing refers to a token's future: G starts at
the tile's start.

T tokens, N sequences, H heads, K key width, V value width, B tiles, C tokens of a tile.
"""

from typing import Any

import torch
from torch import Tensor

from segue.kernels.kda.gate import L2_EPS
from segue.kernels.kda.layout import CHUNK, ChunkLayout
from segue.kernels.kda.scan import Scan, Tiles, scan_backward, scan_forward


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
        dtype = state_NHVK.dtype
        q, k, v, gate = (layout.to_tiles(x).to(dtype) for x in (q_THK, k_THK, v_THV, gate_logits_THK))
        q_rate, k_rate = _inverse_norm(q).mul_(q.shape[-1] ** -0.5), _inverse_norm(k)
        q.mul_(q_rate)
        k.mul_(k_rate)
        rate_H11, bias_HK = A_log_H.exp()[:, None, None], dt_bias.view(q_THK.shape[1:])
        gate_by_head = gate.unflatten(0, (-1, layout.num_heads))
        torch.addcmul(rate_H11 * bias_HK[:, None], gate_by_head, rate_H11, out=gate_by_head)
        gate.sigmoid_()
        beta = layout.to_tiles(beta_logits_TH[:, :, None]).to(dtype).squeeze(-1).sigmoid_()
        # padding neither decays nor writes
        gate.view(-1, gate.shape[-1]).index_fill_(0, layout.padding, 0)
        beta.view(-1).index_fill_(0, layout.padding, 0)

        decay_in = (_running_sum(lower_bound, gate) @ gate).exp_()
        key_back = k / decay_in
        query_in, key_in = q * decay_in, k * decay_in
        tiles = Tiles(
            query_in=query_in,
            key_in=key_in,
            key_out=key_back * decay_in[:, -1:],
            decay=decay_in[:, -1],
            query_key=(query_in @ key_back.mT).tril_(),
            key_key=key_in @ key_back.mT,
            value=v,
            beta=beta,
        )
        output, final, scan = scan_forward(tiles, layout.to_ranked(state_NHVK), layout)
        ctx.save_for_backward(gate_logits_THK, A_log_H, dt_bias, q, k, q_rate, k_rate, gate, decay_in, *tiles, *scan)
        ctx.layout, ctx.lower_bound = layout, lower_bound
        ctx.dtypes = (q_THK.dtype, k_THK.dtype, v_THV.dtype, gate_logits_THK.dtype, beta_logits_TH.dtype)
        return layout.to_tokens(output).to(v_THV.dtype), layout.from_ranked(final)

    @staticmethod
    def backward(ctx: Any, d_o_THV: Tensor, d_state_NHVK: Tensor) -> tuple[Tensor | None, ...]:
        gate_logits_THK, A_log_H, dt_bias, q, k, q_rate, k_rate, gate, decay_in, *saved = ctx.saved_tensors
        tiles, scan = Tiles(*saved[: len(Tiles._fields)]), Scan(*saved[len(Tiles._fields) :])
        layout: ChunkLayout = ctx.layout
        d_output = layout.to_tiles(d_o_THV).to(q.dtype)
        d_output.view(-1, d_output.shape[-1]).index_fill_(0, layout.padding, 0)
        d, d_initial = scan_backward(d_output, layout.to_ranked(d_state_NHVK), tiles, scan, layout)

        # to the queries and keys with their decay factors
        key_back = k / decay_in
        d_query_in = d.query_in.baddbmm_(d.query_key, key_back)
        d_key_in = d.key_in.baddbmm_(d.key_key, key_back)
        d_total_end = (tiles.key_out * d.key_out).sum(1).addcmul_(tiles.decay, d.decay)
        d_key_back = d.key_out.mul_(tiles.decay[:, None])
        d_key_back.baddbmm_(d.query_key.mT, tiles.query_in).baddbmm_(d.key_key.mT, tiles.key_in)

        # to the running sum of log decays; each factor is an exponential, so its gradient is a product with itself
        d_total = tiles.query_in * d_query_in
        from_key_in, from_key_back = tiles.key_in * d_key_in, key_back * d_key_back
        q_dot = d_total.sum(-1, keepdim=True)
        k_dot = from_key_in.sum(-1, keepdim=True).add_(from_key_back.sum(-1, keepdim=True))
        d_total.add_(from_key_in).sub_(from_key_back)
        d_total[:, -1].add_(d_total_end)
        d_gate = _running_sum(ctx.lower_bound, gate).mT @ d_total
        d_logits_THK = layout.to_tokens(d_gate.mul_(torch.addcmul(gate, gate, gate, value=-1)))
        d_logits_THK.mul_(A_log_H.exp()[:, None])
        d_bias_HK = d_logits_THK.sum(0)
        d_A_log_H = (d_logits_THK * gate_logits_THK).sum(0).addcmul_(d_bias_HK, dt_bias.view_as(d_bias_HK)).sum(-1)

        # through the L2 norms: what lies along the vector drops out
        d_q = d_query_in.mul_(decay_in).addcmul_(q, q_dot, value=-q.shape[-1]).mul_(q_rate)
        d_k = d_key_in.mul_(decay_in).addcdiv_(d_key_back, decay_in).addcmul_(k, k_dot, value=-1).mul_(k_rate)
        d_beta_logits = d.beta.mul_(1 - tiles.beta)
        d_tokens = [layout.to_tokens(x) for x in (d_q, d_k, d.value)]
        d_tokens += [d_logits_THK, layout.to_tokens(d_beta_logits[:, :, None]).squeeze(-1)]
        d_inputs = [x.to(dtype) for x, dtype in zip(d_tokens, ctx.dtypes, strict=True)]
        return *d_inputs, d_A_log_H, d_bias_HK.flatten(), layout.from_ranked(d_initial), None, None


def _inverse_norm(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().add_(L2_EPS).rsqrt_()


def _running_sum(scale: float, like: Tensor) -> Tensor:
    """[C, C]: times [C, K], the sum of the rows up to each, times `scale`."""
    return like.new_full((CHUNK, CHUNK), scale).tril_()
