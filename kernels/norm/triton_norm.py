"""RMSNorm on a GPU in one launch, a program a row. D width."""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def rms_norm_kernel(x, weight, y, rates, stride_x, eps, D: tl.constexpr, BD: tl.constexpr):
    """One row; grid (rows)."""
    row = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, BD)
    b_x = tl.load(x + row * stride_x + d, mask=d < D, other=0.0).to(tl.float32)
    rate = tl.rsqrt(tl.sum(b_x * b_x, 0) / D + eps)
    # rounded before the weight multiplies, as `rms_norm` says
    b_y = (b_x * rate).to(y.dtype.element_ty).to(tl.float32)
    b_y *= tl.load(weight + d, mask=d < D, other=0.0).to(tl.float32)
    tl.store(y + row * D + d, b_y.to(y.dtype.element_ty), mask=d < D)
    tl.store(rates + row, rate)


def triton_rms_norm(x: Tensor, weight_D: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """As `segue.kernels.norm.op.rms_norm`, and the reciprocal RMS [..., 1] in fp32; of one dtype, on one GPU."""
    D = x.shape[-1]
    rows = x.reshape(-1, D)
    rows = rows if rows.stride(1) == 1 else rows.contiguous()
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rates = torch.empty(*x.shape[:-1], 1, dtype=torch.float32, device=x.device)
    BD = triton.next_power_of_2(D)
    if len(rows):
        with torch.cuda.device_of(x):
            rms_norm_kernel[(len(rows),)](
                rows, weight_D.contiguous(), y, rates, rows.stride(0), eps, D=D, BD=BD, num_warps=4 if BD <= 2048 else 8
            )
    return y, rates
