"""Routing and experts against their references; which bits may and may not move."""

import pytest
import torch
from kernel_check import LargestTensor, assert_as_accurate_as_reference, assert_equals_reference
from torch import Tensor

from segue.kernels.moe.naive import naive_experts, naive_route
from segue.kernels.moe.op import experts, route

CAPS = [(4.0, 25.0), (None, None)]


def make_logits(num_tokens: int, num_experts: int, seed: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(num_tokens, num_experts, generator=generator, dtype=torch.float64)
    return logits, 0.3 * torch.randn(num_experts, generator=generator, dtype=torch.float64)


def make_experts(
    num_tokens: int, num_experts: int, top_k: int, width: int, hidden: int, used: int | None = None
) -> tuple[list[Tensor], Tensor]:
    """Inputs (z, weights, w1, w3, w2) and ids among the first `used` experts."""
    generator = torch.Generator().manual_seed(5)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    ids = torch.rand(num_tokens, used or num_experts, generator=generator).argsort(1)[:, :top_k]
    weights = torch.rand(num_tokens, top_k, generator=generator, dtype=torch.float64)
    matrices = [normal(num_experts, hidden, width), normal(num_experts, hidden, width)]
    matrices.append(normal(num_experts, width, hidden))
    return [normal(num_tokens, width), weights, *(matrix / width**0.5 for matrix in matrices)], ids


def pair(ids: Tensor, caps: tuple[float | None, float | None]) -> tuple:
    def fast(z: Tensor, weights: Tensor, w1: Tensor, w3: Tensor, w2: Tensor) -> Tensor:
        return experts(z, ids, weights, w1, w3, w2, beta=caps[0], linear_beta=caps[1])

    def naive(z: Tensor, weights: Tensor, w1: Tensor, w3: Tensor, w2: Tensor) -> Tensor:
        return naive_experts(z, ids, weights, w1, w3, w2, *caps)

    return fast, naive


@pytest.mark.parametrize("renormalize", [True, False])
@pytest.mark.parametrize("num_tokens", [0, 1, 65])
@pytest.mark.parametrize("replay", [True, False])
def test_route_equals_the_reference_in_fp64(num_tokens: int, renormalize: bool, replay: bool) -> None:
    logits, bias = make_logits(num_tokens, 32)
    ids = torch.rand(num_tokens, 32, generator=torch.Generator().manual_seed(6)).argsort(1)[:, :4] if replay else None

    def weights(logits: Tensor) -> Tensor:
        return route(logits, bias, top_k=4, renormalize=renormalize, scaling=2.5, replay_ids=ids).weights

    def naive_weights(logits: Tensor) -> Tensor:
        return naive_route(logits, bias, 4, renormalize, 2.5, ids)[2]

    assert_equals_reference(weights, naive_weights, [logits])
    routes = route(logits, bias, top_k=4, renormalize=renormalize, scaling=2.5, replay_ids=ids)
    scores, naive_ids, _, cutoff = naive_route(logits, bias, 4, renormalize, 2.5, ids)
    # each rounds the logistic function in its own way
    assert torch.allclose(routes.scores, scores, rtol=1e-15, atol=0)
    assert torch.allclose(routes.cutoff, cutoff, rtol=1e-15, atol=0)
    assert torch.equal(routes.expert_ids, naive_ids) and routes.expert_ids.dtype == torch.int64


@pytest.mark.parametrize("renormalize", [True, False])
def test_route_backward_passes_gradcheck(renormalize: bool) -> None:
    logits, bias = make_logits(3, 6)

    def weights(logits: Tensor) -> Tensor:
        return route(logits, bias, top_k=2, renormalize=renormalize, scaling=1.5, replay_ids=None).weights

    assert torch.autograd.gradcheck(weights, [logits.requires_grad_()])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_route_is_as_accurate_as_the_reference(dtype: torch.dtype) -> None:
    logits, bias = make_logits(500, 32)
    ids = route(logits, bias, top_k=4, renormalize=True, scaling=1.0, replay_ids=None).expert_ids
    assert_as_accurate_as_reference(
        lambda x: route(x, bias.float(), top_k=4, renormalize=True, scaling=1.0, replay_ids=ids).weights,
        lambda x: naive_route(x, bias.float(), 4, True, 1.0, ids)[2],
        [logits],
        dtype,
    )


def test_the_bias_moves_the_choice_and_no_weight() -> None:
    # sigmoid scores 0.5, 0.6.., expert 0 lifted by the bias over all others
    scores = torch.tensor([[0.5, 0.6, 0.7, 0.8]], dtype=torch.float64)
    bias = torch.tensor([0.35, 0.0, 0.0, 0.0], dtype=torch.float64)
    routes = route(scores.logit(), bias, top_k=2, renormalize=True, scaling=1.0, replay_ids=None)
    # s + b = 0.85, 0.6, 0.7, 0.8: chosen 0 and 3, cutoff 0.7; weights 0.5 / 1.3 and 0.8 / 1.3
    assert routes.expert_ids.tolist() == [[0, 3]]
    assert routes.cutoff.item() == pytest.approx(0.7, rel=1e-12)
    assert routes.weights.tolist()[0] == pytest.approx([0.5 / 1.3, 0.8 / 1.3], rel=1e-12)


def test_route_runs_896_experts_and_the_gradient_reaches_the_chosen_logits_alone() -> None:
    logits, bias = make_logits(20, 896)
    leaf = logits.requires_grad_()
    routes = route(leaf, bias, top_k=16, renormalize=True, scaling=1.0, replay_ids=None)
    (routes.weights * torch.arange(16)).sum().backward()
    assert leaf.grad is not None
    chosen = torch.zeros(20, 896, dtype=torch.bool).scatter(1, routes.expert_ids, True)
    assert torch.equal(leaf.grad != 0, chosen)
    assert not routes.scores.requires_grad and not routes.cutoff.requires_grad


@pytest.mark.parametrize("caps", CAPS)
@pytest.mark.parametrize("num_tokens", [0, 1, 16, 128, 500])
def test_experts_equal_the_reference_in_fp64(num_tokens: int, caps: tuple[float | None, float | None]) -> None:
    inputs, ids = make_experts(num_tokens, 8, 3, 10, 14)
    assert_equals_reference(*pair(ids, caps), inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_tokens", [24, 600])
def test_experts_are_as_accurate_as_the_reference(num_tokens: int, dtype: torch.dtype) -> None:
    inputs, ids = make_experts(num_tokens, 32, 4, 48, 48)
    assert_as_accurate_as_reference(*pair(ids, CAPS[0]), inputs, dtype)


@pytest.mark.parametrize("caps", CAPS)
def test_experts_backward_passes_gradcheck(caps: tuple[float | None, float | None]) -> None:
    inputs, ids = make_experts(4, 3, 2, 3, 2)
    for operator in pair(ids, caps):
        assert torch.autograd.gradcheck(operator, [tensor.requires_grad_() for tensor in inputs])


@pytest.mark.parametrize("num_tokens", [6, 400])
def test_an_expert_without_tokens_gets_a_zero_gradient(num_tokens: int) -> None:
    inputs, ids = make_experts(num_tokens, 8, 2, 6, 5, used=3)
    leaves = [tensor.requires_grad_() for tensor in inputs]
    pair(ids, CAPS[0])[0](*leaves).sum().backward()
    for matrix in leaves[2:]:
        assert matrix.grad is not None
        assert torch.equal(matrix.grad[3:], torch.zeros_like(matrix.grad[3:]))
        assert matrix.grad[:3].abs().amin(dim=(1, 2)).min() > 0


def test_a_skewed_load_is_never_padded_to_many_times_its_size() -> None:
    # 100 tokens, all to the same two of 64 experts: padding would take 64 x 100 rows for 200 pairs of width 6
    inputs, _ = make_experts(100, 64, 2, 6, 5)
    fast, naive = pair(torch.tensor([[3, 9]]).expand(100, 2), CAPS[0])
    with LargestTensor() as largest:
        fast(*inputs)
    assert largest.numel <= 8 * 200 * 6
    assert_equals_reference(fast, naive, inputs)


def test_experts_run_896_experts() -> None:
    inputs, ids = make_experts(30, 896, 16, 6, 5)
    assert_equals_reference(*pair(ids, CAPS[0]), inputs)


@pytest.mark.parametrize("num_tokens", [16, 128, 700])
def test_same_input_twice_gives_the_same_bits(num_tokens: int) -> None:
    inputs, ids = make_experts(num_tokens, 32, 4, 48, 48)
    runs = []
    for _ in range(2):
        leaves = [tensor.float().requires_grad_() for tensor in inputs]
        out = pair(ids, CAPS[0])[0](*leaves)
        runs.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
    assert all(torch.equal(first, second) for first, second in zip(*runs, strict=True))


@pytest.mark.parametrize("num_tokens", [20, 300, 1000])
def test_grad_mode_does_not_change_the_bits(num_tokens: int) -> None:
    inputs, ids = make_experts(num_tokens, 32, 4, 48, 48)
    leaves = [tensor.float().requires_grad_() for tensor in inputs]
    with torch.no_grad():
        swept = pair(ids, CAPS[0])[0](*leaves)
    assert torch.equal(swept, pair(ids, CAPS[0])[0](*leaves))


def test_a_token_gets_no_gradient_from_another() -> None:
    inputs, ids = make_experts(50, 8, 2, 6, 5)
    leaf = inputs[0].requires_grad_()
    pair(ids, CAPS[0])[0](leaf, *inputs[1:])[7].sum().backward()
    assert leaf.grad is not None
    others = torch.cat([leaf.grad[:7], leaf.grad[8:]])
    assert torch.equal(others, torch.zeros_like(others)) and leaf.grad[7].abs().max() > 0


def test_an_edited_token_moves_others_by_rounding_only() -> None:
    inputs, ids = make_experts(300, 8, 2, 6, 5)
    fast, _ = pair(ids, CAPS[0])
    edited = [inputs[0].clone(), *inputs[1:]]
    edited[0][150:] = 2.0
    other_ids = ids.clone()
    other_ids[150:] = torch.tensor([0, 1])
    before, after = fast(*inputs)[:150], pair(other_ids, CAPS[0])[0](*edited)[:150]
    assert (before - after).abs().max() <= 1e-13 * before.abs().max()
