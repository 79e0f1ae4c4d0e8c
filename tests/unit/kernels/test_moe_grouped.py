"""The GPU's form of the experts, whose operators exist on a CPU too: outputs and gradients against fp64."""

import pytest
import torch
from torch import Tensor

from segue.kernels.moe.grouped import grouped_experts, grouped_experts_backward
from segue.kernels.moe.op import experts

CAPS = (4.0, 25.0)


def make_inputs(num_tokens: int) -> list[Tensor]:
    """z, expert ids, weights, w1, w3, w2; the last expert has no tokens."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        return (torch.randn(*shape, generator=generator) * scale).bfloat16()

    ids = torch.stack([torch.randperm(7, generator=generator)[:3] for _ in range(num_tokens)])
    w1, w3, w2 = normal(8, 32, 16, scale=0.25), normal(8, 32, 16, scale=0.25), normal(8, 16, 32, scale=0.2)
    return [normal(num_tokens, 16), ids, torch.rand(num_tokens, 3, generator=generator), w1, w3, w2]


@pytest.mark.parametrize("caps", [None, CAPS])
@pytest.mark.parametrize("num_tokens", [1, 50])
def test_values_and_gradients_are_those_of_fp64_to_the_rounding_of_bf16(num_tokens, caps):
    z, ids, *others = make_inputs(num_tokens)
    grad = torch.randn(num_tokens, 16, generator=torch.Generator().manual_seed(1)).bfloat16()
    leaves = [x.double().requires_grad_() for x in (z, *others)]
    beta, linear_beta = caps or (None, None)
    truth = experts(leaves[0], ids, *leaves[1:], beta=beta, linear_beta=linear_beta)
    truths = [truth, *torch.autograd.grad(truth, leaves, grad.double())]
    found = grouped_experts(z, ids, *others, caps)
    results = [found, *grouped_experts_backward(grad, z, ids, *others, caps)]
    for result, expected in zip(results, truths, strict=True):
        error = (result.double() - expected).square().mean().sqrt() / expected.square().mean().sqrt()
        assert error < 1e-2
    for weight_grad in results[3:]:
        assert weight_grad[7].eq(0).all()
