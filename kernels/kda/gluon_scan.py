"""KDA's scan over chunks on a Hopper GPU, forward: `kda_scan_fwd_kernel`, scheduled by hand.

For heads of 128 and tiles of bf16; letters as in `triton_forward`. A program carries BV = 64 values of a head's state,
[BV, D] fp32, in the registers of one group of warps, the left operands of all its products; a warp beside them has the
copy engine bring chunks into STAGES buffers. Of a chunk's four products only two wait for each other: what the entering
state gives the outputs runs behind what it takes from the writes, what the net writes give the outputs behind the next
state. Outputs are scaled and stored beside the next chunk's products.
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
from segue.kernels.kda.triton_layout import CHUNK

HEAD_WIDTH, VALUE_BLOCK, STAGES = 128, 64, 3

_C, _D, _BV, _STAGES = gl.constexpr(CHUNK), gl.constexpr(HEAD_WIDTH), gl.constexpr(VALUE_BLOCK), gl.constexpr(STAGES)
_STATE = gl.constexpr(gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, HEAD_WIDTH, 16]))
_TOKENS = gl.constexpr(gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, CHUNK, 16]))
_STATE_OPERAND = gl.constexpr(gl.DotOperandLayout(operand_index=0, parent=_TOKENS.value, k_width=2))
_WRITE_OPERAND = gl.constexpr(gl.DotOperandLayout(operand_index=0, parent=_STATE.value, k_width=2))


@gluon.jit
def _bring(
    tiles, writes, scores, decays, rates, s_tiles, s_write, s_scores, s_decay, s_rates, full, free, first, num_chunks,
    H: gl.constexpr,
):  # fmt: skip
    """Fill each buffer as soon as it is free."""
    first_v, i_h = gl.program_id(0) * _BV, gl.program_id(1)
    for i in range(num_chunks):
        buffer = i % _STAGES
        # in the first round this phase has passed
        mbarrier.wait(free.index(buffer), (i // _STAGES + 1) & 1)
        base = (first + i) * H + i_h
        row = base * (4 * _C)
        arrived = full.index(buffer)
        mbarrier.expect(
            arrived,
            3 * tiles.block_type.nbytes + writes.block_type.nbytes + scores.block_type.nbytes
            + decays.block_type.nbytes + rates.block_type.nbytes,
        )  # fmt: skip
        tma.async_copy_global_to_shared(tiles, [row, 0], arrived, s_tiles.index(3 * buffer))
        tma.async_copy_global_to_shared(writes, [row + _C, first_v], arrived, s_write.index(buffer))
        tma.async_copy_global_to_shared(tiles, [row + 3 * _C, 0], arrived, s_tiles.index(3 * buffer + 1))
        tma.async_copy_global_to_shared(tiles, [row + 2 * _C, 0], arrived, s_tiles.index(3 * buffer + 2))
        tma.async_copy_global_to_shared(scores, [base * _C, 0], arrived, s_scores.index(buffer))
        tma.async_copy_global_to_shared(decays, [base, 0], arrived, s_decay.index(buffer))
        tma.async_copy_global_to_shared(rates, [base * 2, 0], arrived, s_rates.index(buffer))


@gluon.jit
def _store_outputs(o, b_o, i, start, end, H: gl.constexpr):
    """Outputs [BV, C] of chunk i, as the products leave them; none where i is -1."""
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    first_v, i_h = gl.program_id(0) * _BV, gl.program_id(1)
    b_o = gl.convert_layout(b_o.permute((1, 0)), layout)
    t = start + i * _C + gl.arange(0, _C, gl.SliceLayout(1, layout))
    v = first_v + gl.arange(0, _BV, gl.SliceLayout(0, layout))
    p_o = o + (t.to(gl.int64) * H + i_h)[:, None] * _D + v[None, :]
    gl.store(p_o, b_o, mask=((t >= start) & (t < end))[:, None])


@gluon.jit
def _carry(
    writes, state, new_state, entering, o, s_tiles, s_write, s_scores, s_decay, s_rates, s_entering, full, free,
    first, num_chunks, start, end, o_state, H: gl.constexpr, SAVE: gl.constexpr,
):  # fmt: skip
    """Take the state through the chunks; o_state, of the sequence's and head's."""
    first_v, i_h = gl.program_id(0) * _BV, gl.program_id(1)
    v = first_v + gl.arange(0, _BV, gl.SliceLayout(1, _STATE))
    d = gl.arange(0, _D, gl.SliceLayout(0, _STATE))
    p_state = o_state + v[:, None] * _D + d[None, :]
    S = gl.load(state + p_state)
    S_16 = S.to(gl.bfloat16)
    nothing = gl.zeros([_BV, _C], gl.float32, _TOKENS)
    b_o = nothing
    for i in range(num_chunks):
        buffer, before = i % _STAGES, (i + _STAGES - 1) % _STAGES
        mbarrier.wait(full.index(buffer), i // _STAGES & 1)
        operand = gl.convert_layout(S_16, _STATE_OPERAND)
        taken = warpgroup_mma(
            operand, s_tiles.index(3 * buffer).permute((1, 0)), nothing, use_acc=False, is_async=True
        )  # fmt: skip
        given = warpgroup_mma(
            operand, s_tiles.index(3 * buffer + 1).permute((1, 0)), nothing, use_acc=False, is_async=True
        )  # fmt: skip
        outputs = (b_o * s_rates.index(before).slice(0, 1).load(_TOKENS)).to(o.dtype.element_ty)
        if SAVE:
            tma.store_wait(0)
        mbarrier.arrive(free.index(before), count=1, pred=i > 0)
        if SAVE:
            s_entering.store(S_16)
            fence_async_shared()
            tma.async_copy_shared_to_global(entering, [((first + i) * H + i_h) * _D + first_v, 0], s_entering)
        write = s_write.index(buffer).permute((1, 0)).load(_TOKENS).to(gl.float32)
        k_rate = s_rates.index(buffer).slice(1, 1).load(_TOKENS)
        decay = s_decay.index(buffer).load(_STATE)
        # the state too: what a product will add to must not change while an earlier product runs
        b_new, _, S = warpgroup_mma_wait(1, deps=[taken, operand, S])
        b_new += write
        b_write = (b_new * k_rate).to(gl.bfloat16)
        S = warpgroup_mma(
            gl.convert_layout(b_write, _WRITE_OPERAND), s_tiles.index(3 * buffer + 2), S * decay, is_async=True
        )  # fmt: skip
        given = warpgroup_mma(
            gl.convert_layout(b_write, _STATE_OPERAND), s_scores.index(buffer).permute((1, 0)), given, is_async=True
        )  # fmt: skip
        if SAVE:
            # in the place of what was to be written
            s_write.index(buffer).permute((1, 0)).store(b_new.to(gl.bfloat16))
            fence_async_shared()
            tma.async_copy_shared_to_global(
                writes, [((first + i) * H + i_h) * (4 * _C) + _C, first_v], s_write.index(buffer)
            )  # fmt: skip
        _store_outputs(o, outputs, i - 1, start, end, H)
        S = warpgroup_mma_wait(1, deps=[S])
        S_16 = S.to(gl.bfloat16)
        b_o = warpgroup_mma_wait(0, deps=[given])
    q_rate = s_rates.index((num_chunks + _STAGES - 1) % _STAGES).slice(0, 1).load(_TOKENS)
    _store_outputs(o, (b_o * q_rate).to(o.dtype.element_ty), num_chunks - 1, start, end, H)
    gl.store(new_state + p_state, S)
    if SAVE:
        tma.store_wait(0)


@gluon.jit
def kda_scan_fwd_hopper_kernel(
    tiles, writes, scores, decays, rates, state, sequences, o, new_state, entering, H: gl.constexpr, SAVE: gl.constexpr,
):  # fmt: skip
    """As `kda_scan_fwd_kernel`; the first five and `entering` are tiles of chunks."""
    i_h, i_s = gl.program_id(1), gl.program_id(2)
    n = gl.load(sequences + 4 * i_s).to(gl.int64)
    start, end = gl.load(sequences + 4 * i_s + 1), gl.load(sequences + 4 * i_s + 2)
    first = gl.load(sequences + 4 * i_s + 3)
    num_chunks = (end - start + _C - 1) // _C
    s_tiles = gl.allocate_shared_memory(gl.bfloat16, [3 * _STAGES, _C, _D], tiles.layout)
    s_write = gl.allocate_shared_memory(gl.bfloat16, [_STAGES, _C, _BV], writes.layout)
    s_scores = gl.allocate_shared_memory(gl.bfloat16, [_STAGES, _C, _C], scores.layout)
    s_decay = gl.allocate_shared_memory(gl.float32, [_STAGES, 1, _D], decays.layout)
    s_rates = gl.allocate_shared_memory(gl.float32, [_STAGES, 2, _C], rates.layout)
    s_entering = gl.allocate_shared_memory(gl.bfloat16, [_BV, _D], entering.layout) if SAVE else s_write
    full = gl.allocate_shared_memory(gl.int64, [_STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [_STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(_STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(free.index(i), count=1)
    fence_async_shared()
    o_state = (n * H + i_h) * (_D * _D)
    gl.warp_specialize(
        [
            (_carry, (
                writes, state, new_state, entering, o, s_tiles, s_write, s_scores, s_decay, s_rates, s_entering,
                full, free, first, num_chunks, start, end, o_state, H, SAVE,
            )),
            (_bring, (
                tiles, writes, scores, decays, rates, s_tiles, s_write, s_scores, s_decay, s_rates, full, free,
                first, num_chunks, H,
            )),
        ],
        [1],
        [24],
    )  # fmt: skip


def launch(
    tiles: Tensor, scores: Tensor, decays: Tensor, rates: Tensor, state_NHVK: Tensor, sequences: Tensor, o_THD: Tensor,
    new_state_NHVK: Tensor, entering: Tensor | None,
) -> None:  # fmt: skip
    """As `triton_forward` launches `kda_scan_fwd_kernel`; entering states and net writes are kept where asked."""
    N, H, D, _ = state_NHVK.shape
    C, BV = CHUNK, VALUE_BLOCK
    writes = tiled(tiles, [C, BV])
    leaves = writes if entering is None else tiled(entering, [BV, D])
    kda_scan_fwd_hopper_kernel[(D // BV, H, N)](
        tiled(tiles, [C, D]), writes, tiled(scores, [C, C]), tiled(decays, [1, D]), tiled(rates, [2, C]),
        state_NHVK, sequences, o_THD, new_state_NHVK, leaves, H=H, SAVE=entering is not None, num_warps=4,
    )  # fmt: skip
