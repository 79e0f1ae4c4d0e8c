"""KDA with the unbounded softplus decay of Kimi Linear in its chunk form.

Without a bound, exp(-G) overflows within a tile; so the decay between two tokens of a tile is taken per pair and
channel. The scan over tiles is the one of the bounded form.

T tokens, N sequences, H heads, K key width, V value width, B tiles, C tokens of a tile.
"""

from typing import Any

import torch
from torch import Tensor

from segue.kernels.common.sigmoid import sigmoid
from segue.kernels.kda.gate import L2_EPS, log_decay
from segue.kernels.kda.layout import CHUNK, ChunkLayout
from segue.kernels.kda.scan import Scan, Tiles, scan_backward, scan_forward


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
    beta = torch.where(is_token, layout.to_tiles(sigmoid(beta_logits_TH)[:, :, None]), 0).squeeze(-1)
    is_later = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).triu(1)[:, :, None]
    decayed = k[:, None] * (total[:, :, None] - total[:, None]).masked_fill(is_later, float("-inf")).exp()
    query_key, key_key = (decayed @ torch.stack([q, k], -1)).unbind(-1)
    tiles = Tiles(
        query_in=q * total.exp(),
        key_in=k * total.exp(),
        key_out=decayed[:, -1],
        decay=total[:, -1].exp(),
        query_key=query_key,
        beta=beta,
    )
    output, final = _DeltaScan.apply(*tiles, key_key, layout.to_tiles(v_THV), layout.to_ranked(state_NHVK), layout)
    return layout.to_tokens(output), layout.from_ranked(final)


class _DeltaScan(torch.autograd.Function):
    """`scan_forward` as a differentiable function."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor]:
        *fields, key_key, value, state, layout = arguments
        tiles = Tiles(*fields)
        output, final, scan = scan_forward(tiles, key_key, value, state, layout)
        ctx.save_for_backward(*tiles, *scan)
        ctx.layout = layout
        return output, final

    @staticmethod
    def backward(ctx: Any, d_output: Tensor, d_final: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        tiles, scan = Tiles(*saved[: len(Tiles._fields)]), Scan(*saved[len(Tiles._fields) :])
        d_tiles, *d_others = scan_backward(d_output, d_final, tiles, scan, ctx.layout)
        d_beta = d_tiles.beta / tiles.beta.clamp_min(torch.finfo(d_output.dtype).tiny)
        return *d_tiles._replace(beta=d_beta), *d_others, None
