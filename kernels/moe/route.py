"""Weights of the chosen experts, with gradient to the router's logits.

Letters: T tokens, E experts, k chosen experts.
"""

from typing import Any

import torch
from torch import Tensor

RENORMALIZE_EPS = 1e-20


def weigh(scores_TE: Tensor, ids_Tk: Tensor, renormalize: bool, scaling: float) -> tuple[Tensor, Tensor | None, Tensor]:
    """Chosen scores [T, k], their sum [T, 1] where it divides them, and the weights [T, k]."""
    chosen_Tk = scores_TE.gather(1, ids_Tk)
    total_T1 = chosen_Tk.sum(1, keepdim=True).add_(RENORMALIZE_EPS) if renormalize else None
    return chosen_Tk, total_T1, (chosen_Tk if total_T1 is None else chosen_Tk / total_T1) * scaling


class RouteWeights(torch.autograd.Function):
    """`scaling * s / (sum s + eps)` over the chosen scores; its gradient reaches the chosen logits only."""

    @staticmethod
    def forward(
        ctx: Any,
        logits_TE: Tensor,
        scores_TE: Tensor,
        ids_Tk: Tensor,
        renormalize: bool,
        scaling: float,
        known_Tk: Tensor | None,
    ) -> Tensor:
        chosen_Tk, total_T1, weights_Tk = weigh(scores_TE, ids_Tk, renormalize, scaling)
        if known_Tk is not None:
            # to rounding the same; the bits must be those of a run without gradients
            weights_Tk = known_Tk.clone()
        ctx.save_for_backward(chosen_Tk, ids_Tk, total_T1, weights_Tk if renormalize else None)
        ctx.scaling, ctx.logits_shape, ctx.logits_dtype = scaling, logits_TE.shape, logits_TE.dtype
        return weights_Tk

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        chosen_Tk, ids_Tk, total_T1, weights_Tk = ctx.saved_tensors
        dchosen_Tk = grads[0] * ctx.scaling
        if total_T1 is not None:
            # d (s_i / total) = ds_i / total - s_i / total^2 * sum ds
            shared_T1 = (grads[0] * weights_Tk).sum(1, keepdim=True)
            dchosen_Tk = dchosen_Tk.sub_(shared_T1).div_(total_T1)
        dlogits_Tk = dchosen_Tk * chosen_Tk * (1.0 - chosen_Tk)
        dlogits_TE = dlogits_Tk.new_zeros(ctx.logits_shape).scatter_add_(1, ids_Tk, dlogits_Tk)
        return dlogits_TE.to(ctx.logits_dtype), None, None, None, None, None
