"""Reference norms, written as the equations stand.

T tokens, H heads, V value width, D width.
"""

import torch
from torch import Tensor


def naive_rms_norm(x: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """RMSNorm: statistic and scaling in at least fp32, cast back to the input's dtype, then times the weight.

    Shapes:
        x [..., D]; weight_D [D]; returns [..., D].
    """
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    scaled = wide / torch.sqrt((wide * wide).mean(-1, keepdim=True) + eps)
    return weight_D * scaled.to(x.dtype)


def naive_gated_head_norm(o_THV: Tensor, gate_logits: Tensor, weight_V: Tensor, eps: float) -> Tensor:
    """Head-wise RMSNorm, then a sigmoid gate; all in at least fp32, cast to the dtype of `gate_logits`.

    Shapes:
        o_THV [T, H, V]; gate_logits [T, H*V]; weight_V [V]; returns [T, H*V].
    """
    dtype = torch.promote_types(o_THV.dtype, torch.float32)
    wide_THV = o_THV.to(dtype)
    normed_THV = weight_V * (wide_THV / torch.sqrt((wide_THV * wide_THV).mean(-1, keepdim=True) + eps))
    return (torch.sigmoid(gate_logits.to(dtype)) * normed_THV.flatten(1)).to(gate_logits.dtype)
