"""The experts as one function: pairs of (token, expert) sorted by expert, one matrix product an expert and matrix.

The sorted pairs are walked in blocks, from the gather to the scatter, which bounds the temporaries. The routing weight
multiplies the hidden activation (the down projection is linear), so that its gradient needs no expert output.

Letters: T tokens, E experts, k chosen experts, P = T k pairs, B pairs of a block, L expert input width, F expert hidden
width.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from segue.kernels.common.product import product
from segue.kernels.common.rows import add_rows
from segue.kernels.moe.dense import dense_experts
from segue.kernels.moe.grouped import grouped_experts, grouped_experts_backward, suits
from segue.kernels.moe.padded import padded_experts
from segue.kernels.situ.pointwise import Caps, gated_backward, gated_forward

DENSE_MAX_TOKENS = 32
"""Up to so many tokens, all experts run on all of them: cheaper than finding who needs which."""
DENSE_MAX_ROWS_PER_PAIR = 8
"""Unless there are more experts than so many for each that a token takes."""
BLOCK_PAIRS = 2048
"""Pairs of a block; at the tiny widths smaller blocks lose to calls and larger ones to cache misses."""
PADDED_MAX_PAIRS_PER_EXPERT = 24
"""Up to this mean load the forward runs all experts in one batched product: the loop would be all overhead."""
PADDED_MAX_ROWS_PER_PAIR = 8
"""Unless the largest load would pad the pairs to more than this multiple."""


class Experts(torch.autograd.Function):
    """Keeps the inputs; sorts the pairs and computes the hidden activations again in backward."""

    @staticmethod
    def forward(
        ctx: Any, z: Tensor, expert_ids: Tensor, weights: Tensor, w1: Tensor, w3: Tensor, w2: Tensor, caps: Caps | None
    ) -> Tensor:
        ctx.save_for_backward(z, expert_ids, weights, w1, w3, w2)
        ctx.caps = caps
        return run_experts(z, expert_ids, weights, w1, w3, w2, caps)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        z, expert_ids, weights, w1, w3, w2 = ctx.saved_tensors
        if suits(z):
            dz, *others = grouped_experts_backward(grads[0], z, expert_ids, weights, w1, w3, w2, ctx.caps)
            return dz, None, *others, None
        dtype = torch.promote_types(z.dtype, torch.float32)
        order_P, counts = _sort_pairs(expert_ids, w1.shape[0])
        token_P = order_P // expert_ids.shape[1]
        weights_P1 = weights.reshape(-1).index_select(0, order_P).unsqueeze(1).to(dtype)
        dz_TL = torch.zeros(z.shape, dtype=dtype, device=z.device)
        dw1, dw3, dw2 = torch.zeros_like(w1), torch.zeros_like(w3), torch.zeros_like(w2)
        dweights_P = torch.empty(order_P.shape, dtype=weights.dtype, device=z.device)
        w1_ELF, w3_ELF = w1.transpose(1, 2).unbind(), w3.transpose(1, 2).unbind()
        w1_EFL, w3_EFL, w2_ELF = w1.unbind(), w3.unbind(), w2.unbind()
        dw1_EFL, dw3_EFL, dw2_ELF = dw1.unbind(), dw3.unbind(), dw2.unbind()
        for block, experts, sizes in _blocks(counts):
            z_BL, grad_BL = z.index_select(0, token_P[block]), grads[0].index_select(0, token_P[block])
            gate_BF = _per_expert(z_BL, w1_ELF[experts], sizes).to(dtype)
            up_BF = _per_expert(z_BL, w3_ELF[experts], sizes).to(dtype)
            dhidden_BF = _per_expert(grad_BL, w2_ELF[experts], sizes).to(dtype)
            weights_B1 = weights_P1[block]
            dgate_BF, dup_BF, hidden_BF = gated_backward(dhidden_BF * weights_B1, gate_BF, up_BF, ctx.caps)
            dweights_P[block] = dhidden_BF.mul_(hidden_BF).sum(1)
            hidden_BF = hidden_BF.mul_(weights_B1).to(z.dtype)
            dgate_BF, dup_BF = dgate_BF.to(z.dtype), dup_BF.to(z.dtype)
            dz_BL = _per_expert(dgate_BF, w1_EFL[experts], sizes)
            _add_per_expert(dz_BL.split(sizes), dup_BF.split(sizes), w3_EFL[experts])
            add_rows(dz_TL, token_P[block], dz_BL.to(dtype))
            _add_per_expert(dw1_EFL[experts], dgate_BF.t().split(sizes, 1), z_BL.split(sizes))
            _add_per_expert(dw3_EFL[experts], dup_BF.t().split(sizes, 1), z_BL.split(sizes))
            _add_per_expert(dw2_ELF[experts], grad_BL.t().split(sizes, 1), hidden_BF.split(sizes))
        dweights = torch.empty_like(dweights_P).index_copy_(0, order_P, dweights_P).view(expert_ids.shape)
        return dz_TL.to(z.dtype), None, dweights, dw1, dw3, dw2, None


# the arithmetic stands apart from autograd, whose bookkeeping costs much on a decoding step's few rows
def run_experts(
    z: Tensor, expert_ids: Tensor, weights: Tensor, w1: Tensor, w3: Tensor, w2: Tensor, caps: Caps | None
) -> Tensor:
    """Weighted sum of each token's experts [T, L]; the form is chosen by device, sizes and loads."""
    if suits(z):
        # triton is not installed where there is no GPU that it serves
        from segue.kernels.moe.triton_few import MAX_PAIRS, few_experts

        form = few_experts if expert_ids.numel() <= MAX_PAIRS else grouped_experts
        return form(z, expert_ids, weights, w1, w3, w2, caps)
    num_experts, (num_tokens, top_k) = w1.shape[0], expert_ids.shape
    if num_tokens <= DENSE_MAX_TOKENS and num_experts <= DENSE_MAX_ROWS_PER_PAIR * top_k:
        return dense_experts(z, expert_ids, weights, w1, w3, w2, caps)
    dtype = torch.promote_types(z.dtype, torch.float32)
    order_P, counts = _sort_pairs(expert_ids, num_experts)
    token_P = order_P // top_k
    weights_P1 = weights.reshape(-1).index_select(0, order_P).unsqueeze(1).to(dtype)
    u_TL = torch.zeros(z.shape, dtype=dtype, device=z.device)
    if _is_padding_cheap(counts):
        out_PL = padded_experts(z, token_P, weights_P1, counts, w1, w3, w2, caps)
        return add_rows(u_TL, token_P, out_PL.to(dtype)).to(z.dtype)
    w1_ELF, w3_ELF, w2_EFL = (weight.transpose(1, 2).unbind() for weight in (w1, w3, w2))
    for block, experts, sizes in _blocks(counts):
        z_BL = z.index_select(0, token_P[block])
        gate_BF = _per_expert(z_BL, w1_ELF[experts], sizes).to(dtype)
        up_BF = _per_expert(z_BL, w3_ELF[experts], sizes).to(dtype)
        hidden_BF = gated_forward(gate_BF, up_BF, caps).mul_(weights_P1[block]).to(z.dtype)
        add_rows(u_TL, token_P[block], _per_expert(hidden_BF, w2_EFL[experts], sizes).to(dtype))
    return u_TL.to(z.dtype)


