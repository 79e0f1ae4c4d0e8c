"""Logits to sample from.

Dimensions: N sequences, Y vocabulary, D hidden size.
"""

import torch
from torch import Tensor

from segue.kernels.common.product import linear


def wide_logits(hidden_ND: Tensor, head_YD: Tensor, temperature_N: Tensor) -> Tensor:
    """Logits over temperatures, at least float32, [N, Y], to rounding in the learner's order of operations.

    On a GPU the exact products of bf16 are summed in float32, without a wide copy of the head.
    """
    if hidden_ND.is_cuda and hidden_ND.dtype is torch.bfloat16:
        logits_NY = torch.mm(hidden_ND, head_YD.t(), out_dtype=torch.float32)
        return logits_NY.div_(temperature_N[:, None])
    wide = torch.promote_types(hidden_ND.dtype, torch.float32)
    # the learner's order (kernels/head): divide the hidden row, then multiply
    return linear(hidden_ND.to(wide) / temperature_N[:, None].to(wide), head_YD.to(wide))
