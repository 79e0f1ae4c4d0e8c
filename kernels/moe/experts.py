"""The experts as one function: pairs of (token, expert) sorted by expert, one matrix product an expert.

The routing weight multiplies the hidden activation (the down projection is linear), so that its gradient needs no
expert output.

Letters: T tokens, E experts, k chosen experts, P = T k pairs, L expert input width, F expert hidden width.
"""

from typing import Any

import torch
from torch import Tensor

from segue.kernels.situ.pointwise import situ_backward, situ_forward, swiglu_backward, swiglu_forward


class Experts(torch.autograd.Function):
    """Keeps the inputs and both hidden pre-activations of each pair."""

    @staticmethod
    def forward(
        ctx: Any, z: Tensor, expert_ids: Tensor, weights: Tensor, w1: Tensor, w3: Tensor, w2: Tensor,
        caps: tuple[float, float] | None,
    ) -> Tensor:  # fmt: skip
        num_tokens, top_k = expert_ids.shape
        num_experts, hidden, width = w1.shape
        order_P = torch.argsort(expert_ids.reshape(-1), stable=True)
        counts = torch.bincount(expert_ids.reshape(-1), minlength=num_experts).tolist()
        token_P = order_P // top_k
        z_PL = z.index_select(0, token_P)
        gate_PF = z.new_empty(num_tokens * top_k, hidden)
        up_PF = torch.empty_like(gate_PF)
        for expert, rows in _runs(counts):
            torch.mm(z_PL[rows], w1[expert].t(), out=gate_PF[rows])
            torch.mm(z_PL[rows], w3[expert].t(), out=up_PF[rows])
        weights_P1 = weights.reshape(-1)[order_P].unsqueeze(1)
        hidden_PF = _activate(gate_PF, up_PF, caps).mul_(weights_P1).to(z.dtype)
        out_PL = z.new_empty(num_tokens * top_k, width)
        for expert, rows in _runs(counts):
            torch.mm(hidden_PF[rows], w2[expert].t(), out=out_PL[rows])
        ctx.save_for_backward(z, expert_ids, weights, w1, w3, w2, order_P, gate_PF, up_PF)
        ctx.caps, ctx.counts = caps, counts
        return _sum_pairs(out_PL, order_P, top_k)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        z, expert_ids, weights, w1, w3, w2, order_P, gate_PF, up_PF = ctx.saved_tensors
        top_k = expert_ids.shape[1]
        token_P = order_P // top_k
        z_PL = z.index_select(0, token_P)
        grad_PL = grads[0].index_select(0, token_P)
        dhidden_PF = torch.empty_like(gate_PF)
        for expert, rows in _runs(ctx.counts):
            torch.mm(grad_PL[rows], w2[expert], out=dhidden_PF[rows])
        weights_P1 = weights.reshape(-1)[order_P].unsqueeze(1)
        dgate_PF, dup_PF, hidden_PF, dweights_P = _differentiate(dhidden_PF, gate_PF, up_PF, weights_P1, ctx.caps)
        dw1, dw3, dw2 = torch.zeros_like(w1), torch.zeros_like(w3), torch.zeros_like(w2)
        dz_PL = torch.empty_like(z_PL)
        for expert, rows in _runs(ctx.counts):
            torch.mm(dgate_PF[rows].t(), z_PL[rows], out=dw1[expert])
            torch.mm(dup_PF[rows].t(), z_PL[rows], out=dw3[expert])
            torch.mm(grad_PL[rows].t(), hidden_PF[rows], out=dw2[expert])
            torch.mm(dgate_PF[rows], w1[expert], out=dz_PL[rows])
            dz_PL[rows].addmm_(dup_PF[rows], w3[expert])
        dweights = torch.empty_like(weights)
        dweights.reshape(-1)[order_P] = dweights_P.to(weights.dtype)
        return _sum_pairs(dz_PL, order_P, top_k), None, dweights, dw1, dw3, dw2, None


def _runs(counts: list[int]) -> list[tuple[int, slice]]:
    """Experts that have pairs, with their rows among the sorted pairs."""
    runs, start = [], 0
    for expert, count in enumerate(counts):
        if count:
            runs.append((expert, slice(start, start + count)))
            start += count
    return runs


def _activate(gate: Tensor, up: Tensor, caps: tuple[float, float] | None) -> Tensor:
    dtype = torch.promote_types(gate.dtype, torch.float32)
    gate, up = gate.to(dtype), up.to(dtype)
    return swiglu_forward(gate, up) if caps is None else situ_forward(gate, up, *caps)


def _differentiate(
    dhidden: Tensor, gate: Tensor, up: Tensor, weights_P1: Tensor, caps: tuple[float, float] | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of gate, up and pair weight, and the weighted hidden activation again."""
    out_dtype = gate.dtype
    dtype = torch.promote_types(out_dtype, torch.float32)
    dhidden, gate, up = dhidden.to(dtype), gate.to(dtype), up.to(dtype)
    weighted = dhidden * weights_P1
    dgate, dup, value = (
        swiglu_backward(weighted, gate, up) if caps is None else situ_backward(weighted, gate, up, *caps)
    )
    dweights = dhidden.mul_(value).sum(1)
    return dgate.to(out_dtype), dup.to(out_dtype), value.mul_(weights_P1).to(out_dtype), dweights


def _sum_pairs(values_PL: Tensor, order_P: Tensor, top_k: int) -> Tensor:
    """Sum of a token's pairs, always in the order of its choices."""
    place_P = torch.empty_like(order_P)
    place_P[order_P] = torch.arange(order_P.numel(), device=order_P.device)
    dtype = torch.promote_types(values_PL.dtype, torch.float32)
    pairs_TkL = values_PL.index_select(0, place_P).view(-1, top_k, values_PL.shape[1])
    return pairs_TkL.sum(1, dtype=dtype).to(values_PL.dtype)
