"""Reference of the attention residual: stack the sources and let autograd differentiate.

Letters: T tokens, D model width, J sources.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def naive_attn_res_mix(sources: Sequence[Tensor], norm_weight: Tensor, proj_weight: Tensor, eps: float) -> Tensor:
    """Softmax mixture of the raw sources, scored by a learned query against their RMS-normed values."""
    dtype = torch.promote_types(sources[0].dtype, torch.float32)
    v_JTD = torch.stack([source.to(dtype) for source in sources])
    normed_JTD = v_JTD * torch.rsqrt(v_JTD.square().mean(-1, keepdim=True) + eps)
    scores_JT = (normed_JTD * norm_weight.to(dtype) * proj_weight.to(dtype)).sum(-1)
    p_JT = torch.softmax(scores_JT, dim=0)
    return (p_JT.unsqueeze(-1) * v_JTD).sum(0).to(sources[0].dtype)
