"""Absorbed latent attention of many heads on a Hopper GPU: the decoding kernel of `triton_decode`, scheduled by hand.

For latents of 512, shared keys of 64 and rows of bf16. BH = 64 heads of a program, BN = 64 rows of a step. Three groups
of warps work side by side. One has the copy engine bring rows into two buffers, each in quarters of the latents and the
shared keys. The other two, left and right, score every other step's rows, and both add the weighted latents of every
step, each to its half of the latents: so every score is computed once, and all that is mixed stays in registers.
Whoever has scored a buffer leaves the weights in the place of its shared keys, which nobody needs any more, and the
running maximum beside them. Both take the steps in order, so that one buffer is filled while the other is worked on.
"""

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from segue.kernels.common.gluon_tiles import tiled

LATENT_WIDTH, SHARED_WIDTH = 512, 64
HEAD_BLOCK, ROW_BLOCK = 64, 64
QUARTER = 128

_L, _R = gl.constexpr(LATENT_WIDTH), gl.constexpr(SHARED_WIDTH)
_BH, _BN = gl.constexpr(HEAD_BLOCK), gl.constexpr(ROW_BLOCK)
_C = gl.constexpr(QUARTER)
_SCORES = gl.constexpr(gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, ROW_BLOCK, 16]))
_MIXED = gl.constexpr(gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, QUARTER, 16]))


