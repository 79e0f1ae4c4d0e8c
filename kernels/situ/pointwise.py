"""Value and derivatives of the gated activations on tensors of at least fp32.

Shared by the public operator and by the experts, which apply them inside their own backward.
"""

import torch
from torch import Tensor

from segue.kernels.common.sigmoid import sigmoid, silu

Caps = tuple[float, float]
"""(beta, linear_beta) of SiTU-GLU."""


def gated_forward(gate: Tensor, up: Tensor, caps: Caps | None) -> Tensor:
    """SiTU-GLU of `gate` and `up` (same shape and dtype), or SwiGLU when `caps` is None."""
    if caps is None:
        return silu(gate).mul_(up)
    beta, linear_beta = caps
    out = sigmoid(gate)
    out *= torch.mul(gate, 1.0 / beta).tanh_()
    out *= torch.mul(up, 1.0 / linear_beta).tanh_()
    return out.mul_(beta * linear_beta)


def gated_backward(grad: Tensor, gate: Tensor, up: Tensor, caps: Caps | None) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of `gate` and `up`, and the value, which comes out of the recomputation."""
    gate_sigmoid = sigmoid(gate)
    if caps is None:
        gate_silu = gate * gate_sigmoid
        # d silu / dg = sigmoid + silu (1 - sigmoid)
        slope = torch.addcmul(gate_silu, gate_silu, gate_sigmoid, value=-1.0).add_(gate_sigmoid)
        return slope.mul_(grad * up), gate_silu * grad, gate_silu.mul_(up)
    beta, linear_beta = caps
    gate_tanh = torch.mul(gate, 1.0 / beta).tanh_()
    up_tanh = torch.mul(up, 1.0 / linear_beta).tanh_()
    capped_gate = (gate_sigmoid * gate_tanh).mul_(beta)
    # d/du = capped_gate (1 - up_tanh^2)
    grad_times_gate = grad * capped_gate
    grad_up = torch.addcmul(grad_times_gate, grad_times_gate * up_tanh, up_tanh, value=-1.0)
    # d/dg = capped_up [ sigmoid (1 - gate_tanh^2) + capped_gate (1 - sigmoid) ]
    #      = capped_up [ sigmoid + capped_gate (1 - sigmoid - gate_tanh / beta) ]
    slope = gate_tanh.mul_(1.0 / beta).add_(gate_sigmoid)
    slope = gate_sigmoid.addcmul_(capped_gate, slope, value=-1.0).add_(capped_gate)
    capped_up = up_tanh.mul_(linear_beta)
    return slope.mul_(capped_up).mul_(grad), grad_up, capped_gate.mul_(capped_up)
