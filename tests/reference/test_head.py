"""Output head against its reference: values and gradients through both outputs, over tiles."""

import math

import pytest
import torch
from kernel_check import LargestTensor, assert_as_accurate_as_reference, assert_equals_reference
from torch import Tensor

from segue.kernels.head import op as head
from segue.kernels.head.naive import naive_token_logprob
from segue.kernels.head.op import token_logprob


def make_inputs(num_tokens: int, width: int, vocabulary: int) -> tuple[list[Tensor], Tensor, Tensor]:
    """Hidden rows and weight; labels; temperatures from 0.3 to 2."""
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(num_tokens, width, generator=generator, dtype=torch.float64)
    weight = torch.randn(vocabulary, width, generator=generator, dtype=torch.float64)
    labels = torch.randint(vocabulary, (num_tokens,), generator=generator)
    temperature = 0.3 + 1.7 * torch.rand(num_tokens, generator=generator)
    return [hidden, weight], labels, temperature


@pytest.mark.parametrize("num_tokens", [0, 1, 63, 64, 65, 200])
@pytest.mark.parametrize("tile_tokens", [1, 64, 1000])
def test_equals_the_reference_in_fp64(num_tokens: int, tile_tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, labels, temperature = make_inputs(num_tokens, 12, 37)
    monkeypatch.setattr(head, "TILE_BYTES", tile_tokens * 37 * 8)
    assert_equals_reference(
        lambda h, w: token_logprob(h, w, labels, temperature),
        lambda h, w: naive_token_logprob(h, w, labels, temperature),
        inputs,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_is_as_accurate_as_the_reference(dtype: torch.dtype) -> None:
    inputs, labels, temperature = make_inputs(300, 96, 500)
    assert_as_accurate_as_reference(
        lambda h, w: token_logprob(h, w, labels, temperature),
        lambda h, w: naive_token_logprob(h, w, labels, temperature),
        [inputs[0], inputs[1] / 10],
        dtype,
    )


def test_backward_passes_gradcheck() -> None:
    inputs, labels, temperature = make_inputs(5, 3, 7)
    leaves = [tensor.requires_grad_() for tensor in inputs]
    assert torch.autograd.gradcheck(lambda h, w: token_logprob(h, w, labels, temperature), leaves)
    assert torch.autograd.gradcheck(lambda h, w: naive_token_logprob(h, w, labels, temperature), leaves)


def test_two_equal_logits_and_a_temperature_by_hand() -> None:
    # logits (2, 0) at temperature 2 are (1, 0): p = e / (e + 1); logits (0, 0) have entropy ln 2
    hidden = torch.tensor([[2.0], [0.0]]).double()
    weight = torch.tensor([[1.0], [0.0]]).double()
    logprob, entropy = token_logprob(hidden, weight, torch.tensor([0, 1]), torch.tensor([2.0, 1.0]))
    p = math.e / (math.e + 1)
    assert logprob.tolist() == pytest.approx([math.log(p), math.log(0.5)], rel=1e-14)
    assert entropy.tolist() == pytest.approx([-p * math.log(p) - (1 - p) * math.log(1 - p), math.log(2)], rel=1e-14)


def test_a_token_gets_no_gradient_from_another_and_keeps_its_bits() -> None:
    (hidden, weight), labels, temperature = make_inputs(70, 16, 30)
    leaf = hidden.float().requires_grad_()
    logprob, entropy = token_logprob(leaf, weight.float(), labels, temperature)
    (logprob[5] + entropy[5]).backward()
    assert leaf.grad is not None
    others = torch.cat([leaf.grad[:5], leaf.grad[6:]])
    assert torch.equal(others, torch.zeros_like(others)) and leaf.grad[5].abs().max() > 0
    edited = leaf.detach().clone()
    edited[6:] = 9.0
    again, entropy_again = token_logprob(edited, weight.float(), labels, temperature)
    assert torch.equal(again[:6], logprob[:6]) and torch.equal(entropy_again[:6], entropy[:6])


def test_a_label_of_probability_near_one_keeps_a_finite_gradient() -> None:
    leaf = torch.tensor([[200.0], [-200.0]], requires_grad=True)
    weight = torch.tensor([[1.0], [0.0]], requires_grad=True)
    logprob, entropy = token_logprob(leaf, weight, torch.tensor([0, 0]), torch.ones(2))
    assert logprob.tolist() == [0.0, -200.0] and entropy.tolist() == [0.0, 0.0]
    (logprob.sum() + entropy.sum()).backward()
    # the sure token has no gradient left; the impossible one has d logprob / d hidden = 1 - p = 1
    assert leaf.grad is not None and leaf.grad.flatten().tolist() == [0.0, 1.0]


def test_no_tensor_holds_the_logits_of_all_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    (hidden, weight), labels, temperature = make_inputs(400, 8, 50)
    leaves = [tensor.float().requires_grad_() for tensor in (hidden, weight)]
    monkeypatch.setattr(head, "TILE_BYTES", 100 * 50 * 4)
    with LargestTensor() as largest:
        logprob, entropy = token_logprob(*leaves, labels, temperature)
        (logprob.sum() + entropy.sum()).backward()
    # a tile of 100 tokens x 50 ids, not 400 x 50
    assert largest.numel == 100 * 50
