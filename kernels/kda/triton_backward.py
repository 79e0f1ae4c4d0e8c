"""KDA chunk form on a GPU, backward: one kernel that carries the state's gradient back, one parallel over chunks.

Letters, tiles and factors as in `triton_forward`. Of a chunk with entering state S and leaving state's gradient dS',
v_new = X diag(b) (v - k_in S) are the net writes; d_v_new, their gradient before the triangular solve; then

    d(diag(b) y) = X^T d_v_new, y = v - k_in S      d_v = b X^T d_v_new      d_M = -(X^T d_v_new) v_new^T
    d_log b = rows of (X^T d_v_new) * v_new         d_k_in = -d_v S^T        d_k_out = v_new dS'^T

and every decay factor is an exponential of the running sum G, so that its gradient is a product with what it scales.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from segue.kernels.kda.triton_forward import (
    AFTER,
    FROM,
    NEAR,
    THROUGH,
    Factors,
    compute_type,
    exp2,
    log_decay,
    near_decay,
    reciprocal,
    row_sums,
    sigmoid,
    sum_decay,
    sums_dtype,
)
from segue.kernels.kda.triton_layout import CHUNK, ChunkTable

KEY_BLOCK = 32


@triton.jit
def kda_scan_bwd_kernel(
    tiles, scores, decays, rates, d_o, d_new_state, sequences, d_v_new, d_leaving, d_state,
    stride_do, H: tl.constexpr, C: tl.constexpr, D: tl.constexpr, BV: tl.constexpr, CT: tl.constexpr,
    PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Gradients of net writes and leaving states of one sequence, head and block of values; grid (D / BV, H, N)."""
    i_v, i_h, i_s = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    n = tl.load(sequences + 4 * i_s).to(tl.int64)
    start, end = tl.load(sequences + 4 * i_s + 1), tl.load(sequences + 4 * i_s + 2)
    first = tl.load(sequences + 4 * i_s + 3)
    c, d, vv = tl.arange(0, C), tl.arange(0, D), i_v * BV + tl.arange(0, BV)
    o_state = vv[:, None] * D + d[None, :]
    d_S = tl.load(d_new_state + (n * H + i_h) * (D * D) + o_state).to(tl.float32)
    num_chunks = tl.cdiv(end - start, C)
    for j in tl.range(0, num_chunks, num_stages=STAGES):
        i = num_chunks - 1 - j
        base = ((first + i) * H + i_h).to(tl.int64)
        tile = tiles + base * (4 * C * D)
        t = start + i * C + c
        p_do = d_o + t.to(tl.int64)[None, :] * stride_do + i_h * D + vv[:, None]
        b_do = tl.load(p_do, mask=(t < end)[None, :], other=0.0).to(tl.float32)
        p_rates = rates + base * (2 * C) + c
        q_rate, k_rate = tl.load(p_rates), tl.load(p_rates + C)
        A = tl.load(scores + base * (C * C) + c[:, None] * C + c[None, :])
        k_out = tl.load(tile + 2 * C * D + c[None, :] * D + d[:, None])
        o_ck = c[:, None] * D + d[None, :]
        q_in = tl.load(tile + 3 * C * D + o_ck)
        take = tl.load(tile + o_ck)
        b_decay = tl.load(decays + base * D + d)
        b_dS = d_S.to(CT)
        tl.store(d_leaving + base * (D * D) + o_state, b_dS)
        b_do = (b_do * q_rate[None, :]).to(CT)
        d_w = tl.dot(b_do, A, input_precision=PRECISION)
        d_w = (tl.dot(b_dS, k_out, d_w, input_precision=PRECISION) * k_rate[None, :]).to(CT)
        d_S = tl.dot(b_do, q_in, d_S * b_decay[None, :], input_precision=PRECISION)
        d_S = tl.dot(d_w, take, d_S, input_precision=PRECISION)
        tl.store(d_v_new + base * (C * D) + c[None, :] * D + vv[:, None], d_w)
    tl.store(d_state + (n * H + i_h) * (D * D) + o_state, d_S)


