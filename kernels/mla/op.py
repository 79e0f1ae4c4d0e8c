"""Latent attention without positions: training and prefill over carried rows, and decoding over pages.

A row is what a token leaves behind: its normalised latent (L numbers) and its shared key slice (R numbers).

Letters: T own tokens, P prior tokens, N sequences, H heads, L latent width, R shared key width; Dn, Dv key and value
width of a head.
"""

import torch
from torch import Tensor

from segue.kernels.common.offsets import read_offsets
from segue.kernels.mla.decode import absorbed_decode
from segue.kernels.mla.tiles import MlaAttention, max_logits


def mla_attention(
    q: Tensor, rows: Tensor, prior_rows: Tensor, kv_b: Tensor, offsets: Tensor, prior_offsets: Tensor, *, scale: float
) -> Tensor:
    """Causal softmax attention of packed sequences over their prior rows and their own.

    On a GPU bf16 runs in Triton kernels; other dtypes take the tiles of `tiles` on any device, in at least fp32.

    Args:
        q: [T, H, Dn + R]; carries gradient.
        rows: [T, L + R], own rows, one a query; carries gradient.
        prior_rows: [P, L + R], rows of earlier tokens, packed in sequence order; carries gradient, in at least fp32
            where these are given so, in any case summed so.
        kv_b: [H, Dn + Dv, L], expands a latent to keys and values, key part first; carries gradient.
        offsets: int64 [N + 1], starting at 0 and ending at T; a sequence may be empty. On the CPU, whatever the device
            of the rest, they never wait for a GPU; others as `read_offsets` says.
        prior_offsets: int64 [N + 1], starting at 0 and ending at P; likewise.
        scale: factor of the scores.
    Returns:
        [T, H, Dv], at least fp32 (as everything inside).
    Raises:
        ValueError: shapes that do not fit; on a GPU in bf16, a width without a kernel.
    Invariants:
        A sequence's results are bit-identical when another one changes: tests/reference/test_mla.py. Nothing of size
        queries x keys, and no expanded key, outlives its tile: tests/unit/kernels/test_mla.py.
    Source:
        Kimi K3 report, section 2.1.2.
    """
    own, prior = _checked_offsets(q, rows, prior_rows, kv_b, offsets, prior_offsets)
    if q.is_cuda and torch.bfloat16 in (q.dtype, rows.dtype, kv_b.dtype) and q.shape[0] > 0:
        # triton is not installed where there is no GPU that it serves
        from segue.kernels.mla.triton_op import triton_mla_attention

        return triton_mla_attention(q, rows, prior_rows, kv_b, own, prior, scale)
    return MlaAttention.apply(q, rows, prior_rows, kv_b, own, prior, scale)


def mla_max_logits(
    q: Tensor, rows: Tensor, prior_rows: Tensor, kv_b: Tensor, offsets: Tensor, prior_offsets: Tensor, *, scale: float
) -> Tensor:
    """Largest score, before the softmax, that any query of a head has with a key that it sees.

    Computed anew from the same arguments as `mla_attention`, tile after tile, in at least fp32 on every device: the
    kernels keep no maximum. About a third of the work of `mla_attention` on the CPU; on a GPU without tensor cores.

    Returns:
        [H], at least fp32; minus infinity where there is no query; no gradient.
    Raises:
        ValueError: shapes that do not fit.
    """
    own, prior = _checked_offsets(q, rows, prior_rows, kv_b, offsets, prior_offsets)
    return max_logits(q, rows, prior_rows, kv_b, own, prior, scale)


def _checked_offsets(
    q: Tensor, rows: Tensor, prior_rows: Tensor, kv_b: Tensor, offsets: Tensor, prior_offsets: Tensor
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    num_heads, _, latent_width = kv_b.shape
    shared_width = rows.shape[1] - latent_width
    if q.ndim != 3 or q.shape[:2] != (rows.shape[0], num_heads) or not 0 <= shared_width < q.shape[2]:
        raise ValueError(
            "q, rows, kv_b must be [T, H, Dn + R], [T, L + R], [H, Dn + Dv, L], got "
            f"{tuple(q.shape)}, {tuple(rows.shape)}, {tuple(kv_b.shape)}"
        )
    if prior_rows.ndim != 2 or prior_rows.shape[1] != rows.shape[1] or offsets.shape != prior_offsets.shape:
        raise ValueError(
            "prior_rows must be [P, L + R] and both offsets [N + 1], got "
            f"{tuple(prior_rows.shape)}, {tuple(offsets.shape)}, {tuple(prior_offsets.shape)}"
        )
    own, prior = read_offsets(offsets), read_offsets(prior_offsets)
    if own[0] != 0 or own[-1] != rows.shape[0] or prior[0] != 0 or prior[-1] != prior_rows.shape[0]:
        raise ValueError(
            f"offsets must span {rows.shape[0]} own and {prior_rows.shape[0]} prior rows, got {list(own)} and "
            f"{list(prior)}"
        )
    return own, prior


def mla_decode(q: Tensor, pages: Tensor, page_table: Tensor, lengths: Tensor, kv_b: Tensor, *, scale: float) -> Tensor:
    """Attention of one token a sequence over the rows in its pages.

    On a GPU bf16 runs in Triton kernels; other dtypes take the form of `decode` on any device, in at least fp32.

    Args:
        q: [N, H, Dn + R].
        pages: [num_pages, page_size, L + R]; finite everywhere, also where nothing was written.
        page_table: int64 [N, max_pages]; a sequence's pages in order, then any valid page. Its width is cost.
        lengths: int64 [N], at least 1; rows that count, the current token's (already written) included.
        kv_b: [H, Dn + Dv, L].
        scale: factor of the scores.
    Returns:
        [N, H, Dv], at least fp32; no gradient.
    Raises:
        ValueError: shapes that do not fit; on a GPU in bf16, sizes without a kernel.
    """
    if pages.ndim != 3 or q.ndim != 3 or page_table.ndim != 2 or q.shape[1] != kv_b.shape[0]:
        raise ValueError(
            "q, pages, page_table, kv_b must be [N, H, Dn + R], [num_pages, page_size, L + R], [N, max_pages], "
            f"[H, Dn + Dv, L], got {tuple(q.shape)}, {tuple(pages.shape)}, {tuple(page_table.shape)}, "
            f"{tuple(kv_b.shape)}"
        )
    if page_table.shape[0] != q.shape[0] or lengths.shape != q.shape[:1]:
        raise ValueError(
            f"page_table and lengths must have {q.shape[0]} rows, got {page_table.shape[0]} and {lengths.shape[0]}"
        )
    if q.is_cuda and torch.bfloat16 in (q.dtype, pages.dtype, kv_b.dtype):
        # triton is not installed where there is no GPU that it serves
        from segue.kernels.mla.triton_decode import triton_decode

        return triton_decode(q, pages, page_table, lengths, kv_b, scale)
    return absorbed_decode(q, pages, page_table, lengths, kv_b, scale)
