"""Kimi Delta Attention over packed sequences with carried states: the public operator.

T tokens, N sequences, H heads, K key width, V value width.
"""

import torch
from torch import Tensor

from segue.kernels.kda.chunk import chunk_kda
from segue.kernels.kda.layout import chunk_layout
from segue.kernels.kda.step import recurrent_step


def kda(
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
    """Chunk form, for training and prefill.

    L2 norm of queries and keys, the query scale K^-1/2, the decay and sigmoid(beta) are part of the operator.

    Shapes:
        q_THK, k_THK, gate_logits_THK [T, H, K]; v_THV [T, H, V]; beta_logits_TH [T, H]; A_log_H [H]; dt_bias [H*K];
        state_NHVK [N, H, V, K]; offsets_N [N+1]; returns o [T, H, V] and the new state [N, H, V, K].
    Args:
        q_THK, k_THK, v_THV, gate_logits_THK, beta_logits_TH: any floating dtype; computed in at least fp32.
        state_NHVK: state before each sequence's first token here; transposed S of the equations; at least fp32.
        offsets_N: int64, ascending from 0 to T; empty sequences are allowed and keep their state.
        lower_bound: the log decay is lower_bound * sigmoid(exp(A_log) * (logit + dt_bias)), in [-5, 0);
            None takes -exp(A_log) * softplus(logit + dt_bias), as Kimi Linear does.
    Returns:
        Outputs in the dtype of `v_THV`, and the states after each sequence's last token.
    Raises:
        ValueError: sizes disagree or lower_bound is out of range.
    """
    dtype = torch.promote_types(torch.promote_types(v_THV.dtype, state_NHVK.dtype), torch.float32)
    if lower_bound is not None and not -5 <= lower_bound < 0:
        raise ValueError(f"lower_bound must be in [-5, 0), got {lower_bound}")
    if v_THV.shape[0] == 0:
        return v_THV, state_NHVK.to(dtype)
    layout = chunk_layout(tuple(offsets_N.tolist()), v_THV.shape[1], v_THV.device)
    wide = [x.to(dtype) for x in (q_THK, k_THK, v_THV, gate_logits_THK, beta_logits_TH, A_log_H, dt_bias, state_NHVK)]
    o_THV, new_state = chunk_kda(*wide, layout, lower_bound=lower_bound)
    return o_THV.to(v_THV.dtype), new_state


def kda_step(
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
    """Recurrent form, for decoding: one token of every sequence; otherwise as `kda`."""
    dtype = torch.promote_types(torch.promote_types(v_NHV.dtype, state_NHVK.dtype), torch.float32)
    wide = [x.to(dtype) for x in (q_NHK, k_NHK, v_NHV, gate_logits_NHK, beta_logits_NH, A_log_H, dt_bias, state_NHVK)]
    o_NHV, new_state = recurrent_step(*wide, lower_bound=lower_bound)
    return o_NHV.to(v_NHV.dtype), new_state
