"""Experts for a handful of tokens, as in decoding: all experts on all tokens, in three products and no sorting.

The routing weight multiplies the hidden activation, zero where an expert was not chosen.

Letters: T tokens, E experts, k chosen experts, L expert input width, F expert hidden width.
"""

import torch
from torch import Tensor

from segue.kernels.common.product import batched_product, linear
from segue.kernels.situ.pointwise import Caps, gated_forward


def dense_experts(
    z: Tensor, expert_ids: Tensor, weights: Tensor, w1: Tensor, w3: Tensor, w2: Tensor, caps: Caps | None
) -> Tensor:
    """Weighted sum of each token's experts [T, L]; see `segue.kernels.moe.op.experts`."""
    dtype = torch.promote_types(z.dtype, torch.float32)
    num_tokens, (num_experts, hidden, _) = z.shape[0], w1.shape
    gate, up = (linear(z, matrix.flatten(0, 1)).to(dtype) for matrix in (w1, w3))
    hidden_TEF = gated_forward(gate, up, caps).view(num_tokens, num_experts, hidden)
    weights_TE = hidden_TEF.new_zeros(num_tokens, num_experts).scatter_add_(1, expert_ids, weights.to(dtype))
    hidden_ETF = hidden_TEF.mul_(weights_TE.unsqueeze(-1)).to(z.dtype).transpose(0, 1)
    out_TEL = batched_product(hidden_ETF, w2.transpose(1, 2)).transpose(0, 1)
    # in ascending order of the experts, as the other forms add them up
    ids_Tk1 = expert_ids.sort(1).values.unsqueeze(-1)
    u_TL, *others = out_TEL.gather(1, ids_Tk1.expand(-1, -1, out_TEL.shape[2])).to(dtype).unbind(1)
    for out_TL in others:
        u_TL += out_TL
    return u_TL.to(z.dtype)
