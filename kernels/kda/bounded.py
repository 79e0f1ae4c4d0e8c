"""KDA with lower-bounded decay in its chunk form: one autograd function with a hand-written backward.

The log decay is at least -5, so over a tile of 16 tokens its sum G is at least -80, and exp(-G) at most e^80, which
fp32 holds. The decay between tokens i and j of a tile, exp(G_i - G_j), is therefore the product of one factor per
token, and all tiles, the diagonal ones too, are dense matrix products. Nothing refers to a token's future: G starts at
the tile's start.

The work within tiles goes by blocks, which bounds its memory and keeps it near the processor's cache; the cheap part is
done again in the backward pass. Kept per tile are the inputs, the entering state, its map, the queries that read it
and two [C, C] matrices.

T tokens, N sequences, H heads, K key width, V value width, B tiles, C tokens of a tile.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from segue.kernels.kda.gate import L2_EPS
from segue.kernels.kda.layout import CHUNK, Block
from segue.kernels.kda.scan import (
    Solved,
    Tiles,
    affine_map,
    carry,
    carry_backward,
    readout,
    solve_keys,
    tiles_backward,
)


class _Inputs(NamedTuple):
    q_THK: Tensor
    k_THK: Tensor
    v_THV: Tensor
    gate_logits_THK: Tensor
    beta_logits_TH: Tensor
    A_log_H: Tensor
    dt_bias: Tensor


class _Prepared(NamedTuple):
    """A block of tiles before the decay factors are applied."""

    query: Tensor
    """[B, C, K]: normalised, times the query scale."""
    key: Tensor
    """[B, C, K]: normalised."""
    query_rate: Tensor
    """[B, C, 1]: factor from the input to `query`."""
    key_rate: Tensor
    gate_argument: Tensor
    """[B, C, K]: exp(A_log) * (logit + dt_bias)."""
    gate: Tensor
    """[B, C, K]: its sigmoid; 0 for padding."""
    decay_in: Tensor
    """[B, C, K]: decay from the tile's start through each token."""
    key_back: Tensor
    """[B, C, K]: keys over `decay_in`."""


