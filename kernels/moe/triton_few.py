"""Experts of few tokens on a GPU, as in decoding: four launches whatever the experts' loads, and nothing sorted.

Each expert's pairs are listed; a program then takes an expert and some columns, reads its part of the matrix once, and
walks the expert's pairs. Products are summed in fp32; the hidden activation is rounded once, weighted.

Letters: T tokens, E experts, K experts a token takes, P = T K pairs, L expert input width, F expert hidden width.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from segue.kernels.situ.pointwise import Caps
from segue.kernels.situ.triton_gated import gated

MAX_PAIRS = 4096
"""More are sorted: a list's length is that of all pairs."""


@triton.jit
def list_pairs_kernel(expert_ids, pairs, counts, num_pairs, BP: tl.constexpr):
    """The pairs of one expert, in order; grid (E)."""
    i_e = tl.program_id(0)
    p = tl.arange(0, BP)
    is_own = tl.load(expert_ids + p, mask=p < num_pairs, other=-1).to(tl.int32) == i_e
    rank = tl.cumsum(is_own.to(tl.int32), 0) - 1
    tl.store(pairs + i_e * num_pairs + rank, p, mask=is_own)
    tl.store(counts + i_e, tl.sum(is_own.to(tl.int32), 0))


@triton.jit
def up_kernel(
    z, weights, w1, w3, pairs, counts, hidden, stride_z, num_pairs, beta, linear_beta,
    K: tl.constexpr, L: tl.constexpr, F: tl.constexpr, BM: tl.constexpr, BL: tl.constexpr, BF: tl.constexpr,
    HAS_CAPS: tl.constexpr,
):  # fmt: skip
    """Weighted hidden activations of one expert, BF columns; grid (E, F / BF)."""
    i_e = tl.program_id(0).to(tl.int64)
    count = tl.load(counts + i_e)
    f, l = tl.program_id(1) * BF + tl.arange(0, BF), tl.arange(0, BL)
    o_w = i_e * (F * L) + f[None, :] * L
    for start in range(0, count, BM):
        m = start + tl.arange(0, BM)
        pair = tl.load(pairs + i_e * num_pairs + m, mask=m < count, other=0)
        p_z = z + (pair // K)[:, None].to(tl.int64) * stride_z
        gate = tl.zeros((BM, BF), tl.float32)
        up = tl.zeros((BM, BF), tl.float32)
        for i in range(0, L, BL):
            c = i + l
            b_z = tl.load(p_z + c[None, :], mask=(m < count)[:, None] & (c < L)[None, :], other=0.0)
            is_in = (c < L)[:, None] & (f < F)[None, :]
            gate = tl.dot(b_z, tl.load(w1 + o_w + c[:, None], mask=is_in, other=0.0), gate)
            up = tl.dot(b_z, tl.load(w3 + o_w + c[:, None], mask=is_in, other=0.0), up)
        weight = tl.load(weights + pair, mask=m < count, other=0.0)
        b_hidden = gated(gate, up, beta, linear_beta, HAS_CAPS) * weight[:, None]
        p_hidden = hidden + pair[:, None].to(tl.int64) * F + f[None, :]
        tl.store(p_hidden, b_hidden.to(hidden.dtype.element_ty), mask=(m < count)[:, None] & (f < F)[None, :])


@triton.jit
def down_kernel(
    hidden, w2, pairs, counts, out, num_pairs,
    L: tl.constexpr, F: tl.constexpr, BM: tl.constexpr, BL: tl.constexpr, BF: tl.constexpr,
):  # fmt: skip
    """Outputs of one expert's pairs, BL columns; grid (E, L / BL)."""
    i_e = tl.program_id(0).to(tl.int64)
    count = tl.load(counts + i_e)
    l, f = tl.program_id(1) * BL + tl.arange(0, BL), tl.arange(0, BF)
    o_w = i_e * (F * L) + l[None, :] * F
    for start in range(0, count, BM):
        m = start + tl.arange(0, BM)
        pair = tl.load(pairs + i_e * num_pairs + m, mask=m < count, other=0).to(tl.int64)
        b_out = tl.zeros((BM, BL), tl.float32)
        for i in range(0, F, BF):
            c = i + f
            is_row = (m < count)[:, None] & (c < F)[None, :]
            b_hidden = tl.load(hidden + pair[:, None] * F + c[None, :], mask=is_row, other=0.0)
            is_in = (c < F)[:, None] & (l < L)[None, :]
            b_out = tl.dot(b_hidden, tl.load(w2 + o_w + c[:, None], mask=is_in, other=0.0), b_out)
        tl.store(out + pair[:, None] * L + l[None, :], b_out, mask=(m < count)[:, None] & (l < L)[None, :])


@triton.jit
def sum_pairs_kernel(out, u, K: tl.constexpr, L: tl.constexpr, BL: tl.constexpr):
    """BL columns of one token, summed over its experts; grid (T, L / BL)."""
    i_t = tl.program_id(0).to(tl.int64)
    l = tl.program_id(1) * BL + tl.arange(0, BL)
    total = tl.zeros((BL,), tl.float32)
    for j in range(K):
        total += tl.load(out + (i_t * K + j) * L + l, mask=l < L, other=0.0)
    tl.store(u + i_t * L + l, total.to(u.dtype.element_ty), mask=l < L)


def few_experts(
    z: Tensor, expert_ids: Tensor, weights: Tensor, w1: Tensor, w3: Tensor, w2: Tensor, caps: Caps | None
) -> Tensor:
    """Weighted sum of each token's experts [T, L]; at most `MAX_PAIRS` pairs, on one GPU."""
    E, F, L = w1.shape
    T, K = expert_ids.shape
    P, device = T * K, z.device
    z = z if z.stride(1) == 1 else z.contiguous()
    expert_ids, weights = expert_ids.contiguous(), weights.float().contiguous()
    pairs = torch.empty(E, P, dtype=torch.int32, device=device)
    counts = torch.empty(E, dtype=torch.int32, device=device)
    hidden = torch.empty(P, F, dtype=z.dtype, device=device)
    out = torch.empty(P, L, dtype=torch.float32, device=device)
    u = torch.empty(T, L, dtype=z.dtype, device=device)
    beta, linear_beta = caps or (1.0, 1.0)
    BM = 16 if P <= 8 * E else 32 if P <= 24 * E else 64
    # narrow columns give few experts' matrices to many programs
    columns = 32 if P <= E else 64
    with torch.cuda.device_of(z):
        list_pairs_kernel[(E,)](expert_ids, pairs, counts, P, BP=triton.next_power_of_2(P), num_warps=4)
        up_kernel[(E, triton.cdiv(F, columns))](
            z, weights, w1, w3, pairs, counts, hidden, z.stride(0), P, beta, linear_beta,
            K=K, L=L, F=F, BM=BM, BL=128, BF=columns, HAS_CAPS=caps is not None, num_warps=4, num_stages=3,
        )  # fmt: skip
        down_kernel[(E, triton.cdiv(L, columns))](
            hidden, w2, pairs, counts, out, P, L=L, F=F, BM=BM, BL=columns, BF=128, num_warps=4, num_stages=3
        )
        BL = min(triton.next_power_of_2(L), 1024)
        sum_pairs_kernel[(T, triton.cdiv(L, BL))](out, u, K=K, L=L, BL=BL, num_warps=4)
    return u
