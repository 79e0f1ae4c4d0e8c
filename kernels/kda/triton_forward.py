"""KDA chunk form on a GPU, forward: two kernels, one parallel over chunks, one that carries the state over them.

C = 64 tokens of a chunk, D = head width (keys and values alike), H heads, N sequences, B chunks. Log decays are in
base 2 inside the kernels. A chunk's *tiles* are four [C, D] matrices: minus what each token takes back of the entering
state (X diag(b) k_in), what it writes (X diag(b) v), keys decayed to the chunk's end, and queries decayed from its
start; X = (I + M)^-1 with M_ij = b_i k_i . k_j decayed from j to i.

Queries and keys are read once: their norms are known when all channels have been read, so the last two tiles and the
scores hold them as they came, and `rates`, which make them unit vectors, apply to the rows of whoever takes part.

Decays between two tokens are products of a factor each. Tokens of one half of a chunk (32) meet over the half's first
token, the exponents shifted by half of the lower bound's range, so that both factors stay below 2^112; tokens of
different halves meet over the last token of the first half, where both factors are at most 1. All anchors lie in the
past of the later token, so a token never changes the rounding of an earlier one.
"""

from functools import lru_cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from segue.kernels.common.hopper import is_hopper
from segue.kernels.kda.gate import L2_EPS
from segue.kernels.kda.triton_layout import CHUNK, ChunkTable

_EPS = tl.constexpr(L2_EPS)
_LOG2E = tl.constexpr(1.4426950408889634)

# tables of `row_sums`
THROUGH = tl.constexpr(0)
AFTER = tl.constexpr(1)
NEAR = tl.constexpr(2)
FAR = tl.constexpr(3)
FROM = tl.constexpr(4)


@lru_cache
def row_sums(dtype: torch.dtype, device: torch.device) -> Tensor:
    """[5, C, C], 0 or a constant: which rows c are summed for row r of a chunk.

    THROUGH r; AFTER r; NEAR: from behind the first row of r's half through r; FAR: from r to the middle, or from there
    through r; FROM r. The constant is 1, in fp16 2^-10: `log_decay` keeps log decays times 2^10 there.
    """
    half = CHUNK // 2
    r, c = torch.arange(CHUNK)[:, None], torch.arange(CHUNK)[None, :]
    near = (r // half == c // half) & (c <= r) & (c % half != 0)
    far = torch.where(r < half, (c > r) & (c < half), (c >= half) & (c <= r))
    with torch.inference_mode(False):
        tables = torch.stack([c <= r, c > r, near, far, c >= r]).to(dtype)
        return (tables * (2.0**-10 if dtype is torch.float16 else 1.0)).to(device)


class Factors(NamedTuple):
    """What the backward pass keeps of the forward pass."""

    tiles: Tensor
    """[B, H, 4, C, D]: see above; the backward pass finds in the place of the writes v_new, the net writes."""
    scores: Tensor
    """[B, H, C, C]: q_i . k_j decayed from j to i, j <= i, as they came."""
    inverse: Tensor
    """[B, H, C, C]: X."""
    decay: Tensor
    """[B, H, D] fp32: decay over the chunk."""
    rates: Tensor
    """[B, H, 2, C] fp32: factors from the inputs to queries (scale included) and keys."""
    entering: Tensor
    """[B, H, V, K]: state at the chunk's start."""


@triton.jit
def exp2(x, FAST: tl.constexpr):
    """2^x; FAST takes the one instruction, which rounds what is below 2^-126 to 0."""
    if FAST:
        return tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)
    return tl.exp2(x)


@triton.jit
def reciprocal(x, FAST: tl.constexpr):
    """1 / x; FAST to the last two bits."""
    if FAST:
        return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)
    return 1.0 / x


@triton.jit
def sigmoid(x, FAST: tl.constexpr):
    """1 / (1 + e^-x)."""
    return reciprocal(1.0 + exp2(x * -_LOG2E, FAST), FAST)


@triton.jit
def log_decay(logits, bias, rate, mask, LOWER_BOUND: tl.constexpr, PRECISION: tl.constexpr):
    """Base-2 log decay as `sum_decay` takes it: in fp32, or times 2^10 in fp16. Padding does not decay."""
    if PRECISION == "tf32x3":
        g = tl.where(mask, LOWER_BOUND * _LOG2E * sigmoid(rate * (logits + bias), False), 0.0)
    else:
        # fp16 keeps 11 bits of what is above 2^-24, and is as wide an operand as bf16
        odds = exp2(logits * (-rate * _LOG2E) + bias * (-rate * _LOG2E), True)
        g = tl.where(mask, 1024 * LOWER_BOUND * _LOG2E * reciprocal(1.0 + odds, True), 0.0).to(tl.float16)
    return g


