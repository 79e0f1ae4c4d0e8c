"""Attention over latent rows as one function that walks key tiles.

A tile's rows are expanded to keys and values, attended by the queries that see them, merged by log-sum-exp, and
forgotten; backward expands and attends again. Of the trajectory's length are only `prior_rows` and its gradient.

Letters: T own tokens, N sequences, S keys of a tile, Q queries of a tile, H heads, L latent width, R shared key width,
C = L + R, K = Dn + R query width, V value width, X = Dn + V expanded width.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

KEY_TILE = 512
"""Rows expanded at once."""
QUERY_TILE = 128
"""Queries attended at once; a tile of own keys stops at the last key that the queries see."""


@dataclass(kw_only=True, slots=True)
class _KeyTile:
    """Consecutive rows of one sequence and the queries that see at least one of them."""

    is_prior: bool
    rows: slice
    """Rows within `prior_rows` or `rows`."""
    queries: slice
    """Queries that see the tile: from its first own row, or the sequence's first, to the sequence's last."""


class MlaAttention(torch.autograd.Function):
    """Keeps the inputs, the output and the log-sum-exp of each query."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, rows: Tensor, prior_rows: Tensor, kv_b: Tensor,
        offsets: list[int], prior_offsets: list[int], scale: float,
    ) -> Tensor:  # fmt: skip
        dtype = torch.promote_types(q.dtype, torch.float32)
        num_tokens, num_heads, query_width = q.shape
        key_width = query_width - (rows.shape[1] - kv_b.shape[2])
        weight = kv_b.to(dtype)
        o_THV = torch.empty(num_tokens, num_heads, kv_b.shape[1] - key_width, dtype=dtype, device=q.device)
        lse_HT = torch.full((num_heads, num_tokens), float("-inf"), dtype=dtype, device=q.device)
        for tile in _key_tiles(offsets, prior_offsets):
            rows_SC = (prior_rows if tile.is_prior else rows)[tile.rows].to(dtype)
            keys_HSK, values_HSV = _expand(rows_SC, weight, key_width)
            for queries, visible in _query_tiles(tile):
                q_HQK = (q[queries].to(dtype) * scale).transpose(0, 1)
                scores_HQS = torch.bmm(q_HQK, keys_HSK[:, :visible].transpose(1, 2))
                _hide_future(scores_HQS, tile, queries)
                _merge(o_THV, lse_HT, queries, scores_HQS, values_HSV[:, :visible])
        ctx.save_for_backward(q, rows, prior_rows, kv_b, o_THV, lse_HT)
        ctx.offsets, ctx.prior_offsets, ctx.scale = offsets, prior_offsets, scale
        return o_THV

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, rows, prior_rows, kv_b, o_THV, lse_HT = ctx.saved_tensors
        dtype, scale = o_THV.dtype, ctx.scale
        latent_width = kv_b.shape[2]
        key_width = q.shape[2] - (rows.shape[1] - latent_width)
        weight = kv_b.to(dtype)
        grad_THV = grads[0]
        delta_HT1 = torch.linalg.vecdot(grad_THV, o_THV).t().unsqueeze(-1)
        dq_THK = torch.zeros(q.shape, dtype=dtype, device=q.device)
        drows, dprior_rows = torch.zeros_like(rows), torch.zeros_like(prior_rows)
        dkv_b = torch.zeros_like(weight)
        for tile in _key_tiles(ctx.offsets, ctx.prior_offsets):
            rows_SC = (prior_rows if tile.is_prior else rows)[tile.rows].to(dtype)
            keys_HSK, values_HSV = _expand(rows_SC, weight, key_width)
            dkeys_HSK, dvalues_HSV = torch.zeros_like(keys_HSK), torch.zeros_like(values_HSV)
            for queries, visible in _query_tiles(tile):
                q_HQK = (q[queries].to(dtype) * scale).transpose(0, 1)
                grad_HQV = grad_THV[queries].transpose(0, 1)
                scores_HQS = torch.bmm(q_HQK, keys_HSK[:, :visible].transpose(1, 2))
                _hide_future(scores_HQS, tile, queries)
                p_HQS = scores_HQS.sub_(lse_HT[:, queries].unsqueeze(-1)).exp_()
                dvalues_HSV[:, :visible].baddbmm_(p_HQS.transpose(1, 2), grad_HQV)
                dscores_HQS = torch.bmm(grad_HQV, values_HSV[:, :visible].transpose(1, 2))
                dscores_HQS.sub_(delta_HT1[:, queries]).mul_(p_HQS)
                dq_THK[queries] += torch.bmm(dscores_HQS, keys_HSK[:, :visible]).transpose(0, 1)
                dkeys_HSK[:, :visible].baddbmm_(dscores_HQS.transpose(1, 2), q_HQK)
            dexpanded_HSX = torch.cat([dkeys_HSK[..., :key_width], dvalues_HSV], dim=-1)
            dkv_b += torch.matmul(dexpanded_HSX.transpose(1, 2), rows_SC[:, :latent_width])
            drows_SC = (dprior_rows if tile.is_prior else drows)[tile.rows]
            drows_SC[:, :latent_width] = torch.matmul(dexpanded_HSX, weight).sum(0)
            drows_SC[:, latent_width:] = dkeys_HSK[..., key_width:].sum(0)
        return dq_THK.mul_(scale).to(q.dtype), drows, dprior_rows, dkv_b.to(kv_b.dtype), None, None, None


