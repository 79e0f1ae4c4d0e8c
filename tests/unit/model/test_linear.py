"""Joint products of a decoding step: what they equal, and when they are made again."""

import pytest
import torch

from segue.model.layers.linear import Derived, JointLinear, Linear
from segue.model.weights import copy_weights, pack_weights


def make_linears(dtype: torch.dtype = torch.float64) -> list[Linear]:
    generator = torch.Generator().manual_seed(0)
    linears = [Linear(5, num_outputs, dtype) for num_outputs in (3, 1, 4)]
    with torch.no_grad():
        for linear in linears:
            linear.weight.copy_(torch.randn(linear.weight.shape, generator=generator))
    return linears


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_joint_product_holds_each_product_in_order(dtype: torch.dtype) -> None:
    linears = make_linears(dtype)
    x = torch.randn(7, 5, generator=torch.Generator().manual_seed(1)).to(dtype)
    with torch.no_grad():
        outputs = JointLinear(*linears)(x)
        for output, linear in zip(outputs, linears, strict=True):
            assert torch.allclose(output, x @ linear.weight.T, rtol=1e-12, atol=1e-14)


def test_a_changed_weight_is_noticed_however_it_changed() -> None:
    linear = make_linears()[0]
    double = Derived(lambda weight: 2 * weight, linear)
    with torch.inference_mode():
        assert torch.equal(double(), 2 * linear.weight)
        kept = double()
        assert double() is kept
    update = pack_weights({"weight": torch.ones(3, 5, dtype=torch.float64)})
    copy_weights(update, {"weight": linear.weight.detach()})
    assert torch.equal(double(), torch.full((3, 5), 2.0, dtype=torch.float64))
    linear.load_state_dict({"weight": torch.zeros(3, 5, dtype=torch.float64)})
    assert torch.equal(double(), torch.zeros(3, 5, dtype=torch.float64))
    with torch.inference_mode():
        linear.weight.fill_(4.0)
        assert double().unique().tolist() == [8.0]
    linear.weight.data = torch.full((3, 5), 5.0, dtype=torch.float64)
    assert double().unique().tolist() == [10.0]


def test_what_is_derived_anew_lies_where_it_lay() -> None:
    """A captured step reads there."""
    linear = make_linears()[0]
    with torch.inference_mode():
        kept = Derived(lambda weight: 2 * weight, linear)
        place = kept().data_ptr()
        linear.weight.fill_(4.0)
        assert kept().data_ptr() == place
        assert kept().unique().tolist() == [8.0]
