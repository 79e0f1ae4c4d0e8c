"""Muon's definition, written out for one block in double precision."""

from collections.abc import Sequence

import torch
from torch import Tensor


def newton_schulz(matrix: Tensor, num_steps: int) -> Tensor:
    """By the singular values, each of which the polynomial moves by itself."""
    u, s, vt = torch.linalg.svd(matrix, full_matrices=False)
    s = s / (s.square().sum().sqrt() + 1e-7)
    for _ in range(num_steps):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return u @ torch.diag(s) @ vt


def moved_block(
    start: Tensor, gradients: Sequence[Tensor], *, lr: float, decay: float, momentum: float, num_steps: int = 5
) -> Tensor:
    """A block [R, C] after an update with each of the gradients."""
    total = torch.zeros_like(start)
    for gradient in gradients:
        total = momentum * total + gradient
        update = newton_schulz(gradient + momentum * total, num_steps) * 0.2 * max(start.shape) ** 0.5
        start = start - lr * (update + decay * start)
    return start


def moved_matrix(
    start: Tensor,
    gradients: Sequence[Tensor],
    blocks: tuple[int, int, int],
    *,
    lr: float,
    decay: float,
    momentum: float,
) -> Tensor:
    """A parameter after updates of all its blocks."""
    numbers = {"lr": lr, "decay": decay, "momentum": momentum}
    pieces = [
        moved_block(start.reshape(blocks)[n], [g.reshape(blocks)[n] for g in gradients], **numbers)
        for n in range(blocks[0])
    ]
    return torch.stack(pieces).view(start.shape)
