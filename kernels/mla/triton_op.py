"""Latent attention on a GPU: the autograd function, what it accepts, and how rows are expanded part by part.

T own tokens, P prior tokens, H heads, DN, DR and DV width of a head's own keys, of the shared keys and of the values,
X = DN + DV, L latent width, C = L + DR.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from triton.tools.tensor_descriptor import TensorDescriptor

from segue.kernels.mla.tiles import LOG2_E
from segue.kernels.mla.triton_backward import mla_delta_bwd_kernel, mla_queries_bwd_kernel, mla_rows_bwd_kernel
from segue.kernels.mla.triton_forward import mla_fwd_kernel
from segue.kernels.mla.triton_layout import (
    BackwardPart,
    Bounds,
    ForwardPart,
    backward_work,
    forward_parts,
    num_processors,
)

WIDTHS = (16, 32, 64, 128)
"""Of keys, shared keys and values."""
EXPANDED_NUMEL = 1 << 28
"""Most numbers of expanded rows at once, unless `LEAST_ROWS` have more."""
SCORES_NUMEL = 1 << 30
"""Most score gradients at once, unless a block of rows has more."""
LEAST_ROWS = 128
BEFORE_ALL = -(1 << 30)
"""Where prior rows lie among the own ones."""


# queries and rows of a block, and within it the step of a kernel that walks them and the stages of the step's loads
QUERY_BLOCK, ROW_BLOCK = 128, 128
FORWARD_STEP, FORWARD_STAGES = 64, 3
QUERY_STEP, QUERY_STAGES = 64, 3
ROW_STEP, ROW_STAGES = 64, 4
NUM_WARPS = 8


class _Shape(NamedTuple):
    """What the kernels are compiled for."""

    H: int
    L: int
    DN: int
    DR: int
    DV: int


def triton_mla_attention(
    q_THK: Tensor, rows_TC: Tensor, prior_rows_PC: Tensor, weight_HXL: Tensor, own: Bounds, prior: Bounds, scale: float
) -> Tensor:
    """As `segue.kernels.mla.op.mla_attention` on one GPU, in bf16, the type of all products' operands; sums are fp32.

    Prior rows may be fp32 and have their gradients in fp32 then. Triton's interpreter, which has no products of bf16,
    takes all in fp32.

    Raises:
        ValueError: tensors lie on several devices or differ in dtype, a width has no kernel, or the scale is not
            positive.
    """
    tensors = (q_THK, rows_TC, prior_rows_PC, weight_HXL)
    if any(x.device != q_THK.device for x in tensors):
        raise ValueError(f"all tensors must be on {q_THK.device}, got {sorted({str(x.device) for x in tensors})}")
    if not q_THK.dtype == rows_TC.dtype == weight_HXL.dtype:
        raise ValueError(
            f"q, rows and kv_b must have one dtype, got {q_THK.dtype}, {rows_TC.dtype} and {weight_HXL.dtype}"
        )
    shape = _shape(q_THK, rows_TC, weight_HXL)
    if not {shape.DN, shape.DR, shape.DV} <= set(WIDTHS) or rows_TC.shape[1] % 8 or scale <= 0:
        raise ValueError(
            f"on a GPU, keys, shared keys and values must be {WIDTHS} wide, rows a multiple of 8, and the scale "
            f"positive, got {shape.DN}, {shape.DR}, {shape.DV}, {rows_TC.shape[1]} and {scale}"
        )
    with torch.cuda.device_of(q_THK):
        o_THV: Tensor = _TritonMla.apply(*tensors, own, prior, scale)
    return o_THV


class _TritonMla(torch.autograd.Function):
    """Keeps the inputs, the output and the log-sum-exp of each query."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, rows: Tensor, prior_rows: Tensor, weight: Tensor, own: Bounds, prior: Bounds, scale: float
    ) -> Tensor:
        shape, q, weight = _shape(q, rows, weight), q.contiguous(), weight.contiguous()
        T = q.shape[0]
        o = torch.empty(T, shape.H, shape.DV, dtype=torch.float32, device=q.device)
        lse = torch.empty(shape.H, T, dtype=torch.float32, device=q.device)
        limits = dict(rows_at_once=_rows_at_once(shape), query_block=QUERY_BLOCK)
        for part in forward_parts(own, prior, **limits, device=q.device):
            narrow = _narrow(rows, prior_rows, part, q.dtype)
            mla_fwd_kernel[(len(part.items), shape.H)](
                q, *_row_tiles(narrow, _expand(narrow, weight), shape, FORWARD_STEP), part.items, o, lse, T,
                _shift(part), scale * LOG2_E, **shape._asdict(), BM=QUERY_BLOCK, BN=FORWARD_STEP,
                num_warps=NUM_WARPS, num_stages=FORWARD_STAGES,
            )  # fmt: skip
        ctx.save_for_backward(q, rows, prior_rows, weight, o, lse)
        ctx.own, ctx.prior, ctx.scale = own, prior, scale
        return o

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_o: Tensor) -> tuple[Tensor | None, ...]:
        q, rows, prior_rows, weight, o, lse = ctx.saved_tensors
        with torch.cuda.device_of(q):
            gradients = _backward(q, rows, prior_rows, weight, o, lse, d_o, ctx.own, ctx.prior, ctx.scale)
        return *gradients, None, None, None


