"""The log decay of KDA in its two forms, and the constant of its L2 norm."""

import torch
from torch import Tensor

from segue.kernels.common.sigmoid import sigmoid

L2_EPS = 1e-6
"""Added to the squared norm of queries and keys."""


def log_decay(gate_logits_THK: Tensor, A_log_H: Tensor, dt_bias: Tensor, lower_bound: float | None) -> Tensor:
    """Log decay per token, head and key channel; negative.

    Shapes:
        gate_logits_THK [T, H, K]; A_log_H [H]; dt_bias [H*K]; returns [T, H, K].
    Args:
        lower_bound: the decay is lower_bound * sigmoid(exp(A_log) * z); None takes -exp(A_log) * softplus(z).
    """
    rate_H1 = A_log_H.exp()[:, None]
    z_THK = gate_logits_THK + dt_bias.view(gate_logits_THK.shape[1:])
    if lower_bound is None:
        return -rate_H1 * torch.nn.functional.softplus(z_THK)
    return lower_bound * sigmoid(rate_H1 * z_THK)
