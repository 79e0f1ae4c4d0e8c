"""KDA with the unbounded softplus decay of Kimi Linear in its chunk form.

Without a bound, exp(-G) overflows within a tile; so the decay between two tokens of a tile is taken per pair and
channel. The scan over tiles is the one of the bounded form.

T tokens, N sequences, H heads, K key width, V value width, B tiles, C tokens of a tile.
"""

from typing import Any

import torch
from torch import Tensor

from segue.kernels.kda.gate import L2_EPS, log_decay
from segue.kernels.kda.layout import CHUNK, ChunkLayout
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


def softplus_kda(
    q_THK: Tensor,
    k_THK: Tensor,
    v_THV: Tensor,
    gate_logits_THK: Tensor,
    beta_logits_TH: Tensor,
    A_log_H: Tensor,
    dt_bias: Tensor,
    state_NHVK: Tensor,
    *,
    layout: ChunkLayout,
) -> tuple[Tensor, Tensor]:
    """Arguments as `kda`, with the layout in place of the offsets, all in the computing dtype."""
    K = q_THK.shape[-1]
    q = layout.to_tiles(q_THK * ((q_THK * q_THK).sum(-1, keepdim=True) + L2_EPS).rsqrt() * K**-0.5)
    k = layout.to_tiles(k_THK * ((k_THK * k_THK).sum(-1, keepdim=True) + L2_EPS).rsqrt())
    is_token = layout.is_token[:, :, None]
    log_decay_tiles = layout.to_tiles(log_decay(gate_logits_THK, A_log_H, dt_bias, None))
    total = torch.where(is_token, log_decay_tiles, 0).cumsum(1)
    beta = torch.where(is_token, layout.to_tiles(torch.sigmoid(beta_logits_TH)[:, :, None]), 0).squeeze(-1)
    is_later = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).triu(1)[:, :, None]
    decayed = k[:, None] * (total[:, :, None] - total[:, None]).masked_fill(is_later, float("-inf")).exp()
    query_key, key_key = (decayed @ torch.stack([q, k], -1)).unbind(-1)
    tiles = Tiles(
        query_in=q * total.exp(),
        key_in=k * total.exp(),
        key_out=decayed[:, -1],
        decay=total[:, -1].exp(),
        value=layout.to_tiles(v_THV),
        beta=beta,
    )
    output, final = _DeltaScan.apply(*tiles, query_key, key_key, layout.to_ranked(state_NHVK), layout)
    return layout.to_tokens(output), layout.from_ranked(final)


class _DeltaScan(torch.autograd.Function):
    """Outputs and final states as a function of the tiles, their inner products and the initial states."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor]:
        *fields, query_key, key_key, state, layout = arguments
        tiles = Tiles(*fields)
        solve = solve_keys(key_key, tiles.beta, out=torch.empty_like(key_key))
        solved = Solved(query_key, solve, solve @ tiles.key_in, solve @ tiles.value)
        B, V, K = len(tiles.beta), tiles.value.shape[-1], tiles.decay.shape[-1]
        transition, written = state.new_empty(B, K, K), state.new_empty(B, K, V)
        read, output = torch.empty_like(tiles.query_in), torch.empty_like(tiles.value)
        affine_map(tiles, solved, transition=transition, written=written)
        readout(tiles, solved, read=read, own=output)
        state_in, final = carry(transition, written, state, layout)
        ctx.save_for_backward(*tiles, *solved, transition, read, state_in)
        ctx.layout = layout
        return output.baddbmm_(read, state_in), final

    @staticmethod
    def backward(ctx: Any, d_output: Tensor, d_final: Tensor) -> tuple[Tensor | None, ...]:
        *saved, transition, read, state_in = ctx.saved_tensors
        tiles, solved = Tiles(*saved[: len(Tiles._fields)]), Solved(*saved[len(Tiles._fields) :])
        d_state_out, d_state = carry_backward(transition, read.mT @ d_output, d_final, ctx.layout)
        d_tiles, d_query_key, d_key_key = tiles_backward(d_output, d_state_out, state_in, tiles, solved)
        d_beta = d_tiles.beta / tiles.beta.clamp_min(torch.finfo(d_output.dtype).tiny)
        return *d_tiles._replace(beta=d_beta), d_query_key, d_key_key, d_state, None
