"""Attention over latent rows as one function that walks key tiles.

A tile's rows are expanded to keys and values, attended by the queries that see them, merged by log-sum-exp, and
forgotten; backward expands and attends again. Of the trajectory's length are only `prior_rows` and its gradient.

Letters: T own tokens, N sequences, S keys of a tile, Q queries of a tile, H heads, L latent width, R shared key width,
C = L + R, K = Dn + R query width, V value width, X = Dn + V expanded width.
"""

import math
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
LOG2_E = math.log2(math.e)


@dataclass(kw_only=True, slots=True)
class _KeyTile:
    """Consecutive rows of one sequence and the queries that see at least one of them."""

    is_prior: bool
    is_first: bool
    """No earlier tile of the sequence."""
    rows: slice
    """Rows within `prior_rows` or `rows`."""
    queries: slice
    """Queries that see the tile: from its first own row, or the sequence's first, to the sequence's last."""


class MlaAttention(torch.autograd.Function):
    """Keeps the inputs, the output and the log-sum-exp of each query.

    Scores are in units of log 2: torch's exp2, unlike its exp, takes no slow path on CPU where a result underflows, as
    every hidden key's does.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, rows: Tensor, prior_rows: Tensor, kv_b: Tensor,
        offsets: tuple[int, ...], prior_offsets: tuple[int, ...], scale: float,
    ) -> Tensor:  # fmt: skip
        dtype = torch.promote_types(q.dtype, torch.float32)
        num_tokens, num_heads, query_width = q.shape
        key_width = query_width - (rows.shape[1] - kv_b.shape[2])
        q_HTK, weight_HXL = _scaled_queries(q, scale, dtype), kv_b.to(dtype)
        o_THV = torch.empty(num_tokens, num_heads, kv_b.shape[1] - key_width, dtype=dtype, device=q.device)
        o_HTV = o_THV.transpose(0, 1)
        lse_HT1 = torch.empty(num_heads, num_tokens, 1, dtype=dtype, device=q.device)
        future_QQ = _future(q_HTK)
        for tile in _key_tiles(offsets, prior_offsets):
            rows_SC = (prior_rows if tile.is_prior else rows)[tile.rows].to(dtype)
            keys_HSK, values_HSV = _expand(rows_SC, weight_HXL, key_width)
            for queries, visible in _query_tiles(tile):
                scores_HQS = _scores(q_HTK[:, queries], keys_HSK[:, :visible], tile, queries, future_QQ)
                max_HQ1 = scores_HQS.amax(-1, keepdim=True)
                p_HQS = scores_HQS.sub_(max_HQ1).exp2_()
                sum_HQ1 = p_HQS.sum(-1, keepdim=True)
                unscaled_o_HQV = torch.bmm(p_HQS, values_HSV[:, :visible])
                o_HQV, lse_HQ1 = o_HTV[:, queries], lse_HT1[:, queries]
                if tile.is_first:
                    torch.div(unscaled_o_HQV, sum_HQ1, out=o_HQV)
                    torch.add(max_HQ1, sum_HQ1.log2_(), out=lse_HQ1)
                else:
                    _merge(o_HQV, lse_HQ1, unscaled_o_HQV, max_HQ1, sum_HQ1)
        ctx.save_for_backward(q, rows, prior_rows, kv_b, o_THV, lse_HT1)
        ctx.offsets, ctx.prior_offsets, ctx.scale = offsets, prior_offsets, scale
        return o_THV

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, rows, prior_rows, kv_b, o_THV, lse_HT1 = ctx.saved_tensors
        dtype = o_THV.dtype
        latent_width = kv_b.shape[2]
        key_width = q.shape[2] - (rows.shape[1] - latent_width)
        q_HTK, weight_HXL = _scaled_queries(q, ctx.scale, dtype), kv_b.to(dtype)
        grad_HTV = grads[0].transpose(0, 1)
        delta_HT1 = (grads[0] * o_THV).sum(-1).t().unsqueeze(-1)
        dq_HTK = torch.zeros(q.shape, dtype=dtype, device=q.device).transpose(0, 1)
        drows, dprior_rows = torch.zeros_like(rows), torch.zeros_like(prior_rows)
        dweight_XL = torch.zeros_like(weight_HXL.flatten(0, 1))
        future_QQ = _future(q_HTK)
        for tile in _key_tiles(ctx.offsets, ctx.prior_offsets):
            rows_SC = (prior_rows if tile.is_prior else rows)[tile.rows].to(dtype)
            keys_HSK, values_HSV = _expand(rows_SC, weight_HXL, key_width)
            dkeys_HSK, dvalues_HSV = torch.zeros_like(keys_HSK), torch.zeros_like(values_HSV)
            for queries, visible in _query_tiles(tile):
                q_HQK, grad_HQV = q_HTK[:, queries], grad_HTV[:, queries]
                scores_HQS = _scores(q_HQK, keys_HSK[:, :visible], tile, queries, future_QQ)
                p_HQS = scores_HQS.sub_(lse_HT1[:, queries]).exp2_()
                dvalues_HSV[:, :visible] += torch.bmm(p_HQS.transpose(1, 2), grad_HQV)
                dscores_HQS = torch.bmm(grad_HQV, values_HSV[:, :visible].transpose(1, 2))
                dscores_HQS.sub_(delta_HT1[:, queries]).mul_(p_HQS)
                dkeys_HSK[:, :visible] += torch.bmm(dscores_HQS.transpose(1, 2), q_HQK)
                dq_HTK[:, queries] += torch.bmm(dscores_HQS, keys_HSK[:, :visible])
            # the queries carry the factor log2 e
            dkeys_HSK *= 1.0 / LOG2_E
            dexpanded_HSX = torch.cat([dkeys_HSK[..., :key_width], dvalues_HSV], dim=-1)
            dexpanded_SX = dexpanded_HSX.transpose(0, 1).flatten(1)
            dweight_XL.addmm_(dexpanded_SX.t(), rows_SC[:, :latent_width])
            drows_SC = (dprior_rows if tile.is_prior else drows)[tile.rows]
            drows_SC[:, :latent_width] = dexpanded_SX @ weight_HXL.flatten(0, 1)
            drows_SC[:, latent_width:] = dkeys_HSK[..., key_width:].sum(0)
        dq = dq_HTK.transpose(0, 1).mul_(ctx.scale).to(q.dtype)
        return dq, drows, dprior_rows, dweight_XL.view(kv_b.shape).to(kv_b.dtype), None, None, None


@torch.no_grad()
def max_logits(
    q: Tensor, rows: Tensor, prior_rows: Tensor, kv_b: Tensor,
    offsets: tuple[int, ...], prior_offsets: tuple[int, ...], scale: float,
) -> Tensor:  # fmt: skip
    """Largest score of each head, tile after tile; minus infinity where there is no query."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    key_width = q.shape[2] - (rows.shape[1] - kv_b.shape[2])
    q_HTK, weight_HXL = (q.to(dtype) * scale).transpose(0, 1), kv_b.to(dtype)
    max_H = torch.full((q.shape[1],), float("-inf"), dtype=dtype, device=q.device)
    future_QQ = _future(q_HTK)
    for tile in _key_tiles(offsets, prior_offsets):
        rows_SC = (prior_rows if tile.is_prior else rows)[tile.rows].to(dtype)
        keys_HSK, _ = _expand(rows_SC, weight_HXL, key_width)
        for queries, visible in _query_tiles(tile):
            scores_HQS = _scores(q_HTK[:, queries], keys_HSK[:, :visible], tile, queries, future_QQ)
            torch.maximum(max_H, scores_HQS.amax((1, 2)), out=max_H)
    return max_H


