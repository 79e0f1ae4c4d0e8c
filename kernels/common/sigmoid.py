"""The logistic function, with bits that do not depend on an element's neighbours.

On CPU torch computes its own in vectors, and the rest of a tensor, or of a thread's share, by scalars that round
otherwise: an element's bits would depend on how many there are. `exp` has one way to compute, and the other steps round
exactly.
"""

from typing import Any

import torch
from torch import Tensor

from segue.kernels.common.constant import constant


def sigmoid(x: Tensor) -> Tensor:
    """`1 / (1 + exp(-x))`, elementwise; x is at least fp32 and carries gradient."""
    return _Sigmoid.apply(x) if torch.is_grad_enabled() else _sigmoid(x)


def silu(x: Tensor) -> Tensor:
    """`x / (1 + exp(-x))`, elementwise; x is at least fp32 and carries gradient."""
    return _Silu.apply(x) if torch.is_grad_enabled() else _silu(x)


def sigmoid_(x: Tensor) -> Tensor:
    """`sigmoid` in place; no gradient."""
    return x.sigmoid_() if x.is_cuda else _divisor(x, out=x).reciprocal_()


def silu_into(x: Tensor, out: Tensor) -> None:
    """`silu`, written to `out`, another tensor of the shape and dtype of `x`; no gradient."""
    if x.is_cuda:
        torch.ops.aten.silu.out(x, out=out)
    else:
        torch.div(x, _divisor(x, out=out), out=out)


class _Sigmoid(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = _sigmoid(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return torch.ops.aten.sigmoid_backward(grads[0], y)


class _Silu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return _silu(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return torch.ops.aten.silu_backward(grads[0], x)


def _sigmoid(x: Tensor) -> Tensor:
    return torch.sigmoid(x) if x.is_cuda else _divisor(x).reciprocal_()


def _silu(x: Tensor) -> Tensor:
    return torch.nn.functional.silu(x) if x.is_cuda else x / _divisor(x)


def _divisor(x: Tensor, out: Tensor | None = None) -> Tensor:
    return torch.neg(x, out=out).exp_().add_(constant(1.0, x.dtype, x.device))