def _backward(
    q: Tensor, rows: Tensor, prior_rows: Tensor, weight: Tensor, o: Tensor, lse: Tensor, d_o: Tensor,
    own: Bounds, prior: Bounds, scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of the first four arguments."""
    shape, T = _shape(q, rows, weight), q.shape[0]
    work = backward_work(
        own, prior, rows_at_once=_rows_at_once(shape),
        tiles_at_once=SCORES_NUMEL // (shape.H * ROW_BLOCK * QUERY_BLOCK), row_block=ROW_BLOCK,
        query_block=QUERY_BLOCK, programs_a_block=shape.H, processors=num_processors(q.device), device=q.device,
    )  # fmt: skip
    num_blocks = len(work.query_blocks)
    placed_lse = torch.empty(shape.H, num_blocks * QUERY_BLOCK, dtype=torch.float32, device=q.device)
    delta, d_o_narrow = torch.empty_like(placed_lse), torch.empty(o.shape, dtype=q.dtype, device=q.device)
    mla_delta_bwd_kernel[(shape.H, num_blocks)](
        o, d_o.contiguous(), lse, work.query_blocks, d_o_narrow, placed_lse, delta, T, placed_lse.shape[1],
        H=shape.H, DV=shape.DV, BQ=QUERY_BLOCK, num_warps=NUM_WARPS,
    )  # fmt: skip
    d_q = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
    d_rows, d_prior_rows = torch.empty_like(rows), torch.empty_like(prior_rows)
    weight_YL = weight.flatten(0, 1)
    d_weight_YL = torch.zeros(weight_YL.shape, dtype=torch.float32, device=q.device)
    for part in work.parts:
        d_part = (d_prior_rows if part.is_prior else d_rows)[part.rows]
        if not len(part.queries):
            d_part.zero_()
            continue
        narrow = _narrow(rows, prior_rows, part, q.dtype)
        expanded = _expand(narrow, weight)
        d_expanded = torch.empty_like(expanded)
        d_shared = torch.empty(len(narrow), shape.H, shape.DR, dtype=torch.float32, device=q.device)
        _launch_part(q, d_o_narrow, narrow, expanded, placed_lse, delta, d_expanded, d_shared, d_q, part, shape, scale)
        d_weight_YL += _product(d_expanded.t(), narrow[:, : shape.L])
        d_part[:, : shape.L] = _product(d_expanded, weight_YL)
        d_part[:, shape.L :] = d_shared.sum(1)
    return d_q.mul_(scale).to(q.dtype), d_rows, d_prior_rows, d_weight_YL.view(weight.shape).to(weight.dtype)


def _launch_part(
    q: Tensor, d_o: Tensor, narrow: Tensor, expanded: Tensor, lse: Tensor, delta: Tensor, d_expanded: Tensor,
    d_shared: Tensor, d_q: Tensor, part: BackwardPart, shape: _Shape, scale: float,
) -> None:  # fmt: skip
    """Write the gradients of expanded rows and shared keys; add to those of the queries."""
    H, _, DN, DR, DV = shape
    T = q.shape[0]
    tiles = torch.empty(H * part.num_tiles * ROW_BLOCK, QUERY_BLOCK, dtype=q.dtype, device=q.device)
    flat_q, flat_d_o = q.view(T, H * (DN + DR)), d_o.view(T, H * DV)
    constants = dict(**shape._asdict(), BN=ROW_BLOCK, BQ=QUERY_BLOCK, num_warps=NUM_WARPS)
    mla_rows_bwd_kernel[(len(part.row_blocks), H)](
        _tiled(flat_q, QUERY_STEP, DN), _tiled(flat_q, QUERY_STEP, DR), _tiled(flat_d_o, QUERY_STEP, DV),
        *_row_tiles(narrow, expanded, shape, ROW_BLOCK), _tiled(lse, 1, QUERY_STEP), _tiled(delta, 1, QUERY_STEP),
        part.row_blocks, d_expanded, d_shared, _tiled(tiles, ROW_BLOCK, QUERY_STEP), part.num_tiles, _shift(part),
        scale * LOG2_E, scale, BM=QUERY_STEP, num_stages=QUERY_STAGES, **constants,
    )  # fmt: skip
    mla_queries_bwd_kernel[(len(part.queries), H)](
        _tiled(tiles, ROW_STEP, QUERY_BLOCK), *_row_tiles(narrow, expanded, shape, ROW_STEP)[:2],
        part.queries, d_q, part.num_tiles, BK=ROW_STEP, num_stages=ROW_STAGES, **constants,
    )  # fmt: skip


def _shape(q: Tensor, rows: Tensor, weight: Tensor) -> _Shape:
    num_heads, expanded_width, latent_width = weight.shape
    shared_width = rows.shape[1] - latent_width
    key_width = q.shape[2] - shared_width
    return _Shape(num_heads, latent_width, key_width, shared_width, expanded_width - key_width)


def _shift(part: ForwardPart | BackwardPart) -> int:
    """How far behind a row of the part the first query lies that sees it: prior rows lie before all queries."""
    return BEFORE_ALL if part.is_prior else part.rows.start


def _narrow(rows: Tensor, prior_rows: Tensor, part: ForwardPart | BackwardPart, dtype: torch.dtype) -> Tensor:
    """The part's rows."""
    return (prior_rows if part.is_prior else rows)[part.rows].to(dtype).contiguous()


def _expand(narrow_SC: Tensor, weight_HXL: Tensor) -> Tensor:
    """Keys and values of all heads, [S, H * X]."""
    return narrow_SC[:, : weight_HXL.shape[2]] @ weight_HXL.flatten(0, 1).t()


def _rows_at_once(shape: _Shape) -> int:
    rows = EXPANDED_NUMEL // (shape.H * (shape.DN + shape.DV))
    return max(LEAST_ROWS, rows // LEAST_ROWS * LEAST_ROWS)


def _row_tiles(narrow: Tensor, expanded: Tensor, shape: _Shape, rows: int) -> tuple[TensorDescriptor, ...]:
    """Tiles of keys, shared keys and values."""
    return _tiled(expanded, rows, shape.DN), _tiled(narrow, rows, shape.DR), _tiled(expanded, rows, shape.DV)


def _tiled(x: Tensor, rows: int, columns: int) -> TensorDescriptor:
    return TensorDescriptor(x, list(x.shape), [x.shape[1], 1], [rows, columns])


def _product(a: Tensor, b: Tensor) -> Tensor:
    """In fp32."""
    return torch.mm(a, b) if a.dtype is torch.float32 else torch.mm(a, b, out_dtype=torch.float32)
