"""One token of every sequence: the recurrent form used in decoding.

N sequences, H heads, K key width, V value width.
"""

import torch
from torch import Tensor

from segue.kernels.common.sigmoid import sigmoid
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
    """Decay, erase, write, read; shapes as `kda_step`, all tensors in the computing dtype.

    The state is read once, for the erased and the read values together: S' k and S' q with S' = S diag(decay), and
    o = S' q + (k . q) write.
    """
    N, H, V, K = state_NHVK.shape
    kq_NH2K = torch.stack([k_NHK, q_NHK], 2)
    kq_NH2K = kq_NH2K * (kq_NH2K * kq_NH2K).sum(-1, keepdim=True).add_(L2_EPS).rsqrt_()
    k_NH1K, q_NH1K = kq_NH2K.split(1, 2)
    decay_NH1K = log_decay(gate_logits_NHK, A_log_H, dt_bias, lower_bound).exp().unsqueeze(2)
    seen = torch.bmm((kq_NH2K * decay_NH1K).view(N * H, 2, K), state_NHVK.reshape(N * H, V, K).mT)
    erased_NHV, read_NHV = seen.view(N, H, 2, V).unbind(2)
    write_NHV = (v_NHV - erased_NHV) * sigmoid(beta_logits_NH).unsqueeze(-1)
    o_NHV = torch.addcmul(read_NHV, (k_NH1K * q_NH1K).sum(-1), write_NHV) * K**-0.5
    return o_NHV, (state_NHVK * decay_NH1K).addcmul_(write_NHV.unsqueeze(-1), k_NH1K)
