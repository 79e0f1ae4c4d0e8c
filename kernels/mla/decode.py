"""Decoding in the absorbed form: queries move into the latent space, values come back out of it.

Letters: N sequences, S row positions, H heads, L latent width, R shared key width, C = L + R; Dn, Dv key and value
width of a head.
"""

import torch
from torch import Tensor


def absorbed_decode(
    q: Tensor, pages: Tensor, page_table: Tensor, lengths: Tensor, kv_b: Tensor, scale: float
) -> Tensor:
    """See `segue.kernels.mla.op.mla_decode`."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    num_sequences, num_heads, query_width = q.shape
    latent_width = kv_b.shape[2]
    row_width = pages.shape[2]
    key_width = query_width - (row_width - latent_width)
    q_HND, kv_b_HDL = q.to(dtype).transpose(0, 1), kv_b.to(dtype)
    latent_q_NHC = torch.empty(num_sequences, num_heads, row_width, dtype=dtype, device=q.device)
    latent_q_NHC[..., :latent_width] = torch.bmm(q_HND[..., :key_width], kv_b_HDL[:, :key_width]).transpose(0, 1)
    latent_q_NHC[..., latent_width:] = q[..., key_width:]
    latent_q_NHC *= scale
    rows_NSC = pages.index_select(0, page_table.reshape(-1)).view(num_sequences, -1, row_width).to(dtype)
    scores_NHS = torch.bmm(latent_q_NHC, rows_NSC.transpose(1, 2))
    unwritten_NS = torch.arange(rows_NSC.shape[1], device=q.device) >= lengths.unsqueeze(1)
    p_NHS = scores_NHS.masked_fill_(unwritten_NS.unsqueeze(1), float("-inf")).softmax(-1)
    mixed_NHL = torch.bmm(p_NHS, rows_NSC[..., :latent_width])
    return torch.bmm(mixed_NHL.transpose(0, 1), kv_b_HDL[:, key_width:].transpose(1, 2)).transpose(0, 1)