@gluon.jit
def _bring_rows(latents, shared_keys, rows, keys, full, free, read, p_page, start, end, num_pairs, PAGE: gl.constexpr):
    """Fill each buffer as soon as its parts are free; a step behind the last row brings that row's step once more."""
    for j in range(num_pairs):
        for side in gl.static_range(2):
            i = gl.minimum(start + (2 * j + side) * _BN, (end - 1) // _BN * _BN)
            row = gl.load(p_page + i // PAGE).to(gl.int32) * PAGE + i % PAGE
            # in the first round this phase has passed
            phase = (j + 1) & 1
            for half in gl.static_range(2):
                mbarrier.wait(free.index(2 * side + half), phase)
                for part in gl.static_range(2):
                    arrived = full.index(5 * side + 2 * half + part)
                    mbarrier.expect(arrived, latents.block_type.nbytes)
                    tma.async_copy_global_to_shared(
                        latents, [row, (2 * half + part) * _C], arrived, rows.index(4 * side + 2 * half + part)
                    )
            mbarrier.wait(read.index(side), phase)
            mbarrier.expect(full.index(5 * side + 4), shared_keys.block_type.nbytes)
            tma.async_copy_global_to_shared(shared_keys, [row, _L], full.index(5 * side + 4), keys.index(side))


@gluon.jit
def _mix(weights, rescale, rows, FIRST: gl.constexpr, b_low, b_high):
    """Add the weighted latents of two quarters to what is rescaled first."""
    rescale = gl.expand_dims(gl.convert_layout(rescale, gl.SliceLayout(1, _MIXED)), 1)
    b_low = warpgroup_mma(weights, rows.index(FIRST), b_low * rescale, is_async=True)
    b_high = warpgroup_mma(weights, rows.index(FIRST + 1), b_high * rescale, is_async=True)
    return warpgroup_mma_wait(0, deps=[b_low, b_high])


@gluon.jit
def _attend(
    SIDE: gl.constexpr, latent_q, shared_q, rows, keys, maxima, sums, full, scored, free, read, done, mixed, lse,
    start, end, num_pairs, score_factor, o_split, first_head, H: gl.constexpr,
):  # fmt: skip
    """Score one step of each pair, the SIDE's, and mix the SIDE's half of the latents of both."""
    weights_layout: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=_MIXED, k_width=2)
    head_layout: gl.constexpr = gl.SliceLayout(1, _SCORES)
    b_low = gl.zeros([_BH, _C], gl.float32, _MIXED)
    b_high = gl.zeros([_BH, _C], gl.float32, _MIXED)
    m = gl.full([_BH], float("-inf"), gl.float32, head_layout)
    total = gl.zeros([_BH], gl.float32, head_layout)
    k = gl.arange(0, _BN, gl.SliceLayout(0, _SCORES))
    for j in range(num_pairs):
        phase = j & 1
        for buffer in gl.static_range(2):
            if buffer == SIDE:
                s = gl.zeros([_BH, _BN], gl.float32, _SCORES)
                for c in gl.static_range(4):
                    mbarrier.wait(full.index(5 * buffer + c), phase)
                    s = warpgroup_mma(
                        latent_q.index(c), rows.index(4 * buffer + c).permute((1, 0)), s, use_acc=c > 0, is_async=True
                    )
                mbarrier.wait(full.index(5 * buffer + 4), phase)
                s = warpgroup_mma(shared_q, keys.index(buffer).permute((1, 0)), s, is_async=True)
                s = warpgroup_mma_wait(0, deps=[s]) * score_factor
                s = gl.where((start + (2 * j + buffer) * _BN + k < end)[None, :], s, float("-inf"))
                m_new = gl.maximum(m, gl.max(s, 1))
                p = gl.exp2(s - gl.expand_dims(m_new, 1))
                weights = p.to(gl.bfloat16)
                keys.index(buffer).store(weights)
                maxima.index(buffer).store(m_new)
                fence_async_shared()
                mbarrier.arrive(scored.index(buffer), count=1)
                rescale = gl.exp2(m - m_new)
                total = total * rescale + gl.sum(p, 1)
                weights = gl.convert_layout(weights, weights_layout)
                b_low, b_high = _mix(weights, rescale, rows, 4 * buffer + 2 * SIDE, b_low, b_high)
            else:
                mbarrier.wait(scored.index(buffer), phase)
                m_new = maxima.index(buffer).load(head_layout)
                rescale = gl.exp2(m - m_new)
                total = total * rescale
                b_low, b_high = _mix(keys.index(buffer), rescale, rows, 4 * buffer + 2 * SIDE, b_low, b_high)
                mbarrier.arrive(read.index(buffer), count=1)
            mbarrier.arrive(free.index(2 * buffer + SIDE), count=1)
            m = m_new
    sums.index(SIDE).store(total)
    mbarrier.arrive(done.index(SIDE), count=1)
    mbarrier.wait(done.index(1 - SIDE), 0)
    total += sums.index(1 - SIDE).load(head_layout)
    h = first_head + gl.arange(0, _BH, gl.SliceLayout(1, _MIXED))
    c = SIDE * 2 * _C + gl.arange(0, _C, gl.SliceLayout(0, _MIXED))
    p_mixed = mixed + (o_split + h)[:, None] * _L + c[None, :]
    b_total = gl.expand_dims(gl.convert_layout(total, gl.SliceLayout(1, _MIXED)), 1)
    gl.store(p_mixed, b_low / b_total, mask=(h < H)[:, None])
    gl.store(p_mixed + _C, b_high / b_total, mask=(h < H)[:, None])
    if SIDE == 0:
        h_lse = first_head + gl.arange(0, _BH, head_layout)
        gl.store(lse + o_split + h_lse, m + gl.log2(total), mask=h_lse < H)


@gluon.jit
def _attend_left(
    latent_q, shared_q, rows, keys, maxima, sums, full, scored, free, read, done, mixed, lse, start, end, num_pairs,
    score_factor, o_split, first_head, H: gl.constexpr,
):  # fmt: skip
    _attend(
        0, latent_q, shared_q, rows, keys, maxima, sums, full, scored, free, read, done, mixed, lse, start, end,
        num_pairs, score_factor, o_split, first_head, H,
    )  # fmt: skip


@gluon.jit
def _attend_right(
    latent_q, shared_q, rows, keys, maxima, sums, full, scored, free, read, done, mixed, lse, start, end, num_pairs,
    score_factor, o_split, first_head, H: gl.constexpr,
):  # fmt: skip
    _attend(
        1, latent_q, shared_q, rows, keys, maxima, sums, full, scored, free, read, done, mixed, lse, start, end,
        num_pairs, score_factor, o_split, first_head, H,
    )  # fmt: skip


@gluon.jit
def _load_queries(p_q, stride_head, first_head, H: gl.constexpr, WIDTH: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [256 // WIDTH, WIDTH // 8], [4, 1], [1, 0])
    h = first_head + gl.arange(0, _BH, gl.SliceLayout(1, layout))
    c = gl.arange(0, WIDTH, gl.SliceLayout(0, layout))
    return gl.load(p_q + h[:, None] * stride_head + c[None, :], mask=(h < H)[:, None], other=0.0)


@gluon.jit
def mla_decode_wide_kernel(
    latent_q, q, latents, shared_keys, page_table, lengths, mixed, lse,
    stride_q, stride_table, key_width, split_rows, score_factor, H: gl.constexpr, PAGE: gl.constexpr,
):  # fmt: skip
    """As `mla_decode_kernel`; `latents` and `shared_keys` are tiles of ROW_BLOCK rows and QUARTER or all columns."""
    i_s, i_n = gl.program_id(1), gl.program_id(2)
    first_head = gl.program_id(0) * _BH
    start = i_s * split_rows
    end = gl.minimum(start + split_rows, gl.load(lengths + i_n).to(gl.int32))
    num_pairs = gl.maximum(end - start + 2 * _BN - 1, 0) // (2 * _BN)
    s_latent_q = gl.allocate_shared_memory(
        gl.bfloat16, [4, _BH, _C], gl.NVMMASharedLayout.get_default_for([_BH, _C], gl.bfloat16)
    )
    s_shared_q = gl.allocate_shared_memory(
        gl.bfloat16, [_BH, _R], gl.NVMMASharedLayout.get_default_for([_BH, _R], gl.bfloat16)
    )
    p_q = latent_q + i_n.to(gl.int64) * _L
    for part in gl.static_range(4):
        s_latent_q.index(part).store(_load_queries(p_q + part * _C, gl.num_programs(2) * _L, first_head, H, _C))
    p_q = q + i_n.to(gl.int64) * stride_q + key_width
    s_shared_q.store(_load_queries(p_q, key_width + _R, first_head, H, _R))
    rows = gl.allocate_shared_memory(gl.bfloat16, [8, _BN, _C], latents.layout)
    keys = gl.allocate_shared_memory(gl.bfloat16, [2, _BN, _R], shared_keys.layout)
    vector: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    maxima = gl.allocate_shared_memory(gl.float32, [2, _BH], vector)
    sums = gl.allocate_shared_memory(gl.float32, [2, _BH], vector)
    # a part of a buffer has arrived; a buffer is scored; a half of it is mixed; its weights are read; a side is done
    full = gl.allocate_shared_memory(gl.int64, [10, 1], mbarrier.MBarrierLayout())
    scored = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [4, 1], mbarrier.MBarrierLayout())
    read = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    done = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(10):
        mbarrier.init(full.index(i), count=1)
    for i in gl.static_range(4):
        mbarrier.init(free.index(i), count=1)
    for i in gl.static_range(2):
        mbarrier.init(scored.index(i), count=1)
        mbarrier.init(read.index(i), count=1)
        mbarrier.init(done.index(i), count=1)
    fence_async_shared()
    o_split = (i_n * gl.num_programs(1) + i_s).to(gl.int64) * H
    p_page = page_table + i_n * stride_table
    if num_pairs > 0:
        gl.warp_specialize(
            [
                (_bring_rows, (
                    latents, shared_keys, rows, keys, full, free, read, p_page, start, end, num_pairs, PAGE,
                )),
                (_attend_left, (
                    s_latent_q, s_shared_q, rows, keys, maxima, sums, full, scored, free, read, done, mixed, lse,
                    start, end, num_pairs, score_factor, o_split, first_head, H,
                )),
                (_attend_right, (
                    s_latent_q, s_shared_q, rows, keys, maxima, sums, full, scored, free, read, done, mixed, lse,
                    start, end, num_pairs, score_factor, o_split, first_head, H,
                )),
            ],
            [4, 4],
            [232, 232],
        )  # fmt: skip


def launch(
    grid: tuple[int, int, int], latent_q_HNL: Tensor, q_NHK: Tensor, pages: Tensor, page_table: Tensor, lengths: Tensor,
    mixed: Tensor, lse: Tensor, split_rows: int, score_factor: float,
) -> None:  # fmt: skip
    """As `triton_decode` launches `mla_decode_kernel`, with heads in blocks of HEAD_BLOCK."""
    _, H, K = q_NHK.shape
    mla_decode_wide_kernel[grid](
        latent_q_HNL, q_NHK, tiled(pages, [ROW_BLOCK, QUARTER]), tiled(pages, [ROW_BLOCK, SHARED_WIDTH]), page_table,
        lengths, mixed, lse, H * K, page_table.stride(0), K - SHARED_WIDTH, split_rows, score_factor,
        H=H, PAGE=pages.shape[1], num_warps=4,
    )  # fmt: skip
