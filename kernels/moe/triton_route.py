"""The router's choice on a GPU in one launch, a program a token. E experts, K that a token takes."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from segue.kernels.moe.route import RENORMALIZE_EPS

_EPS = tl.constexpr(RENORMALIZE_EPS)


@triton.jit
def route_kernel(
    logits, bias, given, scores, expert_ids, weights, cutoff, scaling,
    E: tl.constexpr, K: tl.constexpr, BE: tl.constexpr, BK: tl.constexpr, RENORMALIZE: tl.constexpr,
    REPLAYS: tl.constexpr,
):  # fmt: skip
    """One token; grid (T)."""
    i_t = tl.program_id(0).to(tl.int64)
    e, j = tl.arange(0, BE), tl.arange(0, BK)
    score = tl.sigmoid(tl.load(logits + i_t * E + e, mask=e < E, other=0.0).to(tl.float32))
    tl.store(scores + i_t * E + e, score, mask=e < E)
    biased = tl.where(e < E, score + tl.load(bias + e, mask=e < E, other=0.0).to(tl.float32), float("-inf"))
    chosen = tl.zeros((BK,), tl.int32)
    for i in range(K):
        # the first of the largest; also where none is a number, an expert that exists
        best = tl.minimum(tl.min(tl.where(biased == tl.max(biased, 0), e, E - 1), 0), E - 1)
        chosen = tl.where(j == i, best, chosen)
        biased = tl.where(e == best, float("-inf"), biased)
    tl.store(cutoff + i_t, tl.max(biased, 0))
    if REPLAYS:
        chosen = tl.load(given + i_t * K + j, mask=j < K, other=0).to(tl.int32)
    tl.store(expert_ids + i_t * K + j, chosen.to(tl.int64), mask=j < K)
    weight = tl.sigmoid(tl.load(logits + i_t * E + chosen, mask=j < K, other=0.0).to(tl.float32))
    if RENORMALIZE:
        weight /= tl.sum(tl.where(j < K, weight, 0.0), 0) + _EPS
    tl.store(weights + i_t * K + j, weight * scaling, mask=j < K)


def triton_route(
    logits_TE: Tensor, bias_E: Tensor, *, top_k: int, renormalize: bool, scaling: float, replay_ids: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Scores [T, E], expert ids [T, k], weights [T, k], cutoffs [T], as `Routes` has them, in fp32; on one GPU."""
    T, E = logits_TE.shape
    device = logits_TE.device
    scores = torch.empty(T, E, dtype=torch.float32, device=device)
    expert_ids = torch.empty(T, top_k, dtype=torch.int64, device=device)
    weights = torch.empty(T, top_k, dtype=torch.float32, device=device)
    cutoff = torch.empty(T, dtype=torch.float32, device=device)
    if T:
        with torch.cuda.device_of(logits_TE):
            route_kernel[(T,)](
                logits_TE.contiguous(), bias_E.contiguous(),
                expert_ids if replay_ids is None else replay_ids.contiguous(), scores, expert_ids, weights, cutoff,
                scaling, E=E, K=top_k, BE=triton.next_power_of_2(E), BK=triton.next_power_of_2(top_k),
                RENORMALIZE=renormalize, REPLAYS=replay_ids is not None, num_warps=1 if E <= 256 else 4,
            )  # fmt: skip
    return scores, expert_ids, weights, cutoff
