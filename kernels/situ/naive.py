"""Reference of the gated activations: plain formulas that autograd differentiates."""

import torch
from torch import Tensor


def naive_situ_glu(gate: Tensor, up: Tensor, beta: float, linear_beta: float) -> Tensor:
    """SiTU-GLU as published: `beta tanh(g/beta) sigmoid(g) * linear_beta tanh(u/linear_beta)`, at least fp32 inside."""
    dtype = torch.promote_types(gate.dtype, torch.float32)
    g, u = gate.to(dtype), up.to(dtype)
    activated = beta * torch.tanh(g / beta) * torch.sigmoid(g) * (linear_beta * torch.tanh(u / linear_beta))
    return activated.to(gate.dtype)


def naive_swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """SwiGLU: `g sigmoid(g) * u`, at least fp32 inside."""
    dtype = torch.promote_types(gate.dtype, torch.float32)
    g, u = gate.to(dtype), up.to(dtype)
    return (g * torch.sigmoid(g) * u).to(gate.dtype)
