"""KDA decoding on a GPU: convolution, SiLU, norms, gates, state and output norm in one launch over a pool.

N sequences, L new tokens of each, H heads, D head width, W = 4 convolution taps. A program takes one sequence and head,
and its state [D, D] by blocks of BV rows: each is read once and written once however many tokens come, and the next one
is under way meanwhile, the first one while queries, keys, values and gates are made. Values wait in memory for their
block, outputs for the norm over all of them.

A block is worked on as [BV, D / WIDTH, WIDTH]: threads lie side by side over WIDTH columns only, each with all that are
WIDTH apart, so that a sum over a row is mostly a thread's own.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from segue.kernels.kda.gate import L2_EPS

_EPS = tl.constexpr(L2_EPS)
_LOG2E = tl.constexpr(1.4426950408889634)
NUM_TAPS = 4
WIDTH = 32
MAX_NEW = 8
"""Tokens of a sequence in one launch: the kernel is compiled for each number."""


@triton.jit
def _convolved(qkv, conv, taps, token, channel, i: tl.constexpr, stride, width):
    """SiLU of the four taps over inputs i - 3 to i, rounded as inputs are; inputs before 0 are in `conv`."""
    total = tl.zeros(channel.shape, tl.float32)
    for j in tl.static_range(4):
        if i + j < 3:
            x = tl.load(conv + (i + j) * width + channel)
        else:
            x = tl.load(qkv + (token + i + j - 3) * stride + channel)
        total += tl.load(taps + j * width + channel).to(tl.float32) * x.to(conv.dtype.element_ty).to(tl.float32)
    return (total * tl.sigmoid(total)).to(qkv.dtype.element_ty).to(tl.float32)


@triton.jit
def _query_key_gates(
    qkv, gate_logits, beta_logits, conv, taps, bias, rate, token, channel, i: tl.constexpr,
    stride_qkv, stride_gate, stride_beta, i_h, scale, LOWER_BOUND: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """Query, key, their product, decay and write strength of new token i; vectors as [1, D / WIDTH, WIDTH]."""
    b_q = _convolved(qkv, conv, taps, token, channel, i, stride_qkv, 3 * H * D)
    b_k = _convolved(qkv, conv, taps, token, H * D + channel, i, stride_qkv, 3 * H * D)
    b_q *= tl.rsqrt(tl.sum(b_q * b_q, 0) + _EPS) * scale
    b_k *= tl.rsqrt(tl.sum(b_k * b_k, 0) + _EPS)
    z = tl.load(gate_logits + (token + i) * stride_gate + channel).to(tl.float32) + bias
    beta = tl.sigmoid(tl.load(beta_logits + (token + i) * stride_beta + i_h).to(tl.float32))
    decay = tl.exp2(tl.sigmoid(rate * z) * (LOWER_BOUND * _LOG2E))
    shape: tl.constexpr = (1, D // WIDTH, WIDTH)
    return tl.reshape(b_q, shape), tl.reshape(b_k, shape), tl.sum(b_q * b_k, 0), tl.reshape(decay, shape), beta


@triton.jit
def kda_decode_kernel(
    qkv, gate_logits, beta_logits, output_gate, taps, A_log, dt_bias, norm_weight, recurrent, conv, slots, y, values,
    stride_qkv, stride_gate, stride_beta, stride_output, eps, scale,
    LOWER_BOUND: tl.constexpr, H: tl.constexpr, D: tl.constexpr, BV: tl.constexpr, L: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """All new tokens of one sequence and head; grid (H, N)."""
    i_h, i_n = tl.program_id(0), tl.program_id(1)
    slot = tl.load(slots + i_n).to(tl.int64)
    token = i_n.to(tl.int64) * L
    d, p, c = tl.arange(0, D), tl.arange(0, D // WIDTH), tl.arange(0, WIDTH)
    width: tl.constexpr = 3 * H * D
    channel = i_h * D + d
    conv += slot * (3 * width)
    v = tl.arange(0, BV)
    rows = recurrent + (slot * H + i_h) * (D * D) + v[:, None, None] * D + p[None, :, None] * WIDTH + c[None, None, :]
    # a block is asked for before the work that precedes its own
    S_next = tl.load(rows)
    rate = tl.exp(tl.load(A_log + i_h).to(tl.float32))
    bias = tl.load(dt_bias + channel).to(tl.float32)
    for i in tl.static_range(L):
        value = _convolved(qkv, conv, taps, token, 2 * H * D + channel, i, stride_qkv, width)
        tl.store(values + (token + i) * (H * D) + channel, value.to(values.dtype.element_ty))
    b_q, b_k, own, decay, beta = _query_key_gates(
        qkv, gate_logits, beta_logits, conv, taps, bias, rate, token, channel, 0,
        stride_qkv, stride_gate, stride_beta, i_h, scale, LOWER_BOUND, H, D, WIDTH,
    )  # fmt: skip
    # the loop reads what other threads of this program wrote
    tl.debug_barrier()
    for i_v in tl.range(0, D // BV, num_stages=1):
        S = S_next
        S_next = tl.load(rows + BV * D, mask=i_v + 1 < D // BV)
        for i in tl.static_range(L):
            if L > 1:
                b_q, b_k, own, decay, beta = _query_key_gates(
                    qkv, gate_logits, beta_logits, conv, taps, bias, rate, token, channel, i,
                    stride_qkv, stride_gate, stride_beta, i_h, scale, LOWER_BOUND, H, D, WIDTH,
                )  # fmt: skip
            o_v = (token + i) * (H * D) + i_h * D + i_v * BV + v
            b_v = tl.load(values + o_v).to(tl.float32)
            S *= decay
            write = (b_v - tl.sum(tl.sum(S * b_k, 1), 1)) * beta
            b_y = tl.sum(tl.sum(S * b_q, 1), 1) + own * write
            S += write[:, None, None] * b_k
            tl.store(y + o_v, b_y.to(y.dtype.element_ty))
        tl.store(rows, S)
        rows += BV * D
    # below are read what other threads of this program wrote, and written what they read
    tl.debug_barrier()
    weight = tl.load(norm_weight + d).to(tl.float32)
    for i in tl.static_range(L):
        p_y = y + (token + i) * (H * D) + channel
        b_o = tl.load(p_y).to(tl.float32)
        gate = tl.sigmoid(tl.load(output_gate + (token + i) * stride_output + channel).to(tl.float32))
        normed = gate * weight * b_o * tl.rsqrt(tl.sum(b_o * b_o, 0) / D + eps)
        tl.store(p_y, normed.to(y.dtype.element_ty))
    for part in tl.static_range(3):
        p_conv = conv + part * (H * D) + channel
        x_1, x_2, x_3 = tl.load(p_conv), tl.load(p_conv + width), tl.load(p_conv + 2 * width)
        for i in tl.static_range(L):
            x = tl.load(qkv + (token + i) * stride_qkv + part * (H * D) + channel).to(x_1.dtype)
            x_1, x_2, x_3 = x_2, x_3, x
        tl.store(p_conv, x_1)
        tl.store(p_conv + width, x_2)
        tl.store(p_conv + 2 * width, x_3)


def triton_decode(
    qkv: Tensor,
    gate_logits: Tensor,
    beta_logits: Tensor,
    output_gate: Tensor,
    taps_WC: Tensor,
    A_log_H: Tensor,
    dt_bias: Tensor,
    norm_weight_V: Tensor,
    recurrent: Tensor,
    conv: Tensor,
    slots_N: Tensor,
    *,
    lower_bound: float,
    eps: float,
) -> Tensor:
    """As `kda_decode`, on a GPU; sizes are checked there."""
    N, num_new, _ = qkv.shape
    _, H, D, _ = recurrent.shape
    y = torch.empty(N, num_new, H * D, dtype=output_gate.dtype, device=qkv.device)
    values = torch.empty(N, num_new, H * D, dtype=qkv.dtype, device=qkv.device)
    qkv, gate_logits, beta_logits, output_gate = map(_rows, (qkv, gate_logits, beta_logits, output_gate))
    with torch.cuda.device_of(qkv):
        kda_decode_kernel[(H, N)](
            qkv, gate_logits, beta_logits, output_gate, taps_WC, A_log_H, dt_bias, norm_weight_V, recurrent, conv,
            slots_N, y, values, qkv.stride(1), gate_logits.stride(1), beta_logits.stride(1), output_gate.stride(1),
            eps, D**-0.5, LOWER_BOUND=lower_bound, H=H, D=D, BV=16, L=num_new, WIDTH=WIDTH, num_warps=4,
        )  # fmt: skip
    return y


def _rows(x_NLC: Tensor) -> Tensor:
    """Channels side by side, and one stride from token to token."""
    num_new = x_NLC.shape[1]
    if num_new == 1 and x_NLC.stride(2) == 1:
        # the stride of a dimension of one means nothing
        return x_NLC.as_strided(x_NLC.shape, (x_NLC.stride(0), x_NLC.stride(0), 1))
    is_even = x_NLC.stride(2) == 1 and x_NLC.stride(0) == num_new * x_NLC.stride(1)
    return x_NLC if is_even else x_NLC.contiguous()
