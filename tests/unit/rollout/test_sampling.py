"""Sampling: frequencies, log-probabilities, excluded tokens, truncation, broken logits."""

import math

import pytest
import torch
from rollout_cases import make_sampling

from segue.rollout.sampling import sample, take_best, truncate


def test_each_token_owns_its_share_of_the_noise():
    # probabilities 1/8, 1/2, 0, 3/8: borders at 0.125, 0.625, 0.625, 1
    logits = torch.tensor([1.0, 4.0, 0.0, 3.0]).log().repeat(8, 1)
    noise = torch.tensor([0.0, 0.1249, 0.1251, 0.6249, 0.6251, 0.9, 1 - 2**-53, 0.5], dtype=torch.float64)
    ids, logprobs = sample(logits, noise)
    assert ids.tolist() == [0, 0, 1, 1, 3, 3, 3, 1]
    expected = [math.log(p) for p in (1 / 8, 1 / 8, 1 / 2, 1 / 2, 3 / 8, 3 / 8, 3 / 8, 1 / 2)]
    assert logprobs.tolist() == pytest.approx(expected, abs=1e-6)


def test_log_probabilities_are_those_of_log_softmax():
    generator = torch.Generator().manual_seed(0)
    logits = 10 * torch.randn(50, 300, generator=generator, dtype=torch.float64)
    ids, logprobs = sample(logits, torch.rand(50, generator=generator, dtype=torch.float64))
    reference = logits.log_softmax(-1).gather(-1, ids[:, None])[:, 0]
    assert (logprobs - reference).abs().max() < 1e-12
    half = logits.to(torch.bfloat16)
    ids, logprobs = sample(half, torch.rand(50, generator=generator, dtype=torch.float64))
    assert logprobs.dtype is torch.float32
    assert (logprobs - half.float().log_softmax(-1).gather(-1, ids[:, None])[:, 0]).abs().max() < 1e-5


def test_the_best_token_is_the_lowest_of_equals():
    ids, logprobs = take_best(torch.tensor([[0.0, 2.0, 2.0], [5.0, 0.0, 0.0]]))
    assert ids.tolist() == [1, 0]
    # 1 / (2 + e^-2) and 1 / (1 + 2 e^-5)
    assert logprobs.tolist() == pytest.approx([-math.log(2 + math.exp(-2)), -math.log(1 + 2 * math.exp(-5))], abs=1e-6)


def test_truncation_keeps_the_smallest_set_that_reaches_the_mass():
    # probabilities 0.5, 0.3, 0.15, 0.05 in another order
    logits = torch.tensor([[0.15, 0.5, 0.05, 0.3]]).log()

    def kept(**how):
        return [not math.isinf(value) for value in truncate(logits, **how)[0].tolist()]

    assert kept(top_p=0.5, top_k=None) == [False, True, False, False]
    assert kept(top_p=0.6, top_k=None) == [False, True, False, True]
    assert kept(top_p=0.94, top_k=None) == [True, True, False, True]
    assert kept(top_p=1e-9, top_k=None) == [False, True, False, False]
    assert kept(top_p=1.0, top_k=3) == [True, True, False, True]
    # among the two likeliest the masses are 0.625 and 0.375
    assert kept(top_p=0.62, top_k=2) == [False, True, False, False]


def test_logits_that_are_not_finite_show_in_the_log_probability():
    logits = torch.tensor([[0.0, math.nan], [math.inf, 0.0], [0.0, 0.0]])
    _, logprobs = sample(logits, torch.full((3,), 0.5, dtype=torch.float64))
    assert torch.isfinite(logprobs).tolist() == [False, False, True]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"temperature": 0.0}, "temperature must be above 0, got 0.0"),
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1, got 0"),
        ({"top_p": 0.0, "training": False}, r"top_p must be in \(0, 1\], got 0.0"),
        ({"top_k": 0, "training": False}, "top_k must be at least 1, got 0"),
        ({"top_p": 0.9}, "must be left alone in training"),
        ({"top_k": 5}, "must be left alone in training"),
        ({"greedy": True}, "must be left alone in training"),
    ],
)
def test_what_cannot_be_sampled_from_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        make_sampling(**changes)
