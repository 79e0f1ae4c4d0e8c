"""Latent attention on a GPU, forward: queries over a part of the rows, merged into what they saw before.

T own tokens, H heads, DN, DR and DV width of a head's own keys, of the shared keys and of the values; an expanded row
holds [keys DN | values DV], head after head, and a row the shared keys behind its latent, L wide. BM queries and BN
rows of a step. Scores are in units of log 2.
"""

import triton
import triton.language as tl


@triton.jit
def _attend_tiles(
    b_o, m, total, b_q, b_shared_q, keys, shared_keys, values, column, first, last, limit, factor,
    L: tl.constexpr, DN: tl.constexpr, BN: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Add keys first up to last, of which a query sees those below its limit where MASKED."""
    k = tl.arange(0, BN)
    for j in tl.range(first, last, BN):
        b_k = keys.load([j, column])
        b_shared_k = shared_keys.load([j, L])
        b_v = values.load([j, column + DN])
        s = tl.dot(b_q, tl.trans(b_k))
        s = tl.dot(b_shared_q, tl.trans(b_shared_k), s)
        if MASKED:
            s = tl.where((j + k)[None, :] < limit[:, None], s, float("-inf"))
        m_new = tl.maximum(m, tl.max(s, 1) * factor)
        # a query that has seen no key yet
        m_finite = tl.where(m_new == float("-inf"), 0.0, m_new) if MASKED else m_new
        p = tl.exp2(s * factor - m_finite[:, None])
        rescale = tl.exp2(m - m_finite)
        total = total * rescale + tl.sum(p, 1)
        b_o = tl.dot(p.to(b_v.dtype), b_v, b_o * rescale[:, None])
        m = m_new
    return b_o, m, total


@triton.jit(do_not_specialize=["num_tokens", "shift"], do_not_specialize_on_alignment=["items"])
def mla_fwd_kernel(
    q, keys, shared_keys, values, items, o, lse, num_tokens, shift, factor,
    H: tl.constexpr, L: tl.constexpr, DN: tl.constexpr, DR: tl.constexpr, DV: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr,
):  # fmt: skip
    """One block of queries of one head over its rows in the part; grid (items, H).

    A query sees the rows up to the one that lies `shift` before it.
    """
    i_h, p_item = tl.program_id(1), items + 6 * tl.program_id(0)
    q_start, q_end = tl.load(p_item), tl.load(p_item + 1)
    k_start, k_end = tl.load(p_item + 2), tl.load(p_item + 3)
    row = q_start + tl.arange(0, BM)
    n, r, v = tl.arange(0, DN), tl.arange(0, DR), tl.arange(0, DV)
    is_row = (row < q_end)[:, None]
    p_q = q + (row.to(tl.int64)[:, None] * H + i_h) * (DN + DR)
    b_q = tl.load(p_q + n[None, :], mask=is_row, other=0.0)
    b_shared_q = tl.load(p_q + DN + r[None, :], mask=is_row, other=0.0)
    b_o = tl.zeros((BM, DV), tl.float32)
    m = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    limit = tl.minimum(row - shift + 1, k_end)
    # rows up to `full` are seen by all queries, rows from `end` by none
    full = tl.minimum(q_start - shift + 1, k_end)
    end = tl.minimum(tl.minimum(q_start + BM, q_end) - shift, k_end)
    full = k_start + tl.maximum(full - k_start, 0) // BN * BN
    column = i_h * (DN + DV)
    b_o, m, total = _attend_tiles(
        b_o, m, total, b_q, b_shared_q, keys, shared_keys, values, column, k_start, full, limit, factor,
        L, DN, BN, False,
    )  # fmt: skip
    b_o, m, total = _attend_tiles(
        b_o, m, total, b_q, b_shared_q, keys, shared_keys, values, column, full, end, limit, factor,
        L, DN, BN, True,
    )  # fmt: skip
    p_o = o + (row.to(tl.int64)[:, None] * H + i_h) * DV + v[None, :]
    p_lse = lse + i_h * num_tokens + row
    # a query that sees none of the part
    total = tl.where(total == 0.0, 1.0, total)
    b_lse = m + tl.log2(total)
    b_o = b_o / total[:, None]
    saw_earlier = tl.load(p_item + 4) != 0
    earlier = tl.load(p_lse, mask=(row < q_end) & saw_earlier, other=float("-inf"))
    b_earlier = tl.load(p_o, mask=is_row & saw_earlier, other=0.0)
    larger = tl.maximum(earlier, b_lse)
    merged = larger + tl.log2(tl.exp2(earlier - larger) + tl.exp2(b_lse - larger))
    b_o = b_earlier * tl.exp2(earlier - merged)[:, None] + b_o * tl.exp2(b_lse - merged)[:, None]
    tl.store(p_o, b_o, mask=is_row)
    tl.store(p_lse, merged, mask=row < q_end)