def _sort_pairs(expert_ids: Tensor, num_experts: int) -> tuple[Tensor, list[int]]:
    """Pairs in ascending order of their experts [P], those of an expert by token; and how many each expert has."""
    ids_P = expert_ids.reshape(-1)
    return torch.argsort(ids_P, stable=True), torch.bincount(ids_P, minlength=num_experts).tolist()


def _is_padding_cheap(counts: list[int]) -> bool:
    num_experts, num_pairs = len(counts), sum(counts)
    are_few = 0 < num_pairs <= PADDED_MAX_PAIRS_PER_EXPERT * num_experts
    return are_few and num_experts * max(counts) <= PADDED_MAX_ROWS_PER_PAIR * num_pairs


def _per_expert(x_BI: Tensor, weights_IO: Sequence[Tensor], sizes: list[int]) -> Tensor:
    """Product of the rows of each expert with its matrix."""
    return torch.cat([product(*pair) for pair in zip(x_BI.split(sizes), weights_IO, strict=True)])


def _add_per_expert(sums: Sequence[Tensor], lefts: Sequence[Tensor], rights: Sequence[Tensor]) -> None:
    """Add each expert's product in place."""
    for total, left, right in zip(sums, lefts, rights, strict=True):
        total.addmm_(left, right)


def _blocks(counts: list[int]) -> Iterator[tuple[slice, slice, list[int]]]:
    """Blocks of consecutive sorted pairs: pairs, experts, and how many pairs of the block each of these has.

    A block's border may cut an expert in two.
    """
    ends = list(accumulate(counts))
    for start in range(0, ends[-1], BLOCK_PAIRS):
        stop = min(start + BLOCK_PAIRS, ends[-1])
        first, last = bisect_right(ends, start), bisect_left(ends, stop)
        cuts = [start, *ends[first:last], stop]
        yield slice(start, stop), slice(first, last + 1), [after - before for before, after in pairwise(cuts)]
