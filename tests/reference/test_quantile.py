"""Quantile balancing: histogram against exact quantile, invariance to splitting, the law of the violation."""

import math

import pytest
import torch
from torch import Tensor

from segue.kernels.moe.op import Routes, route
from segue.kernels.quantile.naive import naive_quantile_bias
from segue.kernels.quantile.op import margin_histogram, quantile_bias


def make_routes(num_tokens: int, num_experts: int, top_k: int, bias: Tensor, *, skew: float, seed: int) -> Routes:
    """Routes of continuous random logits whose experts differ by `skew` standard deviations."""
    generator = torch.Generator().manual_seed(seed)
    preference = skew * torch.randn(num_experts, generator=torch.Generator().manual_seed(0))
    logits = torch.randn(num_tokens, num_experts, generator=generator) + preference
    return route(logits, bias, top_k=top_k, renormalize=True, scaling=1.0, replay_ids=None)


def violation(routes: Routes) -> float:
    """Largest load over the mean load, minus one."""
    num_experts = routes.scores.shape[1]
    load = torch.bincount(routes.expert_ids.flatten(), minlength=num_experts).double()
    return float(load.max() / load.mean()) - 1.0


@pytest.mark.parametrize("num_bins", [100, 1000])
def test_the_histogram_gives_the_exact_bias_within_a_bin(num_bins: int) -> None:
    bias = 0.2 * torch.randn(32, generator=torch.Generator().manual_seed(11), dtype=torch.float64)
    routes = make_routes(20_000, 32, 4, bias, skew=1.0, seed=12)
    width = float(bias.max() - bias.min() + 2) / num_bins
    result = quantile_bias(margin_histogram(routes.scores, routes.cutoff, bias, num_bins), bias, 4)
    exact = naive_quantile_bias(routes.scores, routes.cutoff, 4)
    # each expert's quantile is off by less than a bin, and so is the mean that is taken off
    assert (result - exact).abs().max() <= 2 * width
    assert ((result - exact) - (result - exact).mean()).abs().max() <= width
    assert abs(float(result.mean())) < 1e-12


def test_four_margins_by_hand() -> None:
    # bias 0: range [-1, 1] in 4 bins of 0.5; a column of margins an expert
    margins = torch.tensor([[-0.75, 0.1], [-0.25, 0.1], [-0.2, 0.1], [0.6, 0.1]])
    cutoff = torch.full((4,), 0.5)
    histogram = margin_histogram(cutoff.unsqueeze(1) - margins, cutoff, torch.zeros(2), 4)
    assert histogram.tolist() == [[1, 2, 0, 1], [0, 0, 4, 0]]
    # q = 4 * 1 / 2 = 2. Expert 0: bin 1, (2 - 1) / 2 into it: -0.5 + 0.25 = -0.25.
    # Expert 1: bin 2, 2 / 4 into it: 0.25. Their mean is 0.
    assert quantile_bias(histogram, torch.zeros(2), 1).tolist() == [-0.25, 0.25]


@pytest.mark.parametrize("cuts", [[5000], [1, 1, 4998], [0, 1700, 3300]])
def test_any_split_into_micro_steps_gives_the_same_bias(cuts: list[int]) -> None:
    bias = 0.1 * torch.randn(16, generator=torch.Generator().manual_seed(13))
    routes = make_routes(5000, 16, 2, bias, skew=1.0, seed=14)
    whole = margin_histogram(routes.scores, routes.cutoff, bias, 500)
    parts = zip(routes.scores.split(cuts), routes.cutoff.split(cuts), strict=True)
    total = sum(margin_histogram(scores, cutoff, bias, 500) for scores, cutoff in parts)
    assert isinstance(total, Tensor) and torch.equal(total, whole)
    assert torch.equal(quantile_bias(total, bias, 2), quantile_bias(whole, bias, 2))
    assert whole.sum(1).tolist() == [5000] * 16


