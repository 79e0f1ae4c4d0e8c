"""Absorbed latent attention on a GPU: one token a sequence over paged rows, split over rows, in two launches.

N sequences, H heads, S splits of a sequence's rows, L latent width, R shared key width, C = L + R; BH heads and BN rows
of a program. A program keeps its heads' queries and their mixed latents [BH, L] and walks the rows of one split, each
read once and used as key and as value. Scores are in units of log 2.
"""

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from segue.kernels.common.hopper import is_hopper
from segue.kernels.mla.tiles import LOG2_E
from segue.kernels.mla.triton_layout import num_processors

ROW_BLOCK = 64
"""Most rows of a step: wide queries and two steps' rows fill shared memory."""
HEAD_BLOCKS = (16, 64)
"""Heads of a program: few, whose products take whole warps, or as many as a warp group's."""
MAX_SPLITS = 64
FIXED_STEPS = 6
"""What a program costs beside its steps over rows, in such steps."""


@triton.jit
def mla_decode_kernel(
    latent_q, q, latents, shared_keys, page_table, lengths, mixed, lse,
    stride_q, stride_table, key_width, split_rows, score_factor,
    H: tl.constexpr, L: tl.constexpr, R: tl.constexpr, BL: tl.constexpr, BR: tl.constexpr, BH: tl.constexpr,
    BN: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """Mixed latents and log-sum-exp of one split of a sequence's rows and BH heads; grid (heads / BH, S, N)."""
    i_s, i_n = tl.program_id(1), tl.program_id(2)
    length = tl.load(lengths + i_n).to(tl.int32)
    start = i_s * split_rows
    if start >= length:
        return
    end = tl.minimum(start + split_rows, length)
    h = tl.program_id(0) * BH + tl.arange(0, BH)
    c, r, k = tl.arange(0, BL), tl.arange(0, BR), tl.arange(0, BN)
    is_head = (h < H)[:, None]
    num_sequences = tl.num_programs(2)
    p_q = latent_q + (h[:, None] * num_sequences + i_n).to(tl.int64) * L + c[None, :]
    b_latent_q = tl.load(p_q, mask=is_head & (c < L)[None, :], other=0.0)
    # columns past the row's are read as others' or as zero, and meet queries of zero
    p_q = q + i_n.to(tl.int64) * stride_q + h[:, None] * (key_width + R) + key_width + r[None, :]
    b_q = tl.load(p_q, mask=is_head & (r < R)[None, :], other=0.0)
    m = tl.full((BH,), float("-inf"), tl.float32)
    total = tl.zeros((BH,), tl.float32)
    b_mixed = tl.zeros((BH, BL), tl.float32)
    p_page = page_table + i_n * stride_table
    page = tl.load(p_page + start // PAGE)
    for i in tl.range(start, end, BN):
        row = (page * PAGE + i % PAGE).to(tl.int32)
        # the next step's page is asked for before this step's work
        page = tl.load(p_page + tl.minimum(i + BN, end - 1) // PAGE)
        b_latent = latents.load([row, 0])
        b_key = shared_keys.load([row, L])
        scores = tl.dot(b_latent_q, tl.trans(b_latent))
        scores = tl.dot(b_q, tl.trans(b_key), scores) * score_factor
        scores = tl.where((i + k < end)[None, :], scores, float("-inf"))
        m_new = tl.maximum(m, tl.max(scores, 1))
        p = tl.exp2(scores - m_new[:, None])
        rescale = tl.exp2(m - m_new)
        total = total * rescale + tl.sum(p, 1)
        b_mixed = tl.dot(p.to(b_latent.dtype), b_latent, b_mixed * rescale[:, None])
        m = m_new
    o_split = (i_n * tl.num_programs(1) + i_s).to(tl.int64) * H + h
    tl.store(mixed + o_split[:, None] * L + c[None, :], b_mixed / total[:, None], mask=is_head & (c < L)[None, :])
    tl.store(lse + o_split, m + tl.log2(total), mask=h < H)


@triton.jit
def mla_decode_merge_kernel(
    mixed, lse, lengths, out, split_rows, num_splits, H: tl.constexpr, L: tl.constexpr, BL: tl.constexpr
):
    """Mixed latents over all splits, in the layout [H, N, L]; grid (H, N)."""
    i_h, i_n = tl.program_id(0), tl.program_id(1)
    c = tl.arange(0, BL)
    used = tl.cdiv(tl.load(lengths + i_n).to(tl.int32), split_rows)
    o_split = (i_n * num_splits).to(tl.int64) * H + i_h
    m = tl.load(lse + o_split)
    b_mixed = tl.load(mixed + o_split * L + c, mask=c < L, other=0.0)
    total = 1.0
    for _ in range(1, used):
        o_split += H
        m_split = tl.load(lse + o_split)
        b_split = tl.load(mixed + o_split * L + c, mask=c < L, other=0.0)
        m_new = tl.maximum(m, m_split)
        kept, added = tl.exp2(m - m_new), tl.exp2(m_split - m_new)
        b_mixed = b_mixed * kept + b_split * added
        total = total * kept + added
        m = m_new
    p_out = out + (i_h * tl.num_programs(1) + i_n).to(tl.int64) * L + c
    tl.store(p_out, (b_mixed / total).to(out.dtype.element_ty), mask=c < L)


def triton_decode(
    q_NHK: Tensor, pages: Tensor, page_table: Tensor, lengths: Tensor, weight_HXL: Tensor, scale: float
) -> Tensor:
    """As `segue.kernels.mla.op.mla_decode`, on one GPU, in bf16, the type of all products' operands; sums are fp32.

    Triton's interpreter, which has no products of bf16, takes all in fp32.

    Raises:
        ValueError: tensors lie on several devices or differ in dtype, a page or a row has a size without a kernel.
    """
    tensors = (q_NHK, pages, page_table, lengths, weight_HXL)
    if any(x.device != pages.device for x in tensors):
        raise ValueError(f"all tensors must be on {pages.device}, got {sorted({str(x.device) for x in tensors})}")
    N, H, K = q_NHK.shape
    _, page_size, row_width = pages.shape
    L, dtype = weight_HXL.shape[2], pages.dtype
    R = row_width - L
    if q_NHK.dtype != dtype or weight_HXL.dtype != dtype:
        raise ValueError(f"on a GPU, q and kv_b must have the pages' {dtype}, got {q_NHK.dtype} and {weight_HXL.dtype}")
    if page_size % 16 or row_width * dtype.itemsize % 16 or not pages.is_contiguous() or L > 512 or R > 64:
        raise ValueError(
            "on a GPU, pages must be contiguous, of a multiple of 16 rows of a multiple of 16 bytes, latents at most "
            f"512 and shared keys at most 64 wide, got {page_size}, {row_width * dtype.itemsize}, {L} and {R}"
        )
    # the largest power of 2 that divides a page
    BN = min(page_size & -page_size, ROW_BLOCK)
    BH = next((b for b in HEAD_BLOCKS if b >= H), HEAD_BLOCKS[-1])
    programs_a_split = N * triton.cdiv(H, BH)
    split_rows = _split_rows(page_table.shape[1] * page_size, programs_a_split, BN, num_processors(pages.device))
    S = triton.cdiv(page_table.shape[1] * page_size, split_rows)
    q_NHK, weight_HXL = q_NHK.contiguous(), weight_HXL.contiguous()
    latent_q_HNL = torch.bmm(q_NHK[..., : K - R].transpose(0, 1), weight_HXL[:, : K - R])
    mixed = torch.empty(N, S, H, L, dtype=torch.float32, device=pages.device)
    lse = torch.empty(N, S, H, dtype=torch.float32, device=pages.device)
    mixed_HNL = torch.empty(H, N, L, dtype=dtype, device=pages.device)
    grid, arguments = (triton.cdiv(H, BH), S, N), (latent_q_HNL, q_NHK, pages, page_table, lengths, mixed, lse)
    with torch.cuda.device_of(pages):
        if _is_wide(pages, L, R, BH, BN):
            # written for Hopper alone, and imported where it runs
            from segue.kernels.mla import gluon_decode

            gluon_decode.launch(grid, *arguments, split_rows, scale * LOG2_E)
        else:
            _launch(grid, *arguments, split_rows, scale * LOG2_E, L, BH, BN)
        mla_decode_merge_kernel[(H, N)](
            mixed, lse, lengths, mixed_HNL, split_rows, S, H=H, L=L, BL=_power_of_2(L), num_warps=4
        )
    return _expand(mixed_HNL, weight_HXL[:, K - R :]).transpose(0, 1)


def _is_wide(pages: Tensor, L: int, R: int, BH: int, BN: int) -> bool:
    """Whether `gluon_decode` takes it: heads that fill its program, on the one kind of GPU that it is written for."""
    fits = pages.dtype is torch.bfloat16 and (L, R, BH, BN) == (512, 64, 64, 64)
    return fits and is_hopper(pages)


def _launch(
    grid: tuple[int, int, int], latent_q_HNL: Tensor, q_NHK: Tensor, pages: Tensor, page_table: Tensor, lengths: Tensor,
    mixed: Tensor, lse: Tensor, split_rows: int, score_factor: float, L: int, BH: int, BN: int,
) -> None:  # fmt: skip
    _, H, K = q_NHK.shape
    num_pages, page_size, row_width = pages.shape
    R = row_width - L
    BL, BR = _power_of_2(L), _power_of_2(R)
    shape, strides = [num_pages * page_size, row_width], [row_width, 1]
    mla_decode_kernel[grid](
        latent_q_HNL, q_NHK, TensorDescriptor(pages, shape, strides, [BN, BL]),
        TensorDescriptor(pages, shape, strides, [BN, BR]), page_table, lengths, mixed, lse,
        H * K, page_table.stride(0), K - R, split_rows, score_factor,
        H=H, L=L, R=R, BL=BL, BR=BR, BH=BH, BN=BN, PAGE=page_size,
        num_warps=8 if BL > 128 else 4, num_stages=3 if HEAD_BLOCKS[0] == BH else 2,
    )  # fmt: skip


def _power_of_2(width: int) -> int:
    """Columns of a tile that holds `width`."""
    return triton.next_power_of_2(max(width, 16))


def _expand(mixed_HNL: Tensor, weight_HVL: Tensor) -> Tensor:
    """Values of the mixed latents, [H, N, V] in fp32."""
    weight_HLV = weight_HVL.transpose(1, 2)
    if mixed_HNL.dtype is torch.float32:
        return torch.bmm(mixed_HNL, weight_HLV)
    return torch.bmm(mixed_HNL, weight_HLV, out_dtype=torch.float32)


@lru_cache(maxsize=4096)
def _split_rows(num_rows: int, programs_a_split: int, block: int, processors: int) -> int:
    """Rows of a split, a multiple of `block`: the fewest rounds of programs times their length."""

    def cost(num_splits: int) -> int:
        steps = triton.cdiv(triton.cdiv(num_rows, num_splits), block)
        return triton.cdiv(programs_a_split * num_splits, processors) * (steps + FIXED_STEPS)

    num_splits = min(range(1, MAX_SPLITS + 1), key=cost)
    return triton.cdiv(triton.cdiv(num_rows, num_splits), block) * block
