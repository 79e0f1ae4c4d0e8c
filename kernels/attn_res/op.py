"""Attention residual: what a sublayer reads is a softmax mixture of earlier block representations.

Letters: T tokens, B tokens of a block, D model width, J sources.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

BLOCK_NUMEL = 1 << 18
"""Elements of all sources walked together: few enough for the cache, enough to make the cost of a call small."""


class _AttnResMix(torch.autograd.Function):
    """Walks blocks of tokens; keeps the sources and two numbers a token and source: score and reciprocal RMS."""

    @staticmethod
    def forward(ctx: Any, norm_weight: Tensor, proj_weight: Tensor, eps: float, *sources: Tensor) -> Tensor:
        dtype = torch.promote_types(sources[0].dtype, torch.float32)
        num_sources, (num_tokens, width) = len(sources), sources[0].shape
        query_D = norm_weight.to(dtype) * proj_weight.to(dtype)
        scores_JT = torch.empty(num_sources, num_tokens, dtype=dtype, device=query_D.device)
        rstd_JT = torch.empty_like(scores_JT)
        out_TD = torch.empty_like(sources[0])
        for block in _blocks(num_sources, num_tokens, width):
            v_JBD = torch.stack([source[block] for source in sources]).to(dtype)
            norm_JB = torch.linalg.vector_norm(v_JBD, dim=-1)
            rstd_JB = norm_JB.square_().div_(width).add_(eps).rsqrt_()
            scores_JB = torch.mv(v_JBD.flatten(0, 1), query_D).view_as(rstd_JB).mul_(rstd_JB)
            out_TD[block] = v_JBD.mul_(torch.softmax(scores_JB, dim=0).unsqueeze(-1)).sum(0)
            scores_JT[:, block], rstd_JT[:, block] = scores_JB, rstd_JB
        ctx.save_for_backward(norm_weight, proj_weight, scores_JT, rstd_JT, *sources)
        return out_TD

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        norm_weight, proj_weight, scores_JT, rstd_JT, *sources = ctx.saved_tensors
        dtype = scores_JT.dtype
        num_sources, (num_tokens, width) = len(sources), sources[0].shape
        norm_D, proj_D = norm_weight.to(dtype), proj_weight.to(dtype)
        query_D = norm_D * proj_D
        dquery_D = torch.zeros_like(query_D)
        # separate tensors, so that autograd may add other uses of a source in place
        dsources = [torch.empty_like(source) for source in sources]
        for block in _blocks(num_sources, num_tokens, width):
            v_JBD, grad_BD = torch.stack([source[block] for source in sources]).to(dtype), grads[0][block].to(dtype)
            scores_JB, rstd_JB = scores_JT[:, block], rstd_JT[:, block]
            p_JB = torch.softmax(scores_JB, dim=0)
            dscores_JB = (v_JBD * grad_BD).sum(-1)
            dscores_JB -= (p_JB * dscores_JB).sum(0)
            dscores_JB *= p_JB
            # d score / d v = rstd query - score rstd^2 / D v = rstd (query + shrink v)
            slope_JB1 = dscores_JB.mul_(rstd_JB).unsqueeze(-1)
            shrink_JB1 = (scores_JB * rstd_JB).div_(-width).unsqueeze(-1)
            dv_JBD = v_JBD.mul_(slope_JB1)
            dquery_D += dv_JBD.sum((0, 1))
            dv_JBD.mul_(shrink_JB1).addcmul_(slope_JB1, query_D).addcmul_(grad_BD, p_JB.unsqueeze(-1))
            for dsource_TD, dv_BD in zip(dsources, dv_JBD, strict=True):
                dsource_TD[block] = dv_BD
        grad_norm = (dquery_D * proj_D).to(norm_weight.dtype)
        grad_proj = (dquery_D * norm_D).to(proj_weight.dtype)
        return grad_norm, grad_proj, None, *dsources


def _blocks(num_sources: int, num_tokens: int, width: int) -> Iterator[slice]:
    size = max(1, BLOCK_NUMEL // (num_sources * width))
    return (slice(start, start + size) for start in range(0, num_tokens, size))


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
