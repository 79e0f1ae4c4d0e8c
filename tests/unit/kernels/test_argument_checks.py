"""Shapes that do not fit are refused with what was expected and what came."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from segue.kernels.attn_res.op import attn_res_mix
from segue.kernels.head.op import token_logprob
from segue.kernels.moe.op import experts, route
from segue.kernels.quantile.op import margin_histogram, quantile_bias
from segue.kernels.situ.op import situ_glu, swiglu

Z, IDS, WEIGHTS = torch.zeros(5, 3), torch.zeros(5, 2, dtype=torch.int64), torch.zeros(5, 2)
UP, DOWN = torch.zeros(4, 6, 3), torch.zeros(4, 3, 6)


@pytest.mark.parametrize("operator", [lambda a, b: situ_glu(a, b, 4.0, 25.0), swiglu])
def test_gated_activations_want_one_shape(operator: Callable[..., Tensor]) -> None:
    with pytest.raises(ValueError, match=r"one shape, got \(3, 4\) and \(4, 3\)"):
        operator(torch.zeros(3, 4), torch.zeros(4, 3))


def test_attn_res_wants_a_source_and_one_shape() -> None:
    weight = torch.ones(4)
    with pytest.raises(ValueError, match="at least one source"):
        attn_res_mix([], weight, weight, 1e-5)
    with pytest.raises(ValueError, match="one shape"):
        attn_res_mix([torch.zeros(3, 4), torch.zeros(2, 4)], weight, weight, 1e-5)
    with pytest.raises(ValueError, match=r"must be \[D\]"):
        attn_res_mix([torch.zeros(3, 4)], weight, torch.ones(5), 1e-5)


def test_head_wants_a_label_and_a_temperature_for_each_token() -> None:
    with pytest.raises(ValueError, match=r"must be \[3\], got \(2,\) and \(3,\)"):
        token_logprob(torch.zeros(3, 4), torch.zeros(7, 4), torch.zeros(2, dtype=torch.int64), torch.ones(3))
    with pytest.raises(ValueError, match="must fit"):
        token_logprob(torch.zeros(3, 4), torch.zeros(7, 5), torch.zeros(3, dtype=torch.int64), torch.ones(3))


@pytest.mark.parametrize("top_k", [0, 4])
def test_route_wants_a_cutoff_beyond_the_chosen(top_k: int) -> None:
    with pytest.raises(ValueError, match=rf"top_k must be in \[1, 3\] and bias \[4\], got {top_k}"):
        route(torch.zeros(5, 4), torch.zeros(4), top_k=top_k, renormalize=True, scaling=1.0, replay_ids=None)


def test_route_wants_a_row_of_replayed_ids_for_each_token() -> None:
    with pytest.raises(ValueError, match=r"replay_ids must be \[5, 2\], got \(4, 2\)"):
        route(torch.zeros(5, 4), torch.zeros(4), top_k=2, renormalize=True, scaling=1.0, replay_ids=IDS[:4])


def test_experts_want_matching_matrices_and_both_caps() -> None:
    with pytest.raises(ValueError, match=r"\[E, F, L\]"):
        experts(Z, IDS, WEIGHTS, UP, UP, UP, beta=4.0, linear_beta=25.0)
    with pytest.raises(ValueError, match=r"must be \[5, k\], got \(5, 2\) and \(5, 1\)"):
        experts(Z, IDS, WEIGHTS[:, :1], UP, UP, DOWN, beta=4.0, linear_beta=25.0)
    with pytest.raises(ValueError, match=r"both be None, got 4\.0, None"):
        experts(Z, IDS, WEIGHTS, UP, UP, DOWN, beta=4.0, linear_beta=None)


def test_quantile_wants_a_cutoff_a_token_and_a_bias_an_expert() -> None:
    with pytest.raises(ValueError, match=r"must be \[5\] and \[3\], got \(4,\) and \(3,\)"):
        margin_histogram(Z, torch.zeros(4), torch.zeros(3), 10)
    with pytest.raises(ValueError, match="num_bins must be at least 1, got 0"):
        margin_histogram(Z, torch.zeros(5), torch.zeros(3), 0)
    with pytest.raises(ValueError, match=r"bias must be \[3\], got \(4,\)"):
        quantile_bias(torch.zeros(3, 10, dtype=torch.int64), torch.zeros(4), 1)
