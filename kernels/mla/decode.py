"""Decoding in the absorbed form: queries move into the latent space, values come back out of it.

Rows are read a tile of pages at a time; a tile holds only the sequences that reach it, so that one long sequence does
not widen the others. The order of a sequence's sums depends on no other sequence: borders of tiles and of the products
with values stand at fixed rows.

Letters: N sequences, M of them that reach a tile, S row positions of a tile, P pages of a sequence, H heads, L latent
width, R shared key width, C = L + R; K = Dn + R query width, X = Dn + Dv expanded width.
"""

import torch
from torch import Tensor

from segue.kernels.common.product import MIN_MULTIPLICATIONS, batched_product

TILE_ROWS = 2048
"""Rows of a sequence in a tile, unless a page is more."""
READ_AT_ONCE = 1 << 24
"""Most elements of rows read together, unless one sequence's part of a tile is more."""
PRODUCT_ROWS = 256
"""Rows that weights and values are multiplied over at once: of longer sums, the length would move the bits."""


def absorbed_decode(
    q: Tensor,
    pages: Tensor,
    page_table: Tensor,
    lengths: Tensor,
    kv_b: Tensor,
    scale: float,
    tile_rows: int = TILE_ROWS,
) -> Tensor:
    """See `segue.kernels.mla.op.mla_decode`."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    latent_width, (page_size, row_width) = kv_b.shape[2], pages.shape[1:]
    key_width = q.shape[2] - (row_width - latent_width)
    q_HNK, weight_HXL = q.to(dtype).transpose(0, 1), kv_b.to(dtype)
    latent_q_HNL = batched_product(q_HNK[..., :key_width], weight_HXL[:, :key_width])
    latent_q_NHC = torch.cat([latent_q_HNL, q_HNK[..., key_width:]], dim=-1).mul_(scale).transpose(0, 1)
    page_table = _widen(page_table, -(-MIN_MULTIPLICATIONS // (q.shape[1] * page_size * latent_width)))
    tile_pages = max(1, tile_rows // page_size)
    num_elements = min(tile_pages, page_table.shape[1]) * page_size * row_width
    at_once = max(1, READ_AT_ONCE // max(1, num_elements))
    if len(q) <= at_once:
        mixed_NHL = _mix_rows(latent_q_NHC, pages, page_table, lengths, latent_width, tile_pages)
    else:
        groups = zip(*(x.split(at_once) for x in (latent_q_NHC, page_table, lengths)), strict=True)
        mixed_NHL = torch.cat([_mix_rows(q, pages, table, own, latent_width, tile_pages) for q, table, own in groups])
    return batched_product(mixed_NHL.transpose(0, 1), weight_HXL[:, key_width:].transpose(1, 2)).transpose(0, 1)


def _widen(page_table: Tensor, num_pages: int) -> Tensor:
    """A table of at least so many columns: in products over fewer rows, their number would move the bits."""
    missing = num_pages - page_table.shape[1]
    return page_table if missing <= 0 else torch.cat([page_table, page_table[:, :1].expand(-1, missing)], 1)


def _mix_rows(
    q_NHC: Tensor, pages: Tensor, page_table_NP: Tensor, lengths_N: Tensor, latent_width: int, tile_pages: int
) -> Tensor:
    """Attention over all tiles, [N, H, L]."""
    num_pages, page_size = page_table_NP.shape[1], pages.shape[1]
    if num_pages <= tile_pages:
        return _mix_tile(q_NHC, pages, page_table_NP, lengths_N, latent_width)[0]
    mixed_NHL = q_NHC.new_zeros(*q_NHC.shape[:2], latent_width)
    lse_NH1 = q_NHC.new_full((*q_NHC.shape[:2], 1), float("-inf"))
    for first in range(0, num_pages, tile_pages):
        start = first * page_size
        reach_M = (lengths_N > start).nonzero().squeeze(1)
        tile_table = page_table_NP[reach_M, first : first + tile_pages]
        part_MHL, scores_MHS = _mix_tile(q_NHC[reach_M], pages, tile_table, lengths_N[reach_M] - start, latent_width)
        part_lse_MH1 = scores_MHS.logsumexp(-1, keepdim=True)
        # not by logaddexp, whose vectors on CPU would tie a sequence's bits to the number of sequences
        earlier_lse_MH1 = lse_NH1[reach_M]
        top_MH1 = torch.maximum(earlier_lse_MH1, part_lse_MH1)
        earlier_MH1, added_MH1 = (earlier_lse_MH1 - top_MH1).exp_(), (part_lse_MH1 - top_MH1).exp_()
        total_MH1 = earlier_MH1 + added_MH1
        mixed_NHL[reach_M] = (mixed_NHL[reach_M] * earlier_MH1 + part_MHL * added_MH1) / total_MH1
        lse_NH1[reach_M] = top_MH1 + total_MH1.log()
    return mixed_NHL


def _mix_tile(
    q_MHC: Tensor, pages: Tensor, page_table: Tensor, lengths_M: Tensor, latent_width: int
) -> tuple[Tensor, Tensor]:
    """Attention over one tile's rows, [M, H, L], and its masked scores [M, H, S]."""
    shape = (len(page_table), page_table.shape[1] * pages.shape[1], pages.shape[2])
    rows_MSC = pages.index_select(0, page_table.flatten()).view(shape).to(q_MHC.dtype)
    scores_MHS = torch.bmm(q_MHC, rows_MSC.transpose(1, 2))
    # adding a small mask is faster on CPU than filling the scores under a broadcast one
    unwritten_MS = torch.arange(rows_MSC.shape[1], device=q_MHC.device) >= lengths_M.unsqueeze(1)
    mask_MS = torch.zeros(unwritten_MS.shape, dtype=q_MHC.dtype, device=q_MHC.device)
    scores_MHS += mask_MS.masked_fill_(unwritten_MS, float("-inf")).unsqueeze(1)
    weights_MHS, values_MSL = scores_MHS.softmax(-1), rows_MSC[..., :latent_width]
    mixed_MHL = torch.bmm(weights_MHS[..., :PRODUCT_ROWS], values_MSL[:, :PRODUCT_ROWS])
    for start in range(PRODUCT_ROWS, shape[1], PRODUCT_ROWS):
        rows = slice(start, start + PRODUCT_ROWS)
        mixed_MHL.baddbmm_(weights_MHS[..., rows], values_MSL[:, rows])
    return mixed_MHL, scores_MHS
