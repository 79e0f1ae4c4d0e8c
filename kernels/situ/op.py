"""Gated activations of every MLP: SiTU-GLU (Kimi-K3) and SwiGLU (Kimi-Linear)."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from segue.kernels.situ.pointwise import Caps, gated_backward, gated_forward

BLOCK_NUMEL = 1 << 18
"""Elements computed together: bounds the temporaries; blocks that fit a cache lose more to calls."""
BLOCK_NUMEL_GPU = 1 << 26
"""On a GPU, where calls cost more and there is more memory."""


class _GatedActivation(torch.autograd.Function):
    """Keeps the two inputs and recomputes the rest, block by block of rows."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, caps: Caps | None) -> Tensor:
        ctx.save_for_backward(gate, up)
        ctx.caps = caps
        return _gated(gate, up, caps)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        gate, up = ctx.saved_tensors
        dtype = torch.promote_types(gate.dtype, torch.float32)
        grad_gate = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
        grad_up = torch.empty(up.shape, dtype=up.dtype, device=up.device)
        for grad_b, gate_b, up_b, out_gate_b, out_up_b in _blocks(grads[0], gate, up, grad_gate, grad_up):
            result_gate, result_up, _ = gated_backward(grad_b.to(dtype), gate_b.to(dtype), up_b.to(dtype), ctx.caps)
            out_gate_b.copy_(result_gate)
            out_up_b.copy_(result_up)
        return grad_gate, grad_up, None


# the arithmetic stands apart from autograd, whose bookkeeping costs much on a decoding step's few rows
def _gated(gate: Tensor, up: Tensor, caps: Caps | None) -> Tensor:
    if gate.is_cuda and gate.dtype is torch.bfloat16:
        # triton is not installed where there is no GPU that it serves
        from segue.kernels.situ.triton_gated import triton_gated

        return triton_gated(gate, up, caps)
    dtype = torch.promote_types(gate.dtype, torch.float32)
    if gate.numel() <= BLOCK_NUMEL:
        return gated_forward(gate.to(dtype), up.to(dtype), caps).to(gate.dtype)
    out = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    for gate_b, up_b, out_b in _blocks(gate, up, out):
        out_b.copy_(gated_forward(gate_b.to(dtype), up_b.to(dtype), caps))
    return out


def _activate(gate: Tensor, up: Tensor, caps: Caps | None) -> Tensor:
    if gate.shape != up.shape:
        raise ValueError(f"gate and up must have one shape, got {tuple(gate.shape)} and {tuple(up.shape)}")
    if torch.is_grad_enabled():
        return _GatedActivation.apply(gate, up, caps)
    return _gated(gate, up, caps)


def _blocks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The same rows of each tensor, as views wherever the layout allows it; the freshly allocated ones always are."""
    width = tensors[0].shape[-1]
    flat = [tensor.reshape(-1, width) for tensor in tensors]
    size = max(1, (BLOCK_NUMEL_GPU if tensors[0].is_cuda else BLOCK_NUMEL) // max(1, width))
    for start in range(0, flat[0].shape[0], size):
        yield tuple(tensor[start : start + size] for tensor in flat)


def situ_glu(gate: Tensor, up: Tensor, beta: float, linear_beta: float) -> Tensor:
    """SiTU-GLU: a SwiGLU whose two factors are capped smoothly, `|out| <= beta * linear_beta`.

    `out = beta tanh(gate/beta) sigmoid(gate) * linear_beta tanh(up/linear_beta)`

    Args:
        gate: [..., F], any floating dtype; carries gradient.
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
    return _activate(gate, up, (beta, linear_beta))


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """SwiGLU: `silu(gate) * up`, computed in at least fp32 and returned in the dtype of `gate`.

    Raises:
        ValueError: the shapes differ.
    """
    return _activate(gate, up, None)