def test_a_share_of_the_batch_on_each_rank_gives_the_same_bias() -> None:
    # loads of the ranks are unequal and so are their margins; only the sum of the histograms counts
    bias = torch.zeros(16)
    routes = [make_routes(n, 16, 2, bias, skew=s, seed=n) for n, s in ((300, 0.5), (1200, 2.0))]
    parts = [margin_histogram(r.scores, r.cutoff, bias, 200) for r in routes]
    scores, cutoff = torch.cat([r.scores for r in routes]), torch.cat([r.cutoff for r in routes])
    assert torch.equal(parts[0] + parts[1], margin_histogram(scores, cutoff, bias, 200))


def test_violation_after_five_steps_from_a_skewed_router() -> None:
    num_experts, top_k, num_tokens, num_bins = 896, 16, 50_000, 1000
    bias = torch.zeros(num_experts)
    seen = []
    for step in range(6):
        histogram = torch.zeros(num_experts, num_bins, dtype=torch.int64)
        load = torch.zeros(num_experts, dtype=torch.int64)
        for part in range(5):
            routes = make_routes(num_tokens // 5, num_experts, top_k, bias, skew=1.0, seed=100 * step + part)
            load += torch.bincount(routes.expert_ids.flatten(), minlength=num_experts)
            if step < 5:
                histogram += margin_histogram(routes.scores, routes.cutoff, bias, num_bins)
        seen.append(float(load.max() * num_experts / load.sum()) - 1.0)
        if step < 5:
            bias = quantile_bias(histogram, bias, top_k)
    # largest of n Poisson-like loads of mean mk/n stands sqrt(2 ln n / (mk/n)) above it; 893 tokens an expert here
    law = 1.5 * math.sqrt(2 * math.log(num_experts) / (num_tokens * top_k / num_experts)) + 0.05
    assert seen[0] > 10 * law and seen[5] <= law


def test_the_new_bias_keeps_its_power_for_experts_never_or_always_chosen() -> None:
    # expert 0 is chosen by every token and expert 3 by none; the next step spreads the load evenly
    generator = torch.Generator().manual_seed(15)
    logits = 0.3 * torch.randn(4000, 4, generator=generator) + torch.tensor([4.0, 0.0, 0.0, -4.0])
    bias = torch.zeros(4)
    loads = []
    for _ in range(8):
        routes = route(logits, bias, top_k=1, renormalize=False, scaling=1.0, replay_ids=None)
        loads.append(torch.bincount(routes.expert_ids.flatten(), minlength=4).tolist())
        bias = quantile_bias(margin_histogram(routes.scores, routes.cutoff, bias, 2000), bias, 1)
    assert loads[0] == [4000, 0, 0, 0]
    assert max(loads[-1]) <= 1.15 * 1000 and min(loads[-1]) >= 0.85 * 1000


def test_an_empty_histogram_leaves_the_bias_as_it_is() -> None:
    bias = torch.tensor([0.3, -0.1, 0.5])
    empty = margin_histogram(torch.zeros(0, 3), torch.zeros(0), bias, 10)
    result = quantile_bias(empty, bias, 1)
    assert torch.equal(result, bias) and result is not bias


def test_the_bins_follow_the_bias() -> None:
    # range [min - 1, max + 1] = [-2, 1.5]: every margin of sigmoid scores under this bias fits, the extreme ones too
    bias = torch.tensor([-1.0, 0.5])
    histogram = margin_histogram(torch.tensor([[1.0, 0.0]]), torch.tensor([-1.0]), bias, 7)
    # margins -2 and -1: bins 0 and 2 of width 0.5
    assert histogram.tolist() == [[1, 0, 0, 0, 0, 0, 0], [0, 0, 1, 0, 0, 0, 0]]
    top = margin_histogram(torch.tensor([[0.0, 1.0]]), torch.tensor([1.5]), bias, 7)
    # margin 1.5 stands on the upper border and counts in the last bin; 0.5 opens bin 5
    assert top.tolist() == [[0, 0, 0, 0, 0, 0, 1], [0, 0, 0, 0, 0, 1, 0]]


def test_the_bias_keeps_its_dtype() -> None:
    histogram = torch.ones(3, 4, dtype=torch.int64)
    for dtype in (torch.float32, torch.float64):
        assert quantile_bias(histogram, torch.zeros(3, dtype=dtype), 1).dtype == dtype
