"""The attention residual's mixture on a GPU in one launch, a program a token. T tokens, D model width, J sources."""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def attn_res_kernel(
    sources, norm_weight, proj_weight, out, scores, rates, num_tokens, eps,
    J: tl.constexpr, D: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """One token, a source after the other: each is read once; grid (T)."""
    i_t = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, BD)
    is_in = d < D
    query = tl.load(norm_weight + d, mask=is_in, other=0.0).to(tl.float32)
    query *= tl.load(proj_weight + d, mask=is_in, other=0.0).to(tl.float32)
    mix = tl.zeros((BD,), tl.float32)
    top = float("-inf")
    total = 0.0
    for j in tl.static_range(J):
        value = tl.load(sources[j] + i_t * D + d, mask=is_in, other=0.0).to(tl.float32)
        rate = tl.rsqrt(tl.sum(value * value, 0) / D + eps)
        score = tl.sum(value * query, 0) * rate
        tl.store(scores + j * num_tokens + i_t, score)
        tl.store(rates + j * num_tokens + i_t, rate)
        new_top = tl.maximum(top, score)
        kept, added = tl.exp(top - new_top), tl.exp(score - new_top)
        mix = mix * kept + value * added
        total = total * kept + added
        top = new_top
    tl.store(out + i_t * D + d, (mix / total).to(out.dtype.element_ty), mask=is_in)


def triton_mix(
    sources: Sequence[Tensor], norm_weight: Tensor, proj_weight: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Mixture [T, D], scores and reciprocal RMS [J, T] in fp32; all on one GPU."""
    T, D = sources[0].shape
    J, device = len(sources), sources[0].device
    out = torch.empty(T, D, dtype=sources[0].dtype, device=device)
    scores, rates = torch.empty(2, J, T, dtype=torch.float32, device=device)
    BD = triton.next_power_of_2(D)
    if T:
        with torch.cuda.device_of(out):
            attn_res_kernel[(T,)](
                tuple(source.contiguous() for source in sources), norm_weight.contiguous(), proj_weight.contiguous(),
                out, scores, rates, T, eps, J=J, D=D, BD=BD, num_warps=4 if BD <= 2048 else 8,
            )  # fmt: skip
    return out, scores, rates
