"""KDA chunk form on a GPU: the autograd function, and what it accepts.

T tokens, N sequences, H heads, D head width (keys and values alike).
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from segue.kernels.kda.triton_backward import backward
from segue.kernels.kda.triton_forward import Factors, forward
from segue.kernels.kda.triton_layout import ChunkTable, chunk_table

HEAD_WIDTHS = (32, 64, 128)


def triton_kda(
    q_THD: Tensor,
    k_THD: Tensor,
    v_THD: Tensor,
    gate_logits_THD: Tensor,
    beta_logits_TH: Tensor,
    A_log_H: Tensor,
    dt_bias: Tensor,
    state_NHVK: Tensor,
    offsets_N: Tensor,
    *,
    lower_bound: float,
) -> tuple[Tensor, Tensor]:
    """As `kda` on one GPU, with the parameters and the state in fp32.

    Products take bf16 operands, or fp32 ones where the values are fp32; states and sums are fp32.

    Raises:
        ValueError: tensors lie on several devices, keys and values differ in width, the width is none of
            `HEAD_WIDTHS`, or the offsets do not fit.
    """
    tensors = (q_THD, k_THD, v_THD, gate_logits_THD, beta_logits_TH, A_log_H, dt_bias, state_NHVK)
    device = v_THD.device
    if any(x.device != device for x in tensors):
        raise ValueError(f"all tensors must be on {device}, got {sorted({str(x.device) for x in tensors})}")
    T, _, D = q_THD.shape
    if v_THD.shape[-1] != D or D not in HEAD_WIDTHS:
        raise ValueError(f"on a GPU, widths of keys and values must be equal, one of {HEAD_WIDTHS}, got {D} and "
                         f"{v_THD.shape[-1]}")  # fmt: skip
    table = chunk_table(offsets_N, T, state_NHVK.shape[0], device)
    # decided here, since autograd functions run with gradients off
    save = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    with torch.cuda.device_of(v_THD):
        o_THD, new_state_NHVK = _TritonKDA.apply(
            *(_rows(x) for x in tensors[:5]), *(x.contiguous() for x in tensors[5:]), table, lower_bound, save
        )
    return o_THD, new_state_NHVK


class _TritonKDA(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
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
    ) -> tuple[Tensor, Tensor]:
        inputs = (q_THD, k_THD, v_THD, gate_logits_THD, beta_logits_TH, A_log_H, dt_bias)
        o_THD, new_state_NHVK, factors = forward(*inputs, state_NHVK, table, lower_bound, save)
        if factors is not None:
            ctx.save_for_backward(*inputs, o_THD, *factors)
            ctx.table, ctx.lower_bound = table, lower_bound
        return o_THD, new_state_NHVK

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_o_THD: Tensor, d_new_state_NHVK: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, o_THD, tiles, scores, inverse, decay, rates, entering = ctx.saved_tensors
        factors = Factors(tiles, scores, inverse, decay, rates, entering)
        with torch.cuda.device_of(o_THD):
            gradients = backward(
                inputs, factors, o_THD, _rows(d_o_THD), d_new_state_NHVK.contiguous(), ctx.table, ctx.lower_bound
            )
        return *gradients, None, None, None


def _rows(x: Tensor) -> Tensor:
    """As the kernels read tokens: heads side by side, any stride from token to token."""
    is_dense = x.stride(-1) == 1 and (x.dim() < 3 or x.stride(1) == x.shape[2])
    return x if is_dense and x.stride(0) > 0 else x.contiguous()
