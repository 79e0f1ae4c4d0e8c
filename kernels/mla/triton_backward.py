"""Latent attention on a GPU, backward: two kernels over each part of the rows, one by rows and one by queries.

Letters and layout as in `triton_forward`; BN rows of a block, BQ queries of a block, BM of a step. With scores s in
units of log 2, P = exp2(s - lse), and delta the product of a query's output and its gradient:

    d_V = P^T d_O        d_S = P * (d_O V^T - delta)        d_K = d_S^T Q        d_Q = d_S K

The first kernel keeps rows and their gradients in place, walks queries, and leaves d_S^T, tile after tile, for the
second, which is one chain of products. Scores are computed rows by queries, so that no accumulator is transposed:
Triton 3.4 to 3.7.0 compiles that wrongly on Hopper.
"""

import triton
import triton.language as tl

UNSEEN = tl.constexpr(1 << 30)
"""A query behind all."""


@triton.jit(do_not_specialize=["num_tokens", "num_places"], do_not_specialize_on_alignment=["query_blocks"])
def mla_delta_bwd_kernel(
    o, d_o, lse, query_blocks, d_o_narrow, placed_lse, delta, num_tokens, num_places,
    H: tl.constexpr, DV: tl.constexpr, BQ: tl.constexpr,
):  # fmt: skip
    """Output gradients in the kernels' dtype; by places, log-sum-exp and products of outputs with their gradients.

    Grid (H, blocks). An idle place has an infinite log-sum-exp, so that it weighs nothing.
    """
    i_h, i_b = tl.program_id(0), tl.program_id(1)
    start, end = tl.load(query_blocks + 2 * i_b), tl.load(query_blocks + 2 * i_b + 1)
    row = start + tl.arange(0, BQ)
    mask = (row < end)[:, None]
    o_rows = (row.to(tl.int64)[:, None] * H + i_h) * DV + tl.arange(0, DV)[None, :]
    b_do = tl.load(d_o + o_rows, mask=mask, other=0.0)
    b_delta = tl.sum(tl.load(o + o_rows, mask=mask, other=0.0) * b_do, 1)
    tl.store(d_o_narrow + o_rows, b_do.to(d_o_narrow.dtype.element_ty), mask=mask)
    b_lse = tl.load(lse + i_h * num_tokens + row, mask=row < end, other=float("inf"))
    place = i_h * num_places + i_b * BQ + tl.arange(0, BQ)
    tl.store(placed_lse + place, b_lse)
    tl.store(delta + place, b_delta)


