"""Value and derivatives of the gated activations on tensors of at least fp32.

Shared by the public operator and by the experts, which apply them inside their own backward.
"""

import torch
from torch import Tensor


def situ_forward(gate: Tensor, up: Tensor, beta: float, linear_beta: float) -> Tensor:
    """SiTU-GLU of `gate` and `up` (same shape and dtype)."""
    out = torch.sigmoid(gate)
    out *= torch.mul(gate, 1.0 / beta).tanh_()
    out *= torch.mul(up, 1.0 / linear_beta).tanh_()
    out *= beta * linear_beta
    return out


def situ_backward(
    grad: Tensor, gate: Tensor, up: Tensor, beta: float, linear_beta: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of `gate` and `up`, and the value again, which the recomputation yields for nothing."""
    sigmoid = torch.sigmoid(gate)
    gate_tanh = torch.mul(gate, 1.0 / beta).tanh_()
    up_tanh = torch.mul(up, 1.0 / linear_beta).tanh_()
    capped_gate = (sigmoid * gate_tanh).mul_(beta)
    capped_up = linear_beta * up_tanh
    value = capped_gate * capped_up
    # d/du = capped_gate (1 - tanh^2(u / linear_beta))
    grad_up = up_tanh.square_().neg_().add_(1.0).mul_(capped_gate).mul_(grad)
    # d/dg = capped_up [ (1 - tanh^2(g/beta)) sigmoid + capped_gate (1 - sigmoid) ]
    slope = gate_tanh.square_().neg_().add_(1.0).mul_(sigmoid)
    slope += capped_gate.mul_(sigmoid.neg_().add_(1.0))
    grad_gate = slope.mul_(capped_up).mul_(grad)
    return grad_gate, grad_up, value


def swiglu_forward(gate: Tensor, up: Tensor) -> Tensor:
    """SwiGLU of `gate` and `up` (same shape and dtype)."""
    return torch.nn.functional.silu(gate).mul_(up)


def swiglu_backward(grad: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of `gate` and `up`, and the value again."""
    sigmoid = torch.sigmoid(gate)
    silu = gate * sigmoid
    value = silu * up
    # d silu / dg = sigmoid + silu (1 - sigmoid)
    slope = torch.addcmul(sigmoid, silu, 1.0 - sigmoid)
    return slope.mul_(up).mul_(grad), silu.mul_(grad), value
