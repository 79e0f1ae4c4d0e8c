"""Attention residual: what a sublayer reads is a softmax mixture of earlier block representations.

Letters: T tokens, D model width, J sources.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class _AttnResMix(torch.autograd.Function):
    """Keeps the sources and three numbers a token and source: probability, score, reciprocal RMS."""

    @staticmethod
    def forward(ctx: Any, norm_weight: Tensor, proj_weight: Tensor, eps: float, *sources: Tensor) -> Tensor:
        dtype = torch.promote_types(sources[0].dtype, torch.float32)
        num_tokens, width = sources[0].shape
        query_D = norm_weight.to(dtype) * proj_weight.to(dtype)
        scores_JT = query_D.new_empty(len(sources), num_tokens)
        rstd_JT = torch.empty_like(scores_JT)
        for j, source in enumerate(sources):
            v_TD = source.to(dtype)
            torch.mv(v_TD, query_D, out=scores_JT[j])
            torch.linalg.vector_norm(v_TD, dim=-1, out=rstd_JT[j])
        rstd_JT.square_().div_(width).add_(eps).rsqrt_()
        scores_JT.mul_(rstd_JT)
        p_JT = torch.softmax(scores_JT, dim=0)
        out_TD = sources[0].to(dtype) * p_JT[0].unsqueeze(-1)
        for j in range(1, len(sources)):
            out_TD.addcmul_(sources[j].to(dtype), p_JT[j].unsqueeze(-1))
        ctx.save_for_backward(norm_weight, proj_weight, p_JT, scores_JT, rstd_JT, *sources)
        return out_TD.to(sources[0].dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        norm_weight, proj_weight, p_JT, scores_JT, rstd_JT, *sources = ctx.saved_tensors
        dtype = p_JT.dtype
        grad_TD = grads[0].to(dtype)
        width = grad_TD.shape[1]
        norm_D, proj_D = norm_weight.to(dtype), proj_weight.to(dtype)
        query_D = norm_D * proj_D
        dscores_JT = torch.empty_like(p_JT)
        for j, source in enumerate(sources):
            torch.sum(grad_TD * source.to(dtype), dim=-1, out=dscores_JT[j])
        dscores_JT -= (p_JT * dscores_JT).sum(0)
        dscores_JT *= p_JT
        # d score / d v = rstd * query - score * rstd^2 / D * v
        along_query_JT = dscores_JT * rstd_JT
        along_source_JT = (along_query_JT * rstd_JT).mul_(scores_JT).div_(-width)
        dquery_D = torch.zeros_like(query_D)
        grad_sources = []
        for j, source in enumerate(sources):
            v_TD = source.to(dtype)
            dquery_D.addmv_(v_TD.t(), along_query_JT[j])
            dv_TD = grad_TD * p_JT[j].unsqueeze(-1)
            dv_TD.addcmul_(v_TD, along_source_JT[j].unsqueeze(-1))
            dv_TD.addr_(along_query_JT[j], query_D)
            grad_sources.append(dv_TD.to(source.dtype))
        grad_norm = (dquery_D * proj_D).to(norm_weight.dtype)
        grad_proj = (dquery_D * norm_D).to(proj_weight.dtype)
        return grad_norm, grad_proj, None, *grad_sources


def attn_res_mix(sources: Sequence[Tensor], norm_weight: Tensor, proj_weight: Tensor, eps: float) -> Tensor:
    """Mixture of `sources` by a softmax over per-token scores of each source.

    `score_j = sum_d v_jd / sqrt(mean(v_j^2) + eps) * norm_weight_d * proj_weight_d` and
    `out = sum_j softmax(score)_j v_j`; the mixed values are the raw sources.

    Args:
        sources: at least one tensor [T, D] of one floating dtype; each carries gradient.
        norm_weight: [D]; weight of the norm over the keys.
        proj_weight: [D]; the pseudo-query. Zeros give the plain average.
        eps: added to the mean square.
    Returns:
        [T, D] in the dtype of the sources; scores, softmax and sum in at least fp32.
    Raises:
        ValueError: no source, or shapes that do not fit.
    Source:
        Attention Residuals, arXiv 2603.15031; Kimi K3 report, section 2.2.
    """
    if not sources:
        raise ValueError("attn_res_mix needs at least one source, got none")
    shape = sources[0].shape
    if any(source.shape != shape for source in sources):
        raise ValueError(f"sources must have one shape [T, D], got {[tuple(source.shape) for source in sources]}")
    if len(shape) != 2 or norm_weight.shape != shape[1:] or proj_weight.shape != shape[1:]:
        raise ValueError(
            f"norm_weight and proj_weight must be [D] for sources [T, D], got {tuple(norm_weight.shape)}, "
            f"{tuple(proj_weight.shape)} and {tuple(shape)}"
        )
    return _AttnResMix.apply(norm_weight, proj_weight, eps, *sources)
