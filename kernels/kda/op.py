"""Kimi Delta Attention over packed sequences with carried states: the public operator.

T tokens, N sequences, H heads, K key width, V value width.
"""

import torch
from torch import Tensor

from segue.kernels.kda.bounded import BoundedKDA
from segue.kernels.kda.layout import chunk_layout
from segue.kernels.kda.softplus import softplus_kda
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

    On a GPU the lower-bounded form runs in Triton kernels, in fp32 and narrower types; fp64 and the unbounded form take
    the tiles of `bounded` and `softplus` on any device.

    L2 norm of queries and keys, the query scale K^-1/2, the decay and sigmoid(beta) are part of the operator.

    Shapes:
        q_THK, k_THK, gate_logits_THK [T, H, K]; v_THV [T, H, V]; beta_logits_TH [T, H]; A_log_H [H]; dt_bias [H*K];
        state_NHVK [N, H, V, K]; offsets_N [N+1]; returns o [T, H, V] and the new state [N, H, V, K].
    Args:
        q_THK, k_THK, v_THV, gate_logits_THK, beta_logits_TH: any floating dtype; computed in at least fp32.
        state_NHVK: state before each sequence's first token here; transposed S of the equations; at least fp32.
        offsets_N: int64, ascending from 0 to T; empty sequences are allowed and keep their state. It may lie on the
            CPU whatever the device of the rest, and then no GPU is waited for.
        lower_bound: the log decay is lower_bound * sigmoid(exp(A_log) * (logit + dt_bias)), in [-5, 0);
            None takes -exp(A_log) * softplus(logit + dt_bias), as Kimi Linear does.
    Returns:
        Outputs in the dtype of `v_THV`, and the states after each sequence's last token.
    Raises:
        ValueError: sizes disagree or lower_bound is out of range; on a GPU, a head width without a kernel.
    """
    T, H, _ = q_THK.shape
    _check_sizes(q_THK, k_THK, v_THV, gate_logits_THK, beta_logits_TH, A_log_H, dt_bias, state_NHVK)
    _check_lower_bound(lower_bound)
    dtype = _computing_dtype(v_THV, state_NHVK)
    parameters = [x.to(dtype) for x in (A_log_H, dt_bias, state_NHVK)]
    if v_THV.is_cuda and lower_bound is not None and dtype is torch.float32 and T > 0:
        # triton is not installed where there is no GPU that it serves
        from segue.kernels.kda.triton_op import triton_kda

        A_log_H, dt_bias, state_NHVK = parameters
        return triton_kda(
            q_THK, k_THK, v_THV, gate_logits_THK, beta_logits_TH, A_log_H, dt_bias, state_NHVK, offsets_N,
            lower_bound=lower_bound,
        )  # fmt: skip
    bounds = tuple(offsets_N.tolist())
    if bounds[0] != 0 or bounds[-1] != T or len(bounds) != state_NHVK.shape[0] + 1:
        raise ValueError(f"offsets must rise from 0 to {T} over {state_NHVK.shape[0]} sequences, got {bounds}")
    if T == 0:
        return v_THV, parameters[-1]
    tokens = [x.contiguous() for x in (q_THK, k_THK, v_THV, gate_logits_THK, beta_logits_TH)]
    layout = chunk_layout(bounds, H, v_THV.device)
    if lower_bound is None:
        o_THV, new_state = softplus_kda(*(x.to(dtype) for x in tokens), *parameters, layout=layout)
        return o_THV.to(v_THV.dtype), new_state
    return BoundedKDA.apply(*tokens, *parameters, layout, lower_bound)


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
    _check_lower_bound(lower_bound)
    dtype = _computing_dtype(v_NHV, state_NHVK)
    wide = [
        x if x.dtype is dtype else x.to(dtype)
        for x in (q_NHK, k_NHK, v_NHV, gate_logits_NHK, beta_logits_NH, A_log_H, dt_bias, state_NHVK)
    ]
    o_NHV, new_state = recurrent_step(*wide, lower_bound=lower_bound)
    return o_NHV.to(v_NHV.dtype), new_state


def _computing_dtype(v: Tensor, state: Tensor) -> torch.dtype:
    return torch.promote_types(torch.promote_types(v.dtype, state.dtype), torch.float32)


def _check_lower_bound(lower_bound: float | None) -> None:
    if lower_bound is not None and not -5 <= lower_bound < 0:
        raise ValueError(f"lower_bound must be in [-5, 0), got {lower_bound}")


def _check_sizes(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate_logits: Tensor,
    beta_logits: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    state: Tensor,
) -> None:
    T, H, K = q.shape
    V = v.shape[-1]
    expected = {
        "k": (k, (T, H, K)),
        "v": (v, (T, H, V)),
        "gate_logits": (gate_logits, (T, H, K)),
        "beta_logits": (beta_logits, (T, H)),
        "A_log": (A_log, (H,)),
        "dt_bias": (dt_bias, (H * K,)),
        "state": (state, (state.shape[0], H, V, K)),
    }
    for name, (tensor, shape) in expected.items():
        if tensor.shape != shape:
            raise ValueError(f"{name} must be {list(shape)}, got {list(tensor.shape)}")
