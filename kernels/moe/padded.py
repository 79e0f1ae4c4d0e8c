"""Experts for few tokens, as in decoding: every expert's pairs padded to the largest load, one batched product.

Letters: E experts, P pairs, M largest load, L expert input width, F expert hidden width.
"""

from itertools import accumulate

import torch
from torch import Tensor

from segue.kernels.common.product import batched_product
from segue.kernels.situ.pointwise import Caps, gated_forward


def padded_experts(
    z: Tensor,
    token_P: Tensor,
    weights_P1: Tensor,
    counts: list[int],
    w1: Tensor,
    w3: Tensor,
    w2: Tensor,
    caps: Caps | None,
) -> Tensor:
    """Weighted output [P, L] of pairs sorted by expert; `token_P` names their rows of `z`."""
    num_experts, _, width = w1.shape
    load = max(counts)
    # a pair's place: its expert's first row plus its rank within the expert
    ends = accumulate(counts)
    shifts = [expert * load - (end - count) for expert, (end, count) in enumerate(zip(ends, counts, strict=True))]
    shift_E, counts_E = torch.tensor([shifts, counts], device=z.device)
    place_P = torch.repeat_interleave(shift_E, counts_E).add_(torch.arange(token_P.numel(), device=z.device))
    z_EML = z.new_zeros(num_experts * load, width).index_copy_(0, place_P, z.index_select(0, token_P))
    z_EML = z_EML.view(num_experts, load, width)
    dtype = torch.promote_types(z.dtype, torch.float32)
    gate_EMF, up_EMF = (batched_product(z_EML, matrix.transpose(1, 2)) for matrix in (w1, w3))
    weights_EM1 = weights_P1.new_zeros(num_experts * load, 1).index_copy_(0, place_P, weights_P1)
    hidden_EMF = gated_forward(gate_EMF.to(dtype), up_EMF.to(dtype), caps)
    hidden_EMF *= weights_EM1.view(num_experts, load, 1)
    return batched_product(hidden_EMF.to(z.dtype), w2.transpose(1, 2)).reshape(-1, width).index_select(0, place_P)