class BoundedKDA(torch.autograd.Function):
    """Arguments as `kda`, with the layout in place of the offsets; parameters and state in the computing dtype."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor]:
        *tensors, state_NHVK, layout, lower_bound = arguments
        inputs = _Inputs(*tensors)
        B, K, V = layout.num_tiles, inputs.q_THK.shape[-1], inputs.v_THV.shape[-1]
        transition, written = state_NHVK.new_empty(B, K, K), state_NHVK.new_empty(B, K, V)
        read, output = state_NHVK.new_empty(B, CHUNK, K), state_NHVK.new_empty(B, CHUNK, V)
        query_key, solve = state_NHVK.new_empty(2, B, CHUNK, CHUNK)
        for block in layout.blocks:
            prepared, tiles = _make_tiles(inputs, block, lower_bound)
            keys = prepared.key_back.mT
            torch.bmm(tiles.query_in, keys, out=query_key[block.tiles]).tril_()
            solve_keys(tiles.key_in @ keys, tiles.beta, out=solve[block.tiles])
            solved = _solved(tiles, query_key[block.tiles], solve[block.tiles])
            affine_map(tiles, solved, transition=transition[block.tiles], written=written[block.tiles])
            readout(tiles, solved, read=read[block.tiles], own=output[block.tiles])
        state_in, final = carry(transition, written, layout.to_ranked(state_NHVK), layout)
        output.baddbmm_(read, state_in)
        ctx.save_for_backward(*inputs, transition, read, query_key, solve, state_in)
        ctx.layout, ctx.lower_bound = layout, lower_bound
        return layout.to_tokens(output).to(inputs.v_THV.dtype), layout.from_ranked(final)

    @staticmethod
    def backward(ctx: Any, d_o_THV: Tensor, d_state_NHVK: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, transition, read, query_key, solve, state_in = ctx.saved_tensors
        inputs, layout = _Inputs(*tensors), ctx.layout
        K, rate = inputs.q_THK.shape[-1], inputs.A_log_H.exp()[:, None, None]
        d_output = layout.to_tiles(d_o_THV).to(read.dtype)
        d_output.view(-1, d_output.shape[-1]).index_fill_(0, layout.padding, 0)
        d_state_out, d_initial = carry_backward(transition, read.mT @ d_output, layout.to_ranked(d_state_NHVK), layout)
        num_rows = inputs.v_THV.shape[0] * layout.num_heads
        # a row more than there are: padding rows of tiles land there
        d_tokens = [x.new_empty(num_rows + 1, *x.shape[2:]) for x in inputs[:5]]
        d_A_log_H, d_bias_H1K = torch.zeros_like(inputs.A_log_H), inputs.dt_bias.new_zeros(layout.num_heads, 1, K)
        for block in layout.blocks:
            prepared, tiles = _make_tiles(inputs, block, ctx.lower_bound)
            solved = _solved(tiles, query_key[block.tiles], solve[block.tiles])
            d_tiles = tiles_backward(
                d_output[block.tiles], d_state_out[block.tiles], state_in[block.tiles], tiles, solved
            )
            d_block = _make_tiles_backward(*d_tiles, prepared, tiles, ctx.lower_bound)
            by_head = d_block[3].unflatten(0, (-1, layout.num_heads))
            d_A_log_H += (d_block[3] * prepared.gate_argument).view(by_head.shape).sum((0, 2, 3))
            d_bias_H1K += by_head.mul_(rate).sum((0, 2), keepdim=True)[0]
            for d_rows, d in zip(d_tokens, d_block, strict=True):
                d_rows.index_copy_(0, block.token_rows, d.flatten(0, 1).to(d_rows.dtype))
        d_inputs = [d_rows[:-1].view(x.shape) for d_rows, x in zip(d_tokens, inputs[:5], strict=True)]
        return *d_inputs, d_A_log_H, d_bias_H1K.flatten(), layout.from_ranked(d_initial), None, None


def _make_tiles(inputs: _Inputs, block: Block, lower_bound: float) -> tuple[_Prepared, Tiles]:
    dtype, H = inputs.A_log_H.dtype, inputs.A_log_H.shape[0]
    query, key, value, gate_argument = (block.gather(x).to(dtype) for x in inputs[:4])
    query_rate, key_rate = _inverse_norm(query).mul_(query.shape[-1] ** -0.5), _inverse_norm(key)
    query.mul_(query_rate)
    key.mul_(key_rate)
    rate_H11, bias_H1K = inputs.A_log_H.exp()[:, None, None], inputs.dt_bias.view(H, 1, -1)
    by_head = gate_argument.unflatten(0, (-1, H))
    by_head.add_(bias_H1K).mul_(rate_H11)
    gate = gate_argument.sigmoid()
    beta = block.gather(inputs.beta_logits_TH[:, :, None]).to(dtype).squeeze(-1).sigmoid_()
    # padding neither decays nor writes
    gate.view(-1, gate.shape[-1]).index_fill_(0, block.padding, 0)
    beta.view(-1).index_fill_(0, block.padding, 0)
    decay_in = (_running_sum(lower_bound, gate) @ gate).exp_()
    key_back = key / decay_in
    tiles = Tiles(
        query_in=query * decay_in,
        key_in=key * decay_in,
        key_out=key_back * decay_in[:, -1:],
        decay=decay_in[:, -1],
        value=value,
        beta=beta,
    )
    return _Prepared(query, key, query_rate, key_rate, gate_argument, gate, decay_in, key_back), tiles


def _solved(tiles: Tiles, query_key: Tensor, solve: Tensor) -> Solved:
    return Solved(query_key, solve, solve @ tiles.key_in, solve @ tiles.value)


def _make_tiles_backward(
    d: Tiles, d_query_key: Tensor, d_key_key: Tensor, prepared: _Prepared, tiles: Tiles, lower_bound: float
) -> tuple[Tensor, ...]:
    """Gradients of a block's query, key, value, gate argument and beta logits; overwrites `d`."""
    query, key, query_rate, key_rate, _, gate, decay_in, key_back = prepared
    d_query_in = d.query_in.baddbmm_(d_query_key, key_back)
    d_key_in = d.key_in.baddbmm_(d_key_key, key_back)
    d_total_end = (tiles.key_out * d.key_out).sum(1).addcmul_(tiles.decay, d.decay)
    d_key_back = d.key_out.mul_(tiles.decay[:, None])
    d_key_back.baddbmm_(d_query_key.mT, tiles.query_in).baddbmm_(d_key_key.mT, tiles.key_in)

    # to the running sum of log decays: each factor is an exponential of it, so its gradient is a product with itself
    d_total = tiles.query_in * d_query_in
    from_key_in, from_key_back = tiles.key_in * d_key_in, key_back * d_key_back
    query_dot = d_total.sum(-1, keepdim=True)
    key_dot = from_key_in.sum(-1, keepdim=True).add_(from_key_back.sum(-1, keepdim=True))
    d_total.add_(from_key_in).sub_(from_key_back)
    d_total[:, -1].add_(d_total_end)
    d_gate = _running_sum(lower_bound, gate).mT @ d_total
    d_gate_argument = d_gate.mul_(torch.addcmul(gate, gate, gate, value=-1))

    # through the L2 norms: what lies along the vector drops out
    d_query = d_query_in.mul_(decay_in).addcmul_(query, query_dot, value=-query.shape[-1]).mul_(query_rate)
    d_key = d_key_in.mul_(decay_in).addcdiv_(d_key_back, decay_in).addcmul_(key, key_dot, value=-1).mul_(key_rate)
    d_beta_logits = d.beta.mul_(1 - tiles.beta)
    return d_query, d_key, d.value, d_gate_argument, d_beta_logits


def _inverse_norm(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().add_(L2_EPS).rsqrt_()


def _running_sum(scale: float, like: Tensor) -> Tensor:
    """[C, C]: times [C, K], the sum of the rows up to each, times `scale`."""
    return like.new_full((CHUNK, CHUNK), scale).tril_()
