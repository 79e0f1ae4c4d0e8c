"""One token of every sequence: the recurrent form used in decoding.

N sequences, H heads, K key width, V value width.
"""

import torch
from torch import Tensor

from segue.kernels.kda.gate import L2_EPS, log_decay


def recurrent_step(
    q_NHK: Tensor,
    k_NHK: Tensor,
    v_NHV: Tensor,
    gate_logits_NHK: Tensor,
    beta_logits_NH: Tensor,
    A_log_H: Tensor,
    dt_bias: Tensor,
    state_NHVK: Tensor,
    *,
    lower_bound: float | None,
) -> tuple[Tensor, Tensor]:
    """Decay, erase, write, read; shapes as `kda_step`, all tensors in the computing dtype."""
    N, H, V, K = state_NHVK.shape
    q_NHK = q_NHK * ((q_NHK * q_NHK).sum(-1, keepdim=True) + L2_EPS).rsqrt() * K**-0.5
    k_NHK = k_NHK * ((k_NHK * k_NHK).sum(-1, keepdim=True) + L2_EPS).rsqrt()
    decay_NHK = log_decay(gate_logits_NHK, A_log_H, dt_bias, lower_bound).exp()
    decayed = (state_NHVK * decay_NHK.unsqueeze(-2)).view(N * H, V, K)
    k_row = k_NHK.reshape(N * H, 1, K)
    error = torch.baddbmm(v_NHV.reshape(N * H, V, 1), decayed, k_row.transpose(1, 2), alpha=-1)
    written = torch.baddbmm(decayed, error * torch.sigmoid(beta_logits_NH).reshape(N * H, 1, 1), k_row)
    o = torch.bmm(written, q_NHK.reshape(N * H, K, 1))
    return o.view(N, H, V), written.view(N, H, V, K)