def _scaled_queries(q: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
    """Queries whose products with keys are scores in units of log 2."""
    return (q.to(dtype) * (scale * LOG2_E)).transpose(0, 1)


def _future(like: Tensor) -> Tensor:
    """Minus infinity where the column lies right of the row."""
    return like.new_full((QUERY_TILE, QUERY_TILE), float("-inf")).triu_(1)


def _scores(q_HQK: Tensor, keys_HSK: Tensor, tile: _KeyTile, queries: slice, future_QQ: Tensor) -> Tensor:
    """Scores of a query tile, minus infinity where a key comes after its query."""
    scores_HQS = torch.bmm(q_HQK, keys_HSK.transpose(1, 2))
    # the tile's key of the first query; keys up to there are seen by all queries
    first = queries.start - tile.rows.start
    num_queries, num_keys = scores_HQS.shape[1:]
    if not tile.is_prior and first < num_keys:
        scores_HQS[:, :, first:] += future_QQ[:num_queries, : num_keys - first]
    return scores_HQS


def _merge(o_HQV: Tensor, lse_HQ1: Tensor, unscaled_o_HQV: Tensor, max_HQ1: Tensor, sum_HQ1: Tensor) -> None:
    """Add a tile's attention, in place, to what its queries have seen so far."""
    # contiguous: a view into a longer pack would be computed in other vectors, with other last bits
    merged_HQ1 = torch.logaddexp2(lse_HQ1.contiguous(), max_HQ1 + sum_HQ1.log2_())
    o_HQV *= (lse_HQ1 - merged_HQ1).exp2_()
    o_HQV.addcmul_(unscaled_o_HQV, (max_HQ1 - merged_HQ1).exp2_())
    lse_HQ1.copy_(merged_HQ1)


def _key_tiles(offsets: tuple[int, ...], prior_offsets: tuple[int, ...]) -> Iterator[_KeyTile]:
    for n, (begin, end) in enumerate(pairwise(offsets)):
        if begin == end:
            continue
        prior_begin, prior_end = prior_offsets[n : n + 2]
        for start in range(prior_begin, prior_end, KEY_TILE):
            rows = slice(start, min(start + KEY_TILE, prior_end))
            yield _KeyTile(is_prior=True, is_first=start == prior_begin, rows=rows, queries=slice(begin, end))
        has_prior = prior_begin < prior_end
        for start in range(begin, end, KEY_TILE):
            rows = slice(start, min(start + KEY_TILE, end))
            is_first = start == begin and not has_prior
            yield _KeyTile(is_prior=False, is_first=is_first, rows=rows, queries=slice(start, end))


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