@triton.jit
def sum_decay(ones, g, PRECISION: tl.constexpr):
    """Sums of log decays by a table of `row_sums`; an exponent."""
    return tl.dot(ones, g, input_precision=PRECISION)


@triton.jit
def near_decay(x, SHIFT: tl.constexpr, FAST: tl.constexpr):
    """2^(x + SHIFT); where x is small, without what fp32 loses in the sum."""
    if FAST:
        return exp2(x + SHIFT, True)
    return tl.where(x > -64.0, tl.exp2(x) * tl.exp2(x * 0.0 + SHIFT), tl.exp2(x + SHIFT))


@triton.jit
def _scaled(x, factor, CT: tl.constexpr):
    """x * factor in the type of the products' operands; in bf16 two at a time, the factor rounded first."""
    if tl.bfloat16 == CT:
        y = tl.inline_asm_elementwise(
            "{ .reg .b32 zero; mov.b32 zero, 0x80008000; fma.rn.bf16x2 $0, $1, $2, zero; }", "=r,r,r",
            [x, factor.to(CT)], tl.bfloat16, is_pure=True, pack=2,
        )  # fmt: skip
    else:
        y = x * factor
    return y


@triton.jit
def _double(X, M, r, c, n: tl.constexpr, PRECISION: tl.constexpr, CT: tl.constexpr):
    """From inverses of diagonal blocks of n to those of 2n: X - X (M on the lower left of each) X."""
    L = tl.where((r // (2 * n) == c // (2 * n)) & (r // n % 2 == 1) & (c // n % 2 == 0), M, 0.0)
    Y = tl.dot(X.to(CT), L.to(CT), input_precision=PRECISION)
    return X - tl.dot(Y.to(CT), X.to(CT), input_precision=PRECISION)


@triton.jit
def _inverse(M, C: tl.constexpr, CT: tl.constexpr, PRECISION: tl.constexpr):
    """(I + M)^-1 for strictly lower triangular M [C, C], by doubling: block forward substitution, nothing grows."""
    n: tl.constexpr = C // 16
    b = tl.arange(0, n)
    on_diagonal = (b[:, None] == b[None, :])[:, None, :, None]
    i = tl.arange(0, 16)
    r, c = i[None, :, None], i[None, None, :]
    M16 = tl.sum(tl.where(on_diagonal, tl.reshape(M, (n, 16, n, 16)), 0.0), axis=2)
    X16 = tl.where(r == c, 1.0, 0.0) - tl.where((r == c + 1) & (r % 2 == 1), M16, 0.0)
    X16 = _double(X16, M16, r, c, 2, PRECISION, tl.float32)
    X16 = _double(X16, M16, r, c, 4, PRECISION, tl.float32)
    X16 = _double(X16, M16, r, c, 8, PRECISION, tl.float32)
    X = tl.reshape(tl.where(on_diagonal, X16[:, :, None, :], 0.0), (C, C))
    o = tl.arange(0, C)
    r2, c2 = o[:, None], o[None, :]
    X = _double(X, M, r2, c2, 16, PRECISION, CT)
    return _double(X, M, r2, c2, 32, PRECISION, CT)


@triton.jit
def _add_channels(
    A, M, q_square, k_square, q, k, gate_logits, rate, dt_bias, tile, decays, through, after, near, far,
    stride_q, stride_k, stride_g, rows, mask, first_d,
    LOWER_BOUND: tl.constexpr, C: tl.constexpr, D: tl.constexpr, BK: tl.constexpr, CT: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """A block of channels: its part of score matrices and squares is added, its tiles are written.

    Returns:
        A, M and the squares; the keys decayed from the chunk's start stand in the first tile.
    """
    SHIFT: tl.constexpr = -LOWER_BOUND * 1.4426950408889634 * (C // 2 - 1) / 2
    FAST: tl.constexpr = PRECISION != "tf32x3"
    d = first_d + tl.arange(0, BK)
    r, c = rows[:, None], rows[None, :]
    is_first = r < C // 2
    z = tl.load(gate_logits + r * stride_g + d[None, :], mask=mask, other=0.0).to(tl.float32)
    b_k = tl.load(k + r * stride_k + d[None, :], mask=mask, other=0.0)
    b_q = tl.load(q + r * stride_q + d[None, :], mask=mask, other=0.0)
    g = log_decay(z, tl.load(dt_bias + d)[None, :], rate, mask, LOWER_BOUND, PRECISION)
    b_k, b_q = b_k.to(CT), b_q.to(CT)
    # summed on the matrix units, in fp32
    ones = tl.full((BK, 16), 1.0, CT)
    q_square = tl.dot(_scaled(b_q, b_q, CT), ones, q_square, input_precision=PRECISION)
    k_square = tl.dot(_scaled(b_k, b_k, CT), ones, k_square, input_precision=PRECISION)
    p_tile = tile + r * D + d[None, :]
    # from the chunk's start and to its end
    factor = exp2(sum_decay(through, g, PRECISION), FAST)
    tl.store(decays + d[None, :] + 0 * r, factor, mask=(r == C - 1) & (d[None, :] < D))
    tl.store(p_tile, _scaled(b_k, factor, CT))
    tl.store(p_tile + 3 * C * D, _scaled(b_q, factor, CT))
    factor = exp2(sum_decay(after, g, PRECISION), FAST)
    tl.store(p_tile + 2 * C * D, _scaled(b_k, factor, CT))
    # from the first half to the second
    factor = exp2(sum_decay(far, g, PRECISION), FAST)
    keys = tl.trans(_scaled(b_k, tl.where(is_first, factor, 0.0), CT))
    factor = tl.where(is_first, 0.0, factor)
    M = tl.dot(_scaled(b_k, factor, CT), keys, M, input_precision=PRECISION)
    A = tl.dot(_scaled(b_q, factor, CT), keys, A, input_precision=PRECISION)
    # within a half
    is_near = is_first == (c < C // 2)
    factor = near_decay(sum_decay(near, g, PRECISION), SHIFT, FAST)
    keys = tl.trans(_scaled(b_k, reciprocal(factor, FAST), CT))
    M += tl.where(is_near, tl.dot(_scaled(b_k, factor, CT), keys, input_precision=PRECISION), 0.0)
    A += tl.where(is_near, tl.dot(_scaled(b_q, factor, CT), keys, input_precision=PRECISION), 0.0)
    return A, M, q_square, k_square


@triton.jit
def kda_tiles_fwd_kernel(
    q, k, v, gate_logits, beta_logits, A_log, dt_bias, chunks, sums, tiles, scores, inverse, decays, rates,
    stride_q, stride_k, stride_v, stride_g, stride_b, scale,
    LOWER_BOUND: tl.constexpr, H: tl.constexpr, C: tl.constexpr, D: tl.constexpr, BK: tl.constexpr, CT: tl.constexpr,
    PRECISION: tl.constexpr, SAVE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Tiles, scores and decay of one chunk and head; grid (H, B)."""
    i_h, i_b = tl.program_id(0), tl.program_id(1)
    rows = tl.arange(0, C)
    r, c = rows[:, None], rows[None, :]
    start = tl.load(chunks + 2 * i_b).to(tl.int64)
    is_token = rows < tl.load(chunks + 2 * i_b + 1) - start
    mask = is_token[:, None]
    base = (i_b * H + i_h).to(tl.int64)
    tile = tiles + base * (4 * C * D)
    q += start * stride_q + i_h * D
    k += start * stride_k + i_h * D
    v += start * stride_v + i_h * D
    gate_logits += start * stride_g + i_h * D
    dt_bias += i_h * D
    decays += base * D
    rate = tl.exp(tl.load(A_log + i_h))
    beta = tl.sigmoid(tl.load(beta_logits + (start + rows) * stride_b + i_h, mask=is_token, other=0.0).to(tl.float32))
    # padding does not write
    beta = tl.where(is_token, beta, 0.0)

    p_sums = sums + r * C + c
    through, after = tl.load(p_sums + THROUGH * C * C), tl.load(p_sums + AFTER * C * C)
    near, far = tl.load(p_sums + NEAR * C * C), tl.load(p_sums + FAR * C * C)
    A, M = tl.zeros((C, C), tl.float32), tl.zeros((C, C), tl.float32)
    q_square, k_square = tl.zeros((C, 16), tl.float32), tl.zeros((C, 16), tl.float32)
    for i_k in tl.range(0, D // BK, num_stages=STAGES):
        A, M, q_square, k_square = _add_channels(
            A, M, q_square, k_square, q, k, gate_logits, rate, dt_bias, tile, decays, through, after, near, far,
            stride_q, stride_k, stride_g, rows, mask, i_k * BK, LOWER_BOUND, C, D, BK, CT, PRECISION,
        )  # fmt: skip
    o_scores = base * (C * C) + r * C + c
    tl.store(scores + o_scores, tl.where(r >= c, A, 0.0).to(CT))
    # all columns are equal
    q_rate, k_rate = tl.rsqrt(tl.max(q_square, 1) + _EPS) * scale, tl.rsqrt(tl.max(k_square, 1) + _EPS)
    tl.store(rates + base * (2 * C) + rows, q_rate)
    tl.store(rates + base * (2 * C) + C + rows, k_rate)
    X = _inverse(tl.where(r > c, M * (beta * k_rate)[:, None] * k_rate[None, :], 0.0), C, CT, PRECISION)
    if SAVE:
        tl.store(inverse + o_scores, X.to(CT))
    X_k, X = (X * (beta * k_rate)[None, :]).to(CT), (X * beta[None, :]).to(CT)
    # the loop below reads what other threads of this program wrote above
    tl.debug_barrier()
    for i_k in tl.range(0, D // BK, num_stages=STAGES):
        d = i_k * BK + tl.arange(0, BK)
        p_tile = tile + r * D + d[None, :]
        k_in = tl.load(p_tile)
        b_v = tl.load(v + r * stride_v + d[None, :], mask=mask, other=0.0).to(CT)
        tl.store(p_tile, (-tl.dot(X_k, k_in, input_precision=PRECISION)).to(CT))
        tl.store(p_tile + C * D, tl.dot(X, b_v, input_precision=PRECISION).to(CT))


@triton.jit
def kda_scan_fwd_kernel(
    tiles, writes, scores, decays, rates, state, sequences, o, new_state, entering,
    H: tl.constexpr, C: tl.constexpr, D: tl.constexpr, BV: tl.constexpr, CT: tl.constexpr,
    PRECISION: tl.constexpr, SAVE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Outputs and states of one sequence, head and block of values; grid (D / BV, H, N).

    The state stays transposed, [BV, D] fp32, in registers: it is the left operand of every product.
    """
    i_v, i_h, i_s = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    n = tl.load(sequences + 4 * i_s).to(tl.int64)
    start, end = tl.load(sequences + 4 * i_s + 1), tl.load(sequences + 4 * i_s + 2)
    first = tl.load(sequences + 4 * i_s + 3)
    c, d, vv = tl.arange(0, C), tl.arange(0, D), i_v * BV + tl.arange(0, BV)
    o_state = vv[:, None] * D + d[None, :]
    S = tl.load(state + (n * H + i_h) * (D * D) + o_state).to(tl.float32)
    num_chunks = tl.cdiv(end - start, C)
    for i in tl.range(0, num_chunks, num_stages=STAGES):
        base = (first + i) * H + i_h
        take = tl.trans(tiles.load([base * (4 * C), 0]))
        write = tl.trans(writes.load([base * (4 * C) + C, i_v * BV]))
        k_out = tiles.load([base * (4 * C) + 2 * C, 0])
        q_in = tl.trans(tiles.load([base * (4 * C) + 3 * C, 0]))
        A = tl.trans(scores.load([base * C, 0]))
        b_decay = tl.load(decays + base.to(tl.int64) * D + d)
        p_rates = rates + base.to(tl.int64) * (2 * C) + c
        q_rate, k_rate = tl.load(p_rates), tl.load(p_rates + C)
        b_S = S.to(CT)
        if SAVE:
            entering.store([base * D + i_v * BV, 0], b_S)
        v_new = tl.dot(b_S, take, input_precision=PRECISION) + write.to(tl.float32)
        b_o = tl.dot(b_S, q_in, input_precision=PRECISION)
        if SAVE:
            writes.store([base * (4 * C) + C, i_v * BV], tl.trans(v_new.to(CT)))
        v_new = (v_new * k_rate[None, :]).to(CT)
        b_o = tl.dot(v_new, A, b_o, input_precision=PRECISION) * q_rate[None, :]
        S = tl.dot(v_new, k_out, S * b_decay[None, :], input_precision=PRECISION)
        t = start + i * C + c
        p_o = o + (t.to(tl.int64)[None, :] * H + i_h) * D + vv[:, None]
        tl.store(p_o, b_o.to(o.dtype.element_ty), mask=(t < end)[None, :])
    tl.store(new_state + (n * H + i_h) * (D * D) + o_state, S)


def forward(
    q_THD: Tensor,
    k_THD: Tensor,
    v_THD: Tensor,
    gate_logits_THD: Tensor,
    beta_logits_TH: Tensor,
    A_log_H: Tensor,
    dt_bias: Tensor,
    state_NHVK: Tensor,
    table: ChunkTable,
    lower_bound: float,
    save: bool,
) -> tuple[Tensor, Tensor, Factors | None]:
    """Outputs, new states, and what the backward pass needs where `save`; arguments as `triton_op` checked them."""
    T, H, D = q_THD.shape
    B, C, device = table.num_chunks, CHUNK, q_THD.device
    CT, precision = compute_type(v_THD.dtype)
    dtype = torch.float32 if CT is tl.float32 else torch.bfloat16
    tiles = torch.empty(B, H, 4, C, D, dtype=dtype, device=device)
    scores = torch.empty(B, H, C, C, dtype=dtype, device=device)
    decay = torch.empty(B, H, D, dtype=torch.float32, device=device)
    inverse = torch.empty_like(scores) if save else scores
    rates = torch.empty(B, H, 2, C, dtype=torch.float32, device=device)
    entering = torch.empty(B, H, D, D, dtype=dtype, device=device) if save else scores
    o = torch.empty(T, H, D, dtype=v_THD.dtype, device=device)
    new_state = torch.empty_like(state_NHVK)
    BV, stages = min(D, 64), 1 if precision == "tf32x3" else 3
    if B:
        kda_tiles_fwd_kernel[(H, B)](
            q_THD, k_THD, v_THD, gate_logits_THD, beta_logits_TH, A_log_H, dt_bias, table.chunks,
            row_sums(sums_dtype(dtype), device), tiles, scores, inverse, decay, rates,
            q_THD.stride(0), k_THD.stride(0), v_THD.stride(0), gate_logits_THD.stride(0), beta_logits_TH.stride(0),
            D**-0.5, LOWER_BOUND=lower_bound, H=H, C=C, D=D, BK=D // 2, CT=CT,
            PRECISION=precision, SAVE=save, STAGES=stages,
            num_warps=4, num_stages=stages,
        )  # fmt: skip
    if D == 128 and dtype is torch.bfloat16 and is_hopper(tiles):
        # written for such heads on Hopper alone, and imported where it runs
        from segue.kernels.kda import gluon_scan

        gluon_scan.launch(
            tiles, scores, decay, rates, state_NHVK, table.sequences, o, new_state, entering if save else None
        )
    else:
        leaves = TensorDescriptor(entering, [B * H * D, D], [D, 1], [BV, D]) if save else entering
        rows = [B * H * 4 * C, D]
        kda_scan_fwd_kernel[(D // BV, H, state_NHVK.shape[0])](
            TensorDescriptor(tiles, rows, [D, 1], [C, D]), TensorDescriptor(tiles, rows, [D, 1], [C, BV]),
            TensorDescriptor(scores, [B * H * C, C], [C, 1], [C, C]), decay, rates, state_NHVK, table.sequences,
            o, new_state, leaves,
            H=H, C=C, D=D, BV=BV, CT=CT, PRECISION=precision, SAVE=save, STAGES=stages, num_warps=4, num_stages=stages,
        )  # fmt: skip
    return o, new_state, Factors(tiles, scores, inverse, decay, rates, entering) if save else None


def compute_type(dtype: torch.dtype) -> tuple[tl.dtype, str]:
    """Type of the matrix products' operands, and their precision; half precision lacks the range of the factors."""
    return (tl.float32, "tf32x3") if dtype is torch.float32 else (tl.bfloat16, "tf32")


def sums_dtype(dtype: torch.dtype) -> torch.dtype:
    """Of the tables for log decays, given that of the tiles."""
    return torch.float32 if dtype is torch.float32 else torch.float16
