"""Reference of latent attention: every sequence's keys and values expanded at once, softmax by autograd.

Letters: T own tokens, P prior tokens, N sequences, H heads, L latent width, R shared key width; Dn, Dv key and value
width of a head.
"""

from collections.abc import Iterator

import torch
from torch import Tensor


def naive_mla_attention(
    q: Tensor, rows: Tensor, prior_rows: Tensor, kv_b: Tensor, offsets: Tensor, prior_offsets: Tensor, scale: float
) -> Tensor:
    """Causal attention of each sequence's own tokens over its prior and own rows; at least fp32."""
    sequences = _sequences(q, rows, prior_rows, kv_b, offsets, prior_offsets)
    outs = [_attend(*sequence, scale) for sequence in sequences]
    return torch.cat(outs) if outs else q.new_empty(0, kv_b.shape[0], kv_b.shape[1])


def naive_mla_max_logits(
    q: Tensor, rows: Tensor, prior_rows: Tensor, kv_b: Tensor, offsets: Tensor, prior_offsets: Tensor, scale: float
) -> Tensor:
    """Largest score of each head [H] over all sequences; minus infinity where there is no query; at least fp32."""
    max_H = torch.full(q.shape[1:2], float("-inf"), dtype=torch.promote_types(q.dtype, torch.float32))
    for sequence in _sequences(q, rows, prior_rows, kv_b, offsets, prior_offsets):
        scores_HTS, _ = _scores_and_values(*sequence, scale)
        if scores_HTS.numel():
            max_H = torch.maximum(max_H, scores_HTS.amax((1, 2)))
    return max_H


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


def _sequences(
    q: Tensor, rows: Tensor, prior_rows: Tensor, kv_b: Tensor, offsets: Tensor, prior_offsets: Tensor
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Queries, all rows, `kv_b` and which query sees which row, of one sequence after another."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    q, rows, prior_rows, kv_b = q.to(dtype), rows.to(dtype), prior_rows.to(dtype), kv_b.to(dtype)
    own, prior = offsets.tolist(), prior_offsets.tolist()
    for n in range(len(own) - 1):
        rows_SC = torch.cat([prior_rows[prior[n] : prior[n + 1]], rows[own[n] : own[n + 1]]])
        num_prior, num_own = prior[n + 1] - prior[n], own[n + 1] - own[n]
        visible_TS = torch.arange(num_prior + num_own) <= torch.arange(num_own).unsqueeze(1) + num_prior
        yield q[own[n] : own[n + 1]], rows_SC, kv_b, visible_TS.to(q.device)


def _attend(q_THK: Tensor, rows_SC: Tensor, kv_b: Tensor, visible_TS: Tensor, scale: float) -> Tensor:
    scores_HTS, values_SHV = _scores_and_values(q_THK, rows_SC, kv_b, visible_TS, scale)
    return torch.einsum("hts,shv->thv", torch.softmax(scores_HTS, dim=-1), values_SHV)


def _scores_and_values(
    q_THK: Tensor, rows_SC: Tensor, kv_b: Tensor, visible_TS: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    latent_width = kv_b.shape[2]
    shared_width = rows_SC.shape[1] - latent_width
    key_width = q_THK.shape[2] - shared_width
    expanded_SHC = torch.einsum("sl,hcl->shc", rows_SC[:, :latent_width], kv_b)
    shared_SHR = rows_SC[:, None, latent_width:].expand(-1, kv_b.shape[0], -1)
    keys_SHK = torch.cat([expanded_SHC[..., :key_width], shared_SHR], dim=-1)
    scores_HTS = torch.einsum("thk,shk->hts", q_THK, keys_SHK) * scale
    return scores_HTS.masked_fill(~visible_TS, float("-inf")), expanded_SHC[..., key_width:]
