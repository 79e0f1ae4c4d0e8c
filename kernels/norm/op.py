"""RMSNorm, and the gated head-wise RMSNorm at the end of a KDA layer: the public operators.

R rows (all leading dimensions), D width; T tokens, H heads, V value width.
"""

from typing import Any

import torch
from torch import Tensor

from segue.kernels.common.sigmoid import sigmoid
from segue.kernels.norm.rate import inverse_rms


def rms_norm(x: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """y = weight * cast(x / sqrt(mean(x^2) + eps)) over the last dimension.

    Statistic and scaling are in at least fp32 and cast back to the dtype of `x` before the weight multiplies.

    Shapes:
        x [..., D]; weight_D [D]; returns [..., D].
    Args:
        eps: added to the mean square; > 0.
    Raises:
        ValueError: the weight's width is not that of `x`.
    Source:
        Root Mean Square Layer Normalization, arXiv 1910.07467; order of casts as in Kimi K3.
    """
    if weight_D.shape != x.shape[-1:]:
        raise ValueError(f"weight must be {list(x.shape[-1:])}, got {list(weight_D.shape)}")
    if torch.is_grad_enabled():
        return _RmsNorm.apply(x, weight_D, eps)
    return _rms_norm(x, weight_D, eps)[0]


def gated_head_norm(o_THV: Tensor, gate_logits: Tensor, weight_V: Tensor, eps: float) -> Tensor:
    """y = cast(sigmoid(gate_logits) * weight * o / sqrt(mean(o^2) + eps)), the mean over each head's channels.

    Shapes:
        o_THV [T, H, V]; gate_logits [T, H*V]; weight_V [V], shared by the heads; returns [T, H*V].
    Args:
        o_THV, gate_logits, weight_V: any floating dtype; computed in at least fp32.
        eps: added to the mean square; > 0.
    Returns:
        In the dtype of `gate_logits`.
    Raises:
        ValueError: sizes disagree.
    """
    T, H, V = o_THV.shape
    if gate_logits.shape != (T, H * V) or weight_V.shape != (V,):
        raise ValueError(
            f"gate_logits and weight must be {[T, H * V]} and {[V]}, "
            f"got {list(gate_logits.shape)} and {list(weight_V.shape)}"
        )
    if torch.is_grad_enabled():
        return _GatedHeadNorm.apply(o_THV, gate_logits, weight_V, eps)
    return _gated_head_norm(o_THV, gate_logits, weight_V, eps)[0]


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_D: Tensor, eps: float) -> Tensor:
        y, rate = _rms_norm(x, weight_D, eps)
        ctx.save_for_backward(x, weight_D, rate)
        return y

    @staticmethod
    def backward(ctx: Any, d_y: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight_D, rate = ctx.saved_tensors
        d_x, d_weight_D = _backward(d_y.to(rate.dtype), x * rate, weight_D.to(rate.dtype), rate)
        return d_x.to(x.dtype), d_weight_D.to(weight_D.dtype), None


class _GatedHeadNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, o_THV: Tensor, gate_logits: Tensor, weight_V: Tensor, eps: float) -> Tensor:
        y, rate = _gated_head_norm(o_THV, gate_logits, weight_V, eps)
        ctx.save_for_backward(o_THV, gate_logits, weight_V, rate)
        return y

    @staticmethod
    def backward(ctx: Any, d_y: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        o_THV, gate_logits, weight_V, rate = ctx.saved_tensors
        gate_THV = sigmoid(gate_logits.to(rate.dtype)).view(o_THV.shape)
        normed_THV, weight_wide_V = o_THV * rate, weight_V.to(rate.dtype)
        d_normed_THV = d_y.to(rate.dtype).view(o_THV.shape) * gate_THV
        # d sigmoid = gate (1 - gate), of which d_normed already holds one gate
        d_gate_THV = (d_normed_THV * normed_THV).mul_(weight_wide_V)
        d_gate_THV.addcmul_(d_gate_THV, gate_THV, value=-1)
        d_o_THV, d_weight_V = _backward(d_normed_THV, normed_THV, weight_wide_V, rate)
        d_gate = d_gate_THV.flatten(1).to(gate_logits.dtype)
        return d_o_THV.to(o_THV.dtype), d_gate, d_weight_V.to(weight_V.dtype), None


# the arithmetic stands apart from autograd, whose bookkeeping costs more than itself on a decoding step's few rows
def _rms_norm(x: Tensor, weight_D: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    if x.is_cuda and x.dtype is weight_D.dtype is torch.bfloat16:
        # triton is not installed where there is no GPU that it serves
        from segue.kernels.norm.triton_norm import triton_rms_norm

        return triton_rms_norm(x, weight_D, eps)
    rate = inverse_rms(x, eps)
    return (x * rate).to(x.dtype) * weight_D, rate


def _gated_head_norm(o_THV: Tensor, gate_logits: Tensor, weight_V: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    rate = inverse_rms(o_THV, eps)
    gate_THV = sigmoid(gate_logits.to(rate.dtype)).view(o_THV.shape)
    return (o_THV * rate).mul_(weight_V).mul_(gate_THV).flatten(1).to(gate_logits.dtype), rate


def _backward(d_y: Tensor, normed: Tensor, weight_D: Tensor, rate: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of x and of the weight for y = weight * normed, normed = x * rate; what lies along x drops out."""
    product = d_y * normed
    along = (product @ weight_D).div_(-normed.shape[-1])[..., None]
    d_x = (d_y * weight_D).addcmul_(normed, along).mul_(rate)
    return d_x, product.flatten(0, -2).sum(0)
