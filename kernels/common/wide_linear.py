"""A linear map whose products are summed, and stay, in at least fp32, whatever its operands are."""

from typing import Any

import torch
from torch import Tensor

from segue.kernels.common.product import linear


def wide_linear(x: Tensor, weight: Tensor) -> Tensor:
    """`x @ weight.T`, [T, I] and [O, I] to [T, O] in at least fp32; carries gradient.

    Of bf16 on a GPU the products, which are exact, are summed in fp32 without wide copies; else operands are widened.
    """
    if x.is_cuda and x.dtype is weight.dtype is torch.bfloat16:
        return _WideLinear.apply(x, weight) if torch.is_grad_enabled() else _product(x, weight)
    wide = torch.promote_types(x.dtype, torch.float32)
    return linear(x.to(wide), weight.to(wide))


def _product(x: Tensor, weight: Tensor) -> Tensor:
    return torch.mm(x, weight.t(), out_dtype=torch.float32)


class _WideLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return (grads[0] @ weight.float()).to(x.dtype), (grads[0].t() @ x.float()).to(weight.dtype)