@triton.jit
def kda_values_bwd_kernel(
    v, beta_logits, chunks, o, d_o, tiles, d_v_new, inverse, d_v, d_beta, d_scores, dots,
    stride_v, stride_b, stride_do, scale,
    H: tl.constexpr, C: tl.constexpr, D: tl.constexpr, BV: tl.constexpr, CT: tl.constexpr, PRECISION: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """The solve, and all that depends on values only, of one chunk and head; grid (H, B).

    Writes the gradients of v, of beta's logits and of both score matrices, each apart within halves and between them,
    [4, C, C]; and the products of queries and keys with their gradients, and the gradients of the diagonal of the
    queries' scores, `dots` [3, C].
    """
    i_h, i_b = tl.program_id(0), tl.program_id(1)
    rows = tl.arange(0, C)
    start = tl.load(chunks + 2 * i_b).to(tl.int64)
    is_token = rows < tl.load(chunks + 2 * i_b + 1) - start
    mask = is_token[:, None]
    base = (i_b * H + i_h).to(tl.int64)
    r, c = rows[:, None], rows[None, :]
    token = (start * H + i_h) * D

    beta = tl.sigmoid(tl.load(beta_logits + (start + rows) * stride_b + i_h, mask=is_token, other=0.0).to(tl.float32))
    X_T = tl.load(inverse + base * (C * C) + c * C + r)
    dA, dM = tl.zeros((C, C), tl.float32), tl.zeros((C, C), tl.float32)
    d_log_beta, v_dot = tl.zeros((C,), tl.float32), tl.zeros((C,), tl.float32)
    o_dot, diagonal = tl.zeros((C,), tl.float32), tl.zeros((C,), tl.float32)
    for i_v in tl.range(0, D // BV, num_stages=STAGES):
        vv = i_v * BV + tl.arange(0, BV)
        o_tile = r * D + vv[None, :]
        out = token + r * (H * D) + vv[None, :]
        d_w = tl.load(d_v_new + base * (C * D) + o_tile)
        v_new = tl.load(tiles + base * (4 * C * D) + C * D + o_tile)
        p_do = d_o + start * stride_do + i_h * D + r * stride_do + vv[None, :]
        b_do = tl.load(p_do, mask=mask, other=0.0).to(CT)
        b_v = tl.load(v + start * stride_v + i_h * D + r * stride_v + vv[None, :], mask=mask, other=0.0)
        b_o = tl.load(o + out, mask=mask, other=0.0)
        d_y = tl.dot(X_T, d_w, input_precision=PRECISION)
        d_log_beta += tl.sum(d_y * v_new.to(tl.float32), 1)
        d_y *= beta[:, None]
        tl.store(d_v + out, d_y.to(d_v.dtype.element_ty), mask=mask)
        v_dot += tl.sum(d_y * b_v.to(tl.float32), 1)
        o_dot += tl.sum(b_do.to(tl.float32) * b_o.to(tl.float32), 1)
        diagonal += tl.sum(b_do.to(tl.float32) * v_new.to(tl.float32), 1)
        v_new = tl.trans(v_new)
        dA = tl.dot(b_do, v_new, dA, input_precision=PRECISION)
        dM = tl.dot(d_y.to(CT), v_new, dM, input_precision=PRECISION)
    d_beta_logits = d_log_beta * (1.0 - beta)
    tl.store(d_beta + (start + rows) * H + i_h, d_beta_logits.to(d_beta.dtype.element_ty), mask=is_token)
    # an output is linear in its query; a key erases and writes
    p_dots = dots + base * (3 * C) + rows
    tl.store(p_dots, o_dot / (scale * scale))
    tl.store(p_dots + C, 2.0 * d_log_beta - v_dot)
    tl.store(p_dots + 2 * C, diagonal)
    is_near = (r < C // 2) == (c < C // 2)
    p_scores = d_scores + base * (4 * C * C) + r * C + c
    # a token's own score does not decay; kept apart, its rounding does not reach the gate
    dA = tl.where(r > c, dA, 0.0)
    tl.store(p_scores, tl.where(is_near, dA, 0.0).to(CT))
    tl.store(p_scores + C * C, tl.where(is_near, 0.0, dA).to(CT))
    dM = tl.where(r > c, -dM, 0.0)
    tl.store(p_scores + 2 * C * C, tl.where(is_near, dM, 0.0).to(CT))
    tl.store(p_scores + 3 * C * C, tl.where(is_near, 0.0, dM).to(CT))


@triton.jit
def kda_keys_bwd_kernel(
    q, k, gate_logits, A_log, dt_bias, chunks, sums, from_row, d_o, d_v, tiles, decays, rates, entering, d_leaving,
    d_scores, dots, d_q, d_k, d_gate, d_bias, d_rate,
    stride_q, stride_k, stride_g, stride_do,
    LOWER_BOUND: tl.constexpr, H: tl.constexpr, C: tl.constexpr, D: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    CT: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Gradients of a block of key channels of one chunk and head; grid (D / BK, H, B).

    `d_bias` and `d_rate` are the chunk's sums.
    """
    i_k, i_h, i_b = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    SHIFT: tl.constexpr = -LOWER_BOUND * 1.4426950408889634 * (C // 2 - 1) / 2
    FAST: tl.constexpr = PRECISION != "tf32x3"
    rows, d = tl.arange(0, C), i_k * BK + tl.arange(0, BK)
    start = tl.load(chunks + 2 * i_b).to(tl.int64)
    is_token = rows < tl.load(chunks + 2 * i_b + 1) - start
    mask = is_token[:, None]
    base = (i_b * H + i_h).to(tl.int64)
    r, c = rows[:, None], rows[None, :]
    token = (start * H + i_h) * D

    # what is needed later is asked for now: a load's latency is most of what a phase below takes
    p_g = gate_logits + start * stride_g + i_h * D + r * stride_g + d[None, :]
    b_g = tl.load(p_g, mask=mask, other=0.0)
    b_q = tl.load(q + start * stride_q + i_h * D + r * stride_q + d[None, :], mask=mask, other=0.0)
    b_k = tl.load(k + start * stride_k + i_h * D + r * stride_k + d[None, :], mask=mask, other=0.0)
    bias = tl.load(dt_bias + i_h * D + d)[None, :]
    rate = tl.exp(tl.load(A_log + i_h))
    p_rates = rates + base * (2 * C) + rows
    q_rate, k_rate = tl.load(p_rates), tl.load(p_rates + C)
    p_dots = dots + base * (3 * C) + rows
    q_dot, k_dot, diagonal = tl.load(p_dots), tl.load(p_dots + C), tl.load(p_dots + 2 * C)
    out = token + r * (H * D) + d[None, :]

    # from the entering and to the leaving state [V, K]
    b_dq, d_in, d_out = tl.zeros((C, BK), tl.float32), tl.zeros((C, BK), tl.float32), tl.zeros((C, BK), tl.float32)
    d_last = tl.zeros((BK,), tl.float32)
    for i_v in tl.range(0, D // BV, num_stages=STAGES):
        vv = i_v * BV + tl.arange(0, BV)
        o_state = base * (D * D) + vv[:, None] * D + d[None, :]
        S, dS = tl.load(entering + o_state), tl.load(d_leaving + o_state)
        p_do = d_o + start * stride_do + i_h * D + r * stride_do + vv[None, :]
        b_do = tl.load(p_do, mask=mask, other=0.0).to(CT)
        d_y = tl.load(d_v + token + r * (H * D) + vv[None, :], mask=mask, other=0.0).to(CT)
        v_new = tl.load(tiles + base * (4 * C * D) + C * D + r * D + vv[None, :])
        b_dq = tl.dot(b_do, S, b_dq, input_precision=PRECISION)
        d_in = tl.dot(d_y, S, d_in, input_precision=PRECISION)
        d_out = tl.dot(v_new, dS, d_out, input_precision=PRECISION)
        d_last += tl.sum(S.to(tl.float32) * dS.to(tl.float32), 0)
    b_q = b_q.to(tl.float32) * q_rate[:, None]
    b_k = b_k.to(tl.float32) * k_rate[:, None]
    g = log_decay(b_g.to(tl.float32), bias, rate, mask, LOWER_BOUND, PRECISION)
    p_sums = sums + r * C + c
    factor = exp2(sum_decay(tl.load(p_sums + THROUGH * C * C), g, PRECISION), FAST)
    b_dq *= factor
    d_in *= -factor
    d_out *= exp2(sum_decay(tl.load(p_sums + AFTER * C * C), g, PRECISION), FAST)
    # what was written before the chunk's end decays with the state
    d_last = d_last * tl.load(decays + base * D + d) + tl.sum(d_out * b_k, 0)

    # within the halves, then from the first to the second
    for i in tl.range(0, 2, num_stages=STAGES):
        p_scores = d_scores + base * (4 * C * C) + i * (C * C) + r * C + c
        dA, dM = tl.load(p_scores), tl.load(p_scores + 2 * C * C)
        x = sum_decay(tl.load(p_sums + (NEAR + i) * C * C), g, PRECISION)
        factor = tl.where(i == 0, near_decay(x, SHIFT, FAST), exp2(x, FAST))
        factor_out = tl.where(i == 0, reciprocal(factor, FAST), factor)
        k_back = (b_k * factor_out).to(CT)
        b_dq += tl.dot(dA, k_back, input_precision=PRECISION) * factor
        d_in += tl.dot(dM, k_back, input_precision=PRECISION) * factor
        x = tl.dot(tl.trans(dA), (b_q * factor).to(CT), input_precision=PRECISION)
        x = tl.dot(tl.trans(dM), (b_k * factor).to(CT), x, input_precision=PRECISION)
        d_out += x * factor_out

    # of the running sum of log decays: every factor is an exponential of it
    d_G = b_q * b_dq + b_k * (d_in - d_out)
    # through the L2 norms: what lies along the vector drops out
    b_dq = (b_dq + b_k * diagonal[:, None] - b_q * q_dot[:, None]) * q_rate[:, None]
    tl.store(d_q + out, b_dq.to(d_q.dtype.element_ty), mask=mask)
    d_in = (d_in + d_out + b_q * diagonal[:, None] - b_k * k_dot[:, None]) * k_rate[:, None]
    tl.store(d_k + out, d_in.to(d_k.dtype.element_ty), mask=mask)

    # to the gate; in bf16 twice, so that 16 bits of every addend count
    ones = tl.load(from_row + r * C + c)
    high = d_G.to(CT)
    d_g = tl.dot(ones, high, input_precision=PRECISION) + d_last[None, :]
    if PRECISION != "tf32x3":
        d_g = tl.dot(ones, (d_G - high.to(tl.float32)).to(CT), d_g)
    z = tl.load(p_g, mask=mask, other=0.0).to(tl.float32) + bias
    gate = sigmoid(rate * z, PRECISION != "tf32x3")
    d_z = tl.where(mask, d_g * (LOWER_BOUND * rate) * gate * (1.0 - gate), 0.0)
    tl.store(d_gate + out, d_z.to(d_gate.dtype.element_ty), mask=mask)
    tl.store(d_bias + base * D + d, tl.sum(d_z, 0))
    tl.store(d_rate + base * (D // BK) + i_k, tl.sum(tl.sum(d_z * z, 1), 0))


def backward(
    inputs: Sequence[Tensor],
    factors: Factors,
    o_THD: Tensor,
    d_o_THD: Tensor,
    d_new_state_NHVK: Tensor,
    table: ChunkTable,
    lower_bound: float,
) -> tuple[Tensor, ...]:
    """Gradients of q, k, v, gate_logits, beta_logits, A_log, dt_bias (the `inputs`) and the state."""
    q_THD, k_THD, v_THD, gate_logits_THD, beta_logits_TH, A_log_H, dt_bias = inputs
    T, H, D = q_THD.shape
    B, C, device = table.num_chunks, CHUNK, q_THD.device
    CT, precision = compute_type(v_THD.dtype)
    tiles, scores, inverse, decays, rates, entering = factors
    d_v_new = torch.empty(B, H, C, D, dtype=tiles.dtype, device=device)
    d_leaving = torch.empty_like(entering)
    d_state = torch.empty_like(d_new_state_NHVK)
    BV, stages = min(D, 64), 1 if precision == "tf32x3" else 3
    kda_scan_bwd_kernel[(D // BV, H, d_state.shape[0])](
        tiles, scores, decays, rates, d_o_THD, d_new_state_NHVK, table.sequences, d_v_new, d_leaving, d_state,
        d_o_THD.stride(0), H=H, C=C, D=D, BV=BV, CT=CT, PRECISION=precision, STAGES=stages,
        num_warps=4, num_stages=stages,
    )  # fmt: skip
    d_q, d_k, d_v, d_gate = (
        torch.empty(T, H, D, dtype=x.dtype, device=device) for x in (q_THD, k_THD, v_THD, gate_logits_THD)
    )
    d_beta = torch.empty(T, H, dtype=beta_logits_TH.dtype, device=device)
    d_scores = torch.empty(B, H, 4, C, C, dtype=tiles.dtype, device=device)
    dots = torch.empty(B, H, 3, C, dtype=torch.float32, device=device)
    BK = min(D, KEY_BLOCK)
    d_bias = torch.empty(B, H * D, dtype=torch.float32, device=device)
    d_rate = torch.empty(B, H, D // BK, dtype=torch.float32, device=device)
    if B:
        kda_values_bwd_kernel[(H, B)](
            v_THD, beta_logits_TH, table.chunks, o_THD, d_o_THD, tiles, d_v_new, inverse, d_v, d_beta, d_scores, dots,
            v_THD.stride(0), beta_logits_TH.stride(0), d_o_THD.stride(0), D**-0.5,
            H=H, C=C, D=D, BV=D // 2, CT=CT, PRECISION=precision, STAGES=stages,
            num_warps=4, num_stages=stages,
        )  # fmt: skip
        kda_keys_bwd_kernel[(D // BK, H, B)](
            q_THD, k_THD, gate_logits_THD, A_log_H, dt_bias, table.chunks,
            row_sums(sums_dtype(tiles.dtype), device), row_sums(tiles.dtype, device)[FROM.value], d_o_THD,
            d_v, tiles, decays, rates, entering, d_leaving, d_scores, dots, d_q, d_k, d_gate, d_bias, d_rate,
            q_THD.stride(0), k_THD.stride(0), gate_logits_THD.stride(0), d_o_THD.stride(0),
            LOWER_BOUND=lower_bound, H=H, C=C, D=D, BK=BK, BV=D // 2, CT=CT, PRECISION=precision, STAGES=stages,
            num_warps=4, num_stages=stages,
        )  # fmt: skip
    return d_q, d_k, d_v, d_gate, d_beta, d_rate.sum((0, 2)), d_bias.sum(0), d_state
