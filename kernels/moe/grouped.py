"""Experts on a GPU in bf16: pairs of (token, expert) sorted by expert there, one grouped product a matrix.

Nothing is read back, so a decoding step can be captured as a graph and a training step never waits.

Letters: T tokens, E experts, k chosen experts, P = T k pairs, L expert input width, F expert hidden width.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from segue.kernels.situ.pointwise import Caps, gated_backward, gated_forward


class _Pairs(NamedTuple):
    order_P: Tensor
    """Pairs in ascending order of their experts, those of an expert by token."""
    token_P: Tensor
    """Their tokens."""
    ends_E: Tensor
    """int32: where each expert's pairs end."""


def suits(z: Tensor) -> bool:
    """Whether experts of such inputs run in this form."""
    return z.is_cuda and z.dtype is torch.bfloat16 and z.shape[0] > 0


def grouped_experts(
    z: Tensor, expert_ids: Tensor, weights: Tensor, w1: Tensor, w3: Tensor, w2: Tensor, caps: Caps | None
) -> Tensor:
    """Weighted sum of each token's experts [T, L]; see `segue.kernels.moe.op.experts`."""
    pairs = _sort(expert_ids, w1.shape[0])
    z_PL = z.index_select(0, pairs.token_P)
    gate_PF, up_PF = (torch._grouped_mm(z_PL, w.transpose(1, 2), offs=pairs.ends_E) for w in (w1, w3))
    hidden_PF = _activate(gate_PF, up_PF, weights.flatten().index_select(0, pairs.order_P), caps)
    out_PL = torch._grouped_mm(hidden_PF, w2.transpose(1, 2), offs=pairs.ends_E)
    return _sum_pairs(out_PL, pairs, expert_ids.shape[1]).to(z.dtype)


def grouped_experts_backward(
    grad: Tensor,
    z: Tensor,
    expert_ids: Tensor,
    weights: Tensor,
    w1: Tensor,
    w3: Tensor,
    w2: Tensor,
    caps: Caps | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of z, weights, w1, w3 and w2; hidden activations are computed again."""
    pairs = _sort(expert_ids, w1.shape[0])
    ends_E = pairs.ends_E
    z_PL, grad_PL = z.index_select(0, pairs.token_P), grad.index_select(0, pairs.token_P)
    weights_P1 = weights.flatten().index_select(0, pairs.order_P).unsqueeze(1).float()
    gate_PF, up_PF = (torch._grouped_mm(z_PL, w.transpose(1, 2), offs=ends_E).float() for w in (w1, w3))
    dhidden_PF = torch._grouped_mm(grad_PL, w2, offs=ends_E).float()
    dgate_PF, dup_PF, hidden_PF = gated_backward(dhidden_PF * weights_P1, gate_PF, up_PF, caps)
    dweights_P = dhidden_PF.mul_(hidden_PF).sum(1)
    hidden_PF = hidden_PF.mul_(weights_P1).to(z.dtype)
    dgate_PF, dup_PF = dgate_PF.to(z.dtype), dup_PF.to(z.dtype)
    dz_PL = torch._grouped_mm(dgate_PF, w1, offs=ends_E).float().add_(torch._grouped_mm(dup_PF, w3, offs=ends_E))
    dw1, dw3 = (torch._grouped_mm(d.t(), z_PL, offs=ends_E) for d in (dgate_PF, dup_PF))
    dw2 = torch._grouped_mm(grad_PL.t(), hidden_PF, offs=ends_E)
    # what a product over no pairs leaves is not said to be zero
    is_idle_E11 = (ends_E.diff(prepend=ends_E.new_zeros(1)) == 0).view(-1, 1, 1)
    dw1, dw3, dw2 = (dw.masked_fill_(is_idle_E11, 0.0) for dw in (dw1, dw3, dw2))
    dweights = torch.empty_like(dweights_P).index_copy_(0, pairs.order_P, dweights_P).view(expert_ids.shape)
    return _sum_pairs(dz_PL, pairs, expert_ids.shape[1]).to(z.dtype), dweights.to(weights.dtype), dw1, dw3, dw2


def _activate(gate_PF: Tensor, up_PF: Tensor, weights_P: Tensor, caps: Caps | None) -> Tensor:
    """Weighted hidden activations, rounded once."""
    if gate_PF.is_cuda:
        # triton is not installed where there is no GPU that it serves
        from segue.kernels.situ.triton_gated import triton_gated

        return triton_gated(gate_PF, up_PF, caps, weights_P.float())
    hidden_PF = gated_forward(gate_PF.float(), up_PF.float(), caps)
    return hidden_PF.mul_(weights_P.unsqueeze(1)).to(gate_PF.dtype)


def _sort(expert_ids: Tensor, num_experts: int) -> _Pairs:
    sorted_P, order_P = expert_ids.flatten().sort(stable=True)
    experts_E = torch.arange(num_experts, device=expert_ids.device)
    ends_E = torch.searchsorted(sorted_P, experts_E, right=True, out_int32=True)
    return _Pairs(order_P, order_P // expert_ids.shape[1], ends_E)


def _sum_pairs(x_PL: Tensor, pairs: _Pairs, top_k: int) -> Tensor:
    """Sum over each token's pairs, in at least fp32 and in one order, [T, L]."""
    by_token_PL = torch.empty_like(x_PL).index_copy_(0, pairs.order_P, x_PL)
    return by_token_PL.view(-1, top_k, x_PL.shape[1]).sum(1, dtype=torch.float32)
