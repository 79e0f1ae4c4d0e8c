"""Gated activations on a GPU in one launch, and the function that other kernels call on their products.

R rows, F width.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from segue.kernels.situ.pointwise import Caps

BLOCK = 1024


@triton.jit
def tanh(x):
    """To the last bits also where x is small, where 1 - 2 / (exp(2 x) + 1) would lose them."""
    x2 = x * x
    near = x * (1.0 + x2 * (-1.0 / 3.0 + x2 * (2.0 / 15.0 - x2 * (17.0 / 315.0))))
    return tl.where(tl.abs(x) < 0.1, near, 1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0))


@triton.jit
def gated(gate, up, beta, linear_beta, HAS_CAPS: tl.constexpr):
    """SiTU-GLU, or SwiGLU, of fp32 blocks."""
    if HAS_CAPS:
        return tl.sigmoid(gate) * (beta * tanh(gate / beta)) * (linear_beta * tanh(up / linear_beta))
    return gate * tl.sigmoid(gate) * up


@triton.jit
def gated_kernel(
    gate, up, weights, out, stride_gate, stride_up, beta, linear_beta,
    F: tl.constexpr, BF: tl.constexpr, HAS_CAPS: tl.constexpr, HAS_WEIGHTS: tl.constexpr,
):  # fmt: skip
    """BF numbers of one row; grid (R, F / BF)."""
    row = tl.program_id(0).to(tl.int64)
    f = tl.program_id(1) * BF + tl.arange(0, BF)
    b_gate = tl.load(gate + row * stride_gate + f, mask=f < F, other=0.0).to(tl.float32)
    b_up = tl.load(up + row * stride_up + f, mask=f < F, other=0.0).to(tl.float32)
    b_out = gated(b_gate, b_up, beta, linear_beta, HAS_CAPS)
    if HAS_WEIGHTS:
        b_out *= tl.load(weights + row)
    tl.store(out + row * F + f, b_out.to(out.dtype.element_ty), mask=f < F)


def triton_gated(gate: Tensor, up: Tensor, caps: Caps | None, weights_R: Tensor | None = None) -> Tensor:
    """Activation of `gate` and `up` [..., F] in fp32, times a weight a row (fp32), in the dtype of `gate`; on a GPU."""
    F = gate.shape[-1]
    gate_RF, up_RF = (x if x.stride(1) == 1 else x.contiguous() for x in (gate.reshape(-1, F), up.reshape(-1, F)))
    out = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    beta, linear_beta = caps or (1.0, 1.0)
    BF = min(triton.next_power_of_2(F), BLOCK)
    if out.numel():
        with torch.cuda.device_of(gate):
            gated_kernel[(len(gate_RF), triton.cdiv(F, BF))](
                gate_RF, up_RF, gate_RF if weights_R is None else weights_R, out, gate_RF.stride(0), up_RF.stride(0),
                beta, linear_beta, F=F, BF=BF, HAS_CAPS=caps is not None, HAS_WEIGHTS=weights_R is not None,
                num_warps=4,
            )  # fmt: skip
    return out
