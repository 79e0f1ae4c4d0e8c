"""Decoding in the absorbed form: queries move into the latent space, values come back out of it.

Letters: N sequences, S row positions, H heads, L latent width, R shared key width, C = L + R; K = Dn + R query width,
X = Dn + Dv expanded width.
"""

import torch
from torch import Tensor


def absorbed_decode(
    q: Tensor, pages: Tensor, page_table: Tensor, lengths: Tensor, kv_b: Tensor, scale: float
) -> Tensor:
    """See `segue.kernels.mla.op.mla_decode`."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    latent_width, row_width = kv_b.shape[2], pages.shape[2]
    key_width = q.shape[2] - (row_width - latent_width)
    q_HNK, weight_HXL = q.to(dtype).transpose(0, 1), kv_b.to(dtype)
    latent_q_HNL = torch.bmm(q_HNK[..., :key_width], weight_HXL[:, :key_width])
    latent_q_NHC = torch.cat([latent_q_HNL, q_HNK[..., key_width:]], dim=-1).mul_(scale).transpose(0, 1)
    rows_NSC = pages.index_select(0, page_table.flatten()).view(q.shape[0], -1, row_width).to(dtype)
    scores_NHS = torch.bmm(latent_q_NHC, rows_NSC.transpose(1, 2))
    # adding a small mask is faster on CPU than filling the scores under a broadcast one
    unwritten_NS = torch.arange(rows_NSC.shape[1], device=q.device) >= lengths.unsqueeze(1)
    scores_NHS += (
        torch.zeros(unwritten_NS.shape, dtype=dtype, device=q.device)
        .masked_fill_(unwritten_NS, float("-inf"))
        .unsqueeze(1)
    )
    mixed_HNL = torch.bmm(scores_NHS.softmax(-1), rows_NSC[..., :latent_width]).transpose(0, 1)
    return torch.bmm(mixed_HNL, weight_HXL[:, key_width:].transpose(1, 2)).transpose(0, 1)
