"""Gated activations of every MLP: SiTU-GLU (Kimi-K3) and SwiGLU (Kimi-Linear)."""

from typing import Any

import torch
from torch import Tensor

from segue.kernels.situ.pointwise import situ_backward, situ_forward, swiglu_backward, swiglu_forward


class _GatedActivation(torch.autograd.Function):
    """Keeps the two inputs and recomputes the rest. `caps` is (beta, linear_beta), or None for SwiGLU."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, caps: tuple[float, float] | None) -> Tensor:
        ctx.save_for_backward(gate, up)
        ctx.caps = caps
        dtype = torch.promote_types(gate.dtype, torch.float32)
        gate_f, up_f = gate.to(dtype), up.to(dtype)
        out = swiglu_forward(gate_f, up_f) if caps is None else situ_forward(gate_f, up_f, *caps)
        return out.to(gate.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        gate, up = ctx.saved_tensors
        dtype = torch.promote_types(gate.dtype, torch.float32)
        grad_f, gate_f, up_f = grads[0].to(dtype), gate.to(dtype), up.to(dtype)
        if ctx.caps is None:
            grad_gate, grad_up, _ = swiglu_backward(grad_f, gate_f, up_f)
        else:
            grad_gate, grad_up, _ = situ_backward(grad_f, gate_f, up_f, *ctx.caps)
        return grad_gate.to(gate.dtype), grad_up.to(up.dtype), None


def situ_glu(gate: Tensor, up: Tensor, beta: float, linear_beta: float) -> Tensor:
    """SiTU-GLU: a SwiGLU whose two factors are capped smoothly, `|out| <= beta * linear_beta`.

    `out = beta tanh(gate/beta) sigmoid(gate) * linear_beta tanh(up/linear_beta)`

    Args:
        gate: any shape and floating dtype; carries gradient.
        up: like `gate`.
        beta: cap of the gate factor; > 0.
        linear_beta: cap of the linear factor; > 0.
    Returns:
        Shape and dtype of `gate`; computed in at least fp32.
    Raises:
        ValueError: the shapes differ.
    Source:
        Kimi K3 report, section 2.3.2 and appendix B.
    """
    _check_same_shape(gate, up)
    return _GatedActivation.apply(gate, up, (beta, linear_beta))


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """SwiGLU: `silu(gate) * up`, computed in at least fp32 and returned in the dtype of `gate`.

    Raises:
        ValueError: the shapes differ.
    """
    _check_same_shape(gate, up)
    return _GatedActivation.apply(gate, up, None)


def _check_same_shape(gate: Tensor, up: Tensor) -> None:
    if gate.shape != up.shape:
        raise ValueError(f"gate and up must have one shape, got {tuple(gate.shape)} and {tuple(up.shape)}")