def _key_tiles(offsets: list[int], prior_offsets: list[int]) -> Iterator[_KeyTile]:
    for n, (begin, end) in enumerate(pairwise(offsets)):
        if begin == end:
            continue
        for start in range(prior_offsets[n], prior_offsets[n + 1], KEY_TILE):
            stop = min(start + KEY_TILE, prior_offsets[n + 1])
            yield _KeyTile(is_prior=True, rows=slice(start, stop), queries=slice(begin, end))
        for start in range(begin, end, KEY_TILE):
            stop = min(start + KEY_TILE, end)
            yield _KeyTile(is_prior=False, rows=slice(start, stop), queries=slice(start, end))


def _query_tiles(tile: _KeyTile) -> Iterator[tuple[slice, int]]:
    """Query tiles of a key tile, each with the number of the tile's keys that its last query sees."""
    num_keys = tile.rows.stop - tile.rows.start
    for start in range(tile.queries.start, tile.queries.stop, QUERY_TILE):
        stop = min(start + QUERY_TILE, tile.queries.stop)
        yield slice(start, stop), num_keys if tile.is_prior else min(num_keys, stop - tile.rows.start)


def _expand(rows_SC: Tensor, weight_HXL: Tensor, key_width: int) -> tuple[Tensor, Tensor]:
    """Keys (with the shared slice) and values of every head."""
    num_heads, expanded_width, latent_width = weight_HXL.shape
    expanded_SX = rows_SC[:, :latent_width] @ weight_HXL.view(-1, latent_width).t()
    expanded_SHX = expanded_SX.view(-1, num_heads, expanded_width)
    shared_SHR = rows_SC[:, None, latent_width:].expand(-1, num_heads, -1)
    keys_SHK = torch.cat([expanded_SHX[..., :key_width], shared_SHR], dim=-1)
    return keys_SHK.transpose(0, 1), expanded_SHX[..., key_width:].transpose(0, 1)


def _hide_future(scores_HQS: Tensor, tile: _KeyTile, queries: slice) -> None:
    if tile.is_prior:
        return
    # query i of the tile sees keys up to its own position: column <= i + first
    first = queries.start - tile.rows.start
    num_queries, num_keys = scores_HQS.shape[1:]
    if num_keys > first + 1:
        block = scores_HQS[:, :, first:]
        future = torch.ones(num_queries, num_keys - first, dtype=torch.bool, device=block.device).triu_(1)
        block.masked_fill_(future, float("-inf"))


def _merge(o_THV: Tensor, lse_HT: Tensor, queries: slice, scores_HQS: Tensor, values_HSV: Tensor) -> None:
    """Add a tile's attention to what the queries have seen so far."""
    max_HQ1 = scores_HQS.amax(-1, keepdim=True)
    p_HQS = scores_HQS.sub_(max_HQ1).exp_()
    sum_HQ1 = p_HQS.sum(-1, keepdim=True)
    o_HQV = torch.bmm(p_HQS, values_HSV).div_(sum_HQ1)
    lse_HQ1 = max_HQ1.add_(sum_HQ1.log_())
    seen_HQ1 = lse_HT[:, queries].unsqueeze(-1)
    merged_HQ1 = torch.logaddexp(seen_HQ1, lse_HQ1)
    target_HQV = o_THV[queries].transpose(0, 1)
    seen_share_HQ1 = torch.exp(seen_HQ1 - merged_HQ1)
    if bool(torch.isinf(seen_HQ1).all()):
        target_HQV.copy_(o_HQV)
    else:
        target_HQV.mul_(seen_share_HQ1).addcmul_(o_HQV, torch.exp(lse_HQ1 - merged_HQ1))
    lse_HT[:, queries] = merged_HQ1.squeeze(-1)
