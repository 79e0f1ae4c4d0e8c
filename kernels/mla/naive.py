"""Reference of latent attention: every sequence's keys and values expanded at once, softmax by autograd.

Letters: T own tokens, P prior tokens, N sequences, H heads, L latent width, R shared key width; Dn, Dv key and value
width of a head.
"""

import torch
from torch import Tensor


def naive_mla_attention(
    q: Tensor, rows: Tensor, prior_rows: Tensor, kv_b: Tensor, offsets: Tensor, prior_offsets: Tensor, scale: float
) -> Tensor:
    """Causal attention of each sequence's own tokens over its prior and own rows; at least fp32."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    q, rows, prior_rows, kv_b = q.to(dtype), rows.to(dtype), prior_rows.to(dtype), kv_b.to(dtype)
    own, prior = offsets.tolist(), prior_offsets.tolist()
    outs = []
    for n in range(len(own) - 1):
        rows_SC = torch.cat([prior_rows[prior[n] : prior[n + 1]], rows[own[n] : own[n + 1]]])
        num_prior, num_own = prior[n + 1] - prior[n], own[n + 1] - own[n]
        visible_TS = torch.arange(num_prior + num_own) <= torch.arange(num_own).unsqueeze(1) + num_prior
        outs.append(_attend(q[own[n] : own[n + 1]], rows_SC, kv_b, visible_TS.to(q.device), scale))
    return torch.cat(outs) if outs else q.new_empty(0, kv_b.shape[0], kv_b.shape[1])


def naive_mla_decode(
    q: Tensor, pages: Tensor, page_table: Tensor, lengths: Tensor, kv_b: Tensor, scale: float
) -> Tensor:
    """One query a sequence over the rows that its pages hold; at least fp32."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    outs = []
    for n, length in enumerate(lengths.tolist()):
        rows_SC = pages[page_table[n]].flatten(0, 1)[:length].to(dtype)
        visible = torch.ones(1, length, dtype=torch.bool, device=q.device)
        outs.append(_attend(q[n : n + 1].to(dtype), rows_SC, kv_b.to(dtype), visible, scale))
    return torch.cat(outs)


def _attend(q_THK: Tensor, rows_SC: Tensor, kv_b: Tensor, visible_TS: Tensor, scale: float) -> Tensor:
    latent_width = kv_b.shape[2]
    shared_width = rows_SC.shape[1] - latent_width
    key_width = q_THK.shape[2] - shared_width
    expanded_SHC = torch.einsum("sl,hcl->shc", rows_SC[:, :latent_width], kv_b)
    shared_SHR = rows_SC[:, None, latent_width:].expand(-1, kv_b.shape[0], -1)
    keys_SHK = torch.cat([expanded_SHC[..., :key_width], shared_SHR], dim=-1)
    scores_HTS = torch.einsum("thk,shk->hts", q_THK, keys_SHK) * scale
    p_HTS = torch.softmax(scores_HTS.masked_fill(~visible_TS, float("-inf")), dim=-1)
    return torch.einsum("hts,shv->thv", p_HTS, expanded_SHC[..., key_width:])
