"""Mixture of experts: routing with a selection bias, and the experts themselves.

Letters: T tokens, E experts, k chosen experts, L expert input width, F expert hidden width.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from segue.kernels.common.sigmoid import sigmoid
from segue.kernels.moe.experts import Experts, run_experts
from segue.kernels.moe.route import RouteWeights, weigh


class Routes(NamedTuple):
    """What the router decided for T tokens."""

    scores: Tensor
    """[T, E] sigmoid scores without bias, at least fp32; detached."""
    expert_ids: Tensor
    """[T, k] int64; by falling score + bias, or the replayed ids as given."""
    weights: Tensor
    """[T, k], at least fp32; carries gradient to the logits."""
    cutoff: Tensor
    """[T]; the (k+1)-th largest of score + bias, of the real scores also when ids are replayed; detached."""


def route(
    scores_logits: Tensor, bias: Tensor, *, top_k: int, renormalize: bool, scaling: float, replay_ids: Tensor | None
) -> Routes:
    """Choose the `top_k` experts of the largest sigmoid score + bias and weigh them by their scores alone.

    Args:
        scores_logits: [T, E]; carries gradient, which comes through the weights only.
        bias: [E]; moves the choice, never a weight.
        top_k: experts a token; in [1, E - 1].
        renormalize: divide the weights by their sum.
        scaling: factor of the weights.
        replay_ids: [T, top_k] int64 to use instead of the choice, or None.
    Returns:
        Routes; everything in at least fp32.
    Raises:
        ValueError: shapes that do not fit.
    Source:
        Kimi K3 report, section 2.3.
    """
    num_tokens, num_experts = scores_logits.shape
    if not 0 < top_k < num_experts or bias.shape != (num_experts,):
        raise ValueError(
            f"top_k must be in [1, {num_experts - 1}] and bias [{num_experts}], got {top_k} and {tuple(bias.shape)}"
        )
    if replay_ids is not None and replay_ids.shape != (num_tokens, top_k):
        raise ValueError(f"replay_ids must be [{num_tokens}, {top_k}], got {tuple(replay_ids.shape)}")
    dtype = torch.promote_types(scores_logits.dtype, torch.float32)
    if scores_logits.is_cuda and dtype is torch.float32:
        # triton is not installed where there is no GPU that it serves
        from segue.kernels.moe.triton_route import triton_route

        with torch.no_grad():
            scores_TE, ids_Tk, weights_Tk, cutoff_T = triton_route(
                scores_logits, bias, top_k=top_k, renormalize=renormalize, scaling=scaling, replay_ids=replay_ids
            )
        if torch.is_grad_enabled():
            weights_Tk = RouteWeights.apply(scores_logits, scores_TE, ids_Tk, renormalize, scaling, weights_Tk)
        return Routes(scores_TE, ids_Tk, weights_Tk, cutoff_T)
    with torch.no_grad():
        scores_TE = sigmoid(scores_logits.to(dtype))
        best_Tk1, best_ids_Tk1 = torch.topk(scores_TE + bias.to(dtype), top_k + 1, dim=1)
        ids_Tk = best_ids_Tk1[:, :top_k].contiguous() if replay_ids is None else replay_ids
        cutoff_T = best_Tk1[:, top_k].contiguous()
    if torch.is_grad_enabled():
        weights_Tk = RouteWeights.apply(scores_logits, scores_TE, ids_Tk, renormalize, scaling, None)
    else:
        _, _, weights_Tk = weigh(scores_TE, ids_Tk, renormalize, scaling)
    return Routes(scores_TE, ids_Tk, weights_Tk, cutoff_T)


def experts(
    z: Tensor, expert_ids: Tensor, weights: Tensor, w1: Tensor, w3: Tensor, w2: Tensor,
    *, beta: float | None, linear_beta: float | None,
) -> Tensor:  # fmt: skip
    """Weighted sum over each token's chosen experts: `sum_j weight_j W2_j act(W1_j z, W3_j z)`.

    Args:
        z: [T, L]; carries gradient.
        expert_ids: [T, k] int64 in [0, E).
        weights: [T, k]; carries gradient.
        w1: [E, F, L], gate matrices in the dtype of `z`; carries gradient, zero for an expert without tokens.
        w3: [E, F, L], up matrices; likewise.
        w2: [E, L, F], down matrices; likewise.
        beta: cap of SiTU-GLU's gate factor; None takes SwiGLU.
        linear_beta: cap of its linear factor; None exactly when `beta` is.
    Returns:
        [T, L] in the dtype of `z`; activation, weighting and sum over experts in at least fp32.
    Raises:
        ValueError: shapes that do not fit, or one cap without the other.
    Invariants:
        Equal inputs give equal bits: tests/reference/test_moe.py. On CPU, fp32 and wider, a token's bits depend on no
        other token: tests/unit/kernels/test_neighbours.py.
    Source:
        Kimi K3 report, section 2.3.
    """
    num_experts, hidden, width = w1.shape
    if w3.shape != w1.shape or w2.shape != (num_experts, width, hidden) or z.shape[1:] != (width,):
        raise ValueError(
            "z, w1, w3, w2 must be [T, L], [E, F, L], [E, F, L], [E, L, F], got "
            f"{tuple(z.shape)}, {tuple(w1.shape)}, {tuple(w3.shape)}, {tuple(w2.shape)}"
        )
    if expert_ids.shape != weights.shape or expert_ids.shape[0] != z.shape[0]:
        raise ValueError(
            f"expert_ids and weights must be [{z.shape[0]}, k], got {tuple(expert_ids.shape)} and "
            f"{tuple(weights.shape)}"
        )
    if (beta is None) != (linear_beta is None):
        raise ValueError(f"beta and linear_beta must both be given or both be None, got {beta}, {linear_beta}")
    caps = None if beta is None or linear_beta is None else (beta, linear_beta)
    if torch.is_grad_enabled():
        return Experts.apply(z, expert_ids, weights, w1, w3, w2, caps)
    return run_experts(z, expert_ids, weights, w1, w3, w2, caps)