@triton.jit(do_not_specialize=["num_tiles", "shift"], do_not_specialize_on_alignment=["items"])
def mla_rows_bwd_kernel(
    q, shared_q, d_o, keys, shared_keys, values, lse, delta, items, d_expanded, d_shared, d_scores,
    num_tiles, shift, factor, scale,
    H: tl.constexpr, L: tl.constexpr, DN: tl.constexpr, DR: tl.constexpr, DV: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, BQ: tl.constexpr,
):  # fmt: skip
    """Gradients of one block of rows for one head, and of all scores with it; grid (items, H).

    A row is seen by the queries from the one that lies `shift` behind it.
    """
    i_h, p_item = tl.program_id(1), items + 6 * tl.program_id(0)
    k_start, k_end = tl.load(p_item), tl.load(p_item + 1)
    q_start, q_end = tl.load(p_item + 2), tl.load(p_item + 3)
    first_tile = (i_h * num_tiles + tl.load(p_item + 4)) * BN
    place = tl.load(p_item + 5) - q_start
    column, q_column = i_h * (DN + DV), i_h * (DN + DR)
    k = k_start + tl.arange(0, BN)
    seen_from = tl.where(k < k_end, k + shift, UNSEEN)
    # from here on all rows of a full block are seen
    all_seen_from = tl.where(k_end - k_start < BN, q_end, k_end + shift)
    b_k = keys.load([k_start, column])
    b_shared_k = shared_keys.load([k_start, L])
    b_v = values.load([k_start, column + DN])
    d_k = tl.zeros((BN, DN), tl.float32)
    d_shared_k = tl.zeros((BN, DR), tl.float32)
    d_v = tl.zeros((BN, DV), tl.float32)
    for i in tl.range(q_start, q_end, BM):
        b_q = q.load([i, q_column])
        b_shared_q = shared_q.load([i, q_column + DN])
        b_do = d_o.load([i, i_h * DV])
        b_lse = tl.reshape(lse.load([i_h, place + i]), (BM,))
        b_delta = tl.reshape(delta.load([i_h, place + i]), (BM,))
        s = tl.dot(b_shared_k, tl.trans(b_shared_q))
        s = tl.dot(b_k, tl.trans(b_q), s)
        # written here, this product runs beside the exponentials
        d_p = tl.dot(b_v, tl.trans(b_do))
        p = tl.exp2(s * factor - b_lse[None, :])
        if i < all_seen_from:
            p = tl.where(seen_from[:, None] <= (i + tl.arange(0, BM))[None, :], p, 0.0)
        d_v = tl.dot(p.to(b_do.dtype), b_do, d_v)
        d_s = (p * (d_p - b_delta[None, :])).to(b_q.dtype)
        d_k = tl.dot(d_s, b_q, d_k)
        d_shared_k = tl.dot(d_s, b_shared_q, d_shared_k)
        d_scores.store([first_tile + (i - q_start) // BQ * BN, (i - q_start) % BQ], d_s)
    n, r, v = tl.arange(0, DN), tl.arange(0, DR), tl.arange(0, DV)
    is_row = (k < k_end)[:, None]
    p_row = d_expanded + k.to(tl.int64)[:, None] * (H * (DN + DV)) + column
    tl.store(p_row + n[None, :], (d_k * scale).to(d_expanded.dtype.element_ty), mask=is_row)
    tl.store(p_row + DN + v[None, :], d_v.to(d_expanded.dtype.element_ty), mask=is_row)
    p_row = d_shared + (k.to(tl.int64)[:, None] * H + i_h) * DR
    tl.store(p_row + r[None, :], d_shared_k * scale, mask=is_row)


@triton.jit(do_not_specialize=["num_tiles"], do_not_specialize_on_alignment=["items"])
def mla_queries_bwd_kernel(
    d_scores, keys, shared_keys, items, d_q, num_tiles,
    H: tl.constexpr, L: tl.constexpr, DN: tl.constexpr, DR: tl.constexpr, DV: tl.constexpr, BQ: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Add a part's share to the gradients, without the scale, of one block of queries and one head; grid (items, H)."""
    i_h, p_item = tl.program_id(1), items + 6 * tl.program_id(0)
    q_start, q_end = tl.load(p_item), tl.load(p_item + 1)
    k_start, k_end = tl.load(p_item + 2), tl.load(p_item + 3)
    first_tile, stride = i_h * num_tiles + tl.load(p_item + 4), tl.load(p_item + 5)
    column = i_h * (DN + DV)
    b_dq = tl.zeros((BQ, DN), tl.float32)
    b_shared_dq = tl.zeros((BQ, DR), tl.float32)
    for j in tl.range(0, k_end - k_start, BK):
        b_ds = tl.trans(d_scores.load([(first_tile + j // BN * stride) * BN + j % BN, 0]))
        b_k = keys.load([k_start + j, column])
        b_shared_k = shared_keys.load([k_start + j, L])
        b_dq = tl.dot(b_ds, b_k, b_dq)
        b_shared_dq = tl.dot(b_ds, b_shared_k, b_shared_dq)
    row = q_start + tl.arange(0, BQ)
    mask = (row < q_end)[:, None]
    p_dq = d_q + (row.to(tl.int64)[:, None] * H + i_h) * (DN + DR) + tl.arange(0, DN)[None, :]
    p_shared_dq = d_q + (row.to(tl.int64)[:, None] * H + i_h) * (DN + DR) + DN + tl.arange(0, DR)[None, :]
    tl.store(p_dq, tl.load(p_dq, mask=mask, other=0.0) + b_dq, mask=mask)
    tl.store(p_shared_dq, tl.load(p_shared_dq, mask=mask, other=0.0) + b_shared_dq, mask=mask)
