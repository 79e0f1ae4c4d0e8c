"""Reference Kimi Delta Attention: the recurrence, one token at a time, in the dtype given.

T tokens, N sequences, H heads, K key width, V value width.
"""

import itertools

import torch
from torch import Tensor


def naive_kda(
    q_THK: Tensor,
    k_THK: Tensor,
    v_THV: Tensor,
    gate_logits_THK: Tensor,
    beta_logits_TH: Tensor,
    A_log_H: Tensor,
    dt_bias: Tensor,
    state_NHVK: Tensor,
    offsets_N: Tensor,
    *,
    lower_bound: float | None,
) -> tuple[Tensor, Tensor]:
    """Per token: decay, erase with the decayed state, write, read.

    Shapes:
        q_THK, k_THK, gate_logits_THK [T, H, K]; v_THV [T, H, V]; beta_logits_TH [T, H]; A_log_H [H]; dt_bias [H*K];
        state_NHVK [N, H, V, K]; offsets_N [N+1]. Returns o [T, H, V] and the new state.
    Source:
        Kimi K3 report, section 2.1.1; `lower_bound` None takes the decay of Kimi Linear.
    """
    _, H, K = q_THK.shape
    q_THK = q_THK / torch.sqrt((q_THK * q_THK).sum(-1, keepdim=True) + 1e-6) * K**-0.5
    k_THK = k_THK / torch.sqrt((k_THK * k_THK).sum(-1, keepdim=True) + 1e-6)
    beta_TH = torch.sigmoid(beta_logits_TH)
    z_THK = gate_logits_THK + dt_bias.view(H, K)
    rate_H1 = torch.exp(A_log_H)[:, None]
    if lower_bound is None:
        decay_THK = torch.exp(-rate_H1 * torch.nn.functional.softplus(z_THK))
    else:
        decay_THK = torch.exp(lower_bound * torch.sigmoid(rate_H1 * z_THK))
    bounds = offsets_N.tolist()
    outputs, states = [v_THV[:0]], [state_NHVK[:0]]
    for n, (start, end) in enumerate(itertools.pairwise(bounds)):
        S_HVK = state_NHVK[n]
        for t in range(start, end):
            S_HVK = S_HVK * decay_THK[t][:, None]
            error_HV = v_THV[t] - (S_HVK * k_THK[t][:, None]).sum(-1)
            S_HVK = S_HVK + (beta_TH[t][:, None] * error_HV)[:, :, None] * k_THK[t][:, None]
            outputs.append((S_HVK * q_THK[t][:, None]).sum(-1)[None].to(v_THV.dtype))
        states.append(S_HVK[None])
    return torch.cat(outputs), torch.cat(states)
