"""Chunk form of Kimi Delta Attention."""

import torch
from torch import Tensor

from segue.kernels.kda.gate import log_decay
from segue.kernels.kda.layout import CHUNK, ChunkLayout


def chunk_kda(
    q_THK: Tensor,
    k_THK: Tensor,
    v_THV: Tensor,
    gate_logits_THK: Tensor,
    beta_logits_TH: Tensor,
    A_log_H: Tensor,
    dt_bias: Tensor,
    state_NHVK: Tensor,
    layout: ChunkLayout,
    *,
    lower_bound: float | None,
) -> tuple[Tensor, Tensor]:
    """Composed of differentiable operations."""
    N, H, V, K = state_NHVK.shape
    B = layout.num_tiles

    def tiles(x: Tensor) -> Tensor:
        return x.flatten(0, 1).index_select(0, layout.rows).unflatten(0, (B, CHUNK))

    q = q_THK * ((q_THK * q_THK).sum(-1, keepdim=True) + 1e-6).rsqrt() * K**-0.5
    k = k_THK * ((k_THK * k_THK).sum(-1, keepdim=True) + 1e-6).rsqrt()
    g = tiles(log_decay(gate_logits_THK, A_log_H, dt_bias, lower_bound))
    g = g.flatten(0, 1).index_fill(0, layout.padding, 0).view_as(g)
    beta = tiles(torch.sigmoid(beta_logits_TH)[..., None])
    beta = beta.flatten(0, 1).index_fill(0, layout.padding, 0).view_as(beta)
    q, k, v = tiles(q), tiles(k), tiles(v_THV)
    G = g.cumsum(1)
    if lower_bound is None:
        ratio = (G[:, :, None] - G[:, None]).masked_fill(
            torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=g.device).triu(1)[:, :, None], float("-inf")
        ).exp()
        L = (k[:, :, None] * k[:, None] * ratio).sum(-1).tril(-1) * beta
        A = (q[:, :, None] * k[:, None] * ratio).sum(-1)
    else:
        k_minus = (k * (-G).exp()).transpose(1, 2)
        L = (k * G.exp() @ k_minus).tril(-1) * beta
        A = (q * G.exp() @ k_minus).tril()
    k_out = k * (G[:, -1:] - G).exp()
    eye = torch.eye(CHUNK, dtype=g.dtype, device=g.device)
    L2 = L @ L
    L4 = L2 @ L2
    X = (eye - L) @ (eye + L2) @ (eye + L4) @ (eye + L4 @ L4) @ (beta * torch.cat([k * G.exp(), v], -1))
    W, U = X.split([K, V], -1)
    R = q * G.exp() - A @ W
    Mt = torch.diag_embed(G[:, -1].exp()) - W.transpose(1, 2) @ k_out
    Bv = U.transpose(1, 2) @ k_out
    Z = state_NHVK.index_select(0, layout.order).flatten(0, 1)
    entering, finals = [], []
    for first, count in layout.steps:
        finals.append(Z[count * H :])
        Z = Z[: count * H]
        entering.append(Z)
        part = slice(first * H, (first + count) * H)
        Z = torch.baddbmm(Bv[part], Z, Mt[part])
    finals.append(Z)
    o = A @ U + R @ torch.cat(entering).transpose(1, 2)
    final = torch.cat(finals[::-1]).view(N, H, V, K).index_select(0, layout.rank)
    return o.flatten(0, 1).index_select(0, layout.inverse).view(-1, H, V), final
