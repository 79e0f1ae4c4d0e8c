"""Attention residual: what a sublayer reads is a softmax mixture of earlier block representations.

Letters: T tokens, B tokens of a block, D model width, J sources.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from segue.kernels.common.product import product
from segue.kernels.norm.rate import inverse_rms

BLOCK_NUMEL = 1 << 20
"""Elements of a source walked together: bounds the temporaries; blocks that fit a cache lose more to calls."""
BLOCK_NUMEL_GPU = 1 << 26
"""On a GPU, where calls cost more and there is more memory."""
STACKED_NUMEL = 1 << 14
"""Up to so many elements of a source, as in decoding, the sources are stacked: calls cost more than the copy."""


class _AttnResMix(torch.autograd.Function):
    """Walks blocks of tokens; keeps the sources and two numbers a token and source: score and reciprocal RMS."""

    @staticmethod
    def forward(ctx: Any, norm_weight: Tensor, proj_weight: Tensor, eps: float, *sources: Tensor) -> Tensor:
        out_TD, scores_JT, rstd_JT = _mix(sources, norm_weight, proj_weight, eps)
        ctx.save_for_backward(norm_weight, proj_weight, scores_JT, rstd_JT, *sources)
        return out_TD

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        norm_weight, proj_weight, scores_JT, rstd_JT, *sources = ctx.saved_tensors
        dtype = scores_JT.dtype
        num_tokens, width = sources[0].shape
        norm_D, proj_D = norm_weight.to(dtype), proj_weight.to(dtype)
        query_D = norm_D * proj_D
        dquery_D = torch.zeros_like(query_D)
        grad_sources = [torch.empty(source.shape, dtype=source.dtype, device=source.device) for source in sources]
        for block in _blocks(num_tokens, width, BLOCK_NUMEL_GPU if grads[0].is_cuda else BLOCK_NUMEL):
            values, grad_BD = [source[block].to(dtype) for source in sources], grads[0][block].to(dtype)
            scores_JB, rstd_JB = scores_JT[:, block], rstd_JT[:, block]
            p_JB = torch.softmax(scores_JB, dim=0)
            dscores_JB = torch.stack([(grad_BD * v_BD).sum(-1) for v_BD in values])
            dscores_JB -= (p_JB * dscores_JB).sum(0)
            dscores_JB *= p_JB
            # d score / d v = rstd query - score rstd^2 / D v = rstd (query + shrink v)
            slope_JB1 = (dscores_JB * rstd_JB).unsqueeze(-1)
            shrink_JB1 = (scores_JB * rstd_JB).div_(-width).unsqueeze(-1)
            for j, v_BD in enumerate(values):
                dv_BD = v_BD * slope_JB1[j]
                dquery_D += dv_BD.sum(0)
                dv_BD.mul_(shrink_JB1[j]).addcmul_(slope_JB1[j], query_D).addcmul_(grad_BD, p_JB[j].unsqueeze(-1))
                grad_sources[j][block] = dv_BD
        grad_norm = (dquery_D * proj_D).to(norm_weight.dtype)
        grad_proj = (dquery_D * norm_D).to(proj_weight.dtype)
        return grad_norm, grad_proj, None, *grad_sources


# the arithmetic stands apart from autograd, whose bookkeeping costs much on a decoding step's few rows
def _mix(
    sources: Sequence[Tensor], norm_weight: Tensor, proj_weight: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Mixture [T, D], scores and reciprocal RMS [J, T]."""
    if sources[0].is_cuda and sources[0].dtype is torch.bfloat16:
        # triton is not installed where there is no GPU that it serves
        from segue.kernels.attn_res.triton_mix import triton_mix

        return triton_mix(sources, norm_weight, proj_weight, eps)
    dtype = torch.promote_types(sources[0].dtype, torch.float32)
    # as a matrix: unlike its product with a vector, a row's product with it has the same bits among any others
    query_D1 = (norm_weight.to(dtype) * proj_weight.to(dtype)).unsqueeze(-1)
    if sources[0].numel() <= STACKED_NUMEL:
        return _mix_stacked(sources, query_D1, eps)
    num_tokens, width = sources[0].shape
    scores_JT = query_D1.new_empty(len(sources), num_tokens)
    rstd_JT = torch.empty_like(scores_JT)
    out_TD = torch.empty(num_tokens, width, dtype=sources[0].dtype, device=query_D1.device)
    for block in _blocks(num_tokens, width, BLOCK_NUMEL):
        values = [source[block].to(dtype) for source in sources]
        scores_JB, rstd_JB = scores_JT[:, block], rstd_JT[:, block]
        for j, v_BD in enumerate(values):
            scores_JB[j] = product(v_BD, query_D1).squeeze(-1)
            rstd_JB[j] = inverse_rms(v_BD, eps).squeeze(-1)
        scores_JB *= rstd_JB
        out_TD[block] = _weigh(values, scores_JB.t())
    return out_TD, scores_JT, rstd_JT


def _mix_stacked(sources: Sequence[Tensor], query_D1: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    dtype = query_D1.dtype
    values = sources if sources[0].dtype is dtype else [source.to(dtype) for source in sources]
    values_TJD = torch.stack(tuple(values), 1)
    rstd_TJ = inverse_rms(values_TJD, eps).squeeze(-1)
    scores_TJ = product(values_TJD.view(-1, len(query_D1)), query_D1).view(rstd_TJ.shape).mul_(rstd_TJ)
    return _weigh(values, scores_TJ).to(sources[0].dtype), scores_TJ.t(), rstd_TJ.t()


def _weigh(values: Sequence[Tensor], scores_BJ: Tensor) -> Tensor:
    # softmax over the last dimension: over others, torch's vectors tie a token's bits to the number of tokens
    p_BJ = torch.softmax(scores_BJ, dim=1)
    mix_BD = values[0] * p_BJ[:, :1]
    for j in range(1, len(values)):
        mix_BD.addcmul_(values[j], p_BJ[:, j : j + 1])
    return mix_BD


def _blocks(num_tokens: int, width: int, numel: int) -> Iterator[slice]:
    size = max(1, numel // width)
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
    if torch.is_grad_enabled():
        return _AttnResMix.apply(norm_weight, proj_weight, eps, *sources)
    return _mix(sources, norm_weight, proj_weight, eps)[0]
