"""Joint products of a decoding step: what they equal, and when they are made again."""

import pytest
import torch

from segue.model.layers.linear import Derived, JointLinear, Linear, join_weights, side_by_side
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


def test_joined_weights_multiply_as_one_and_keep_names_values_and_changes() -> None:
    linears = make_linears(torch.bfloat16)
    x = torch.randn(7, 5, generator=torch.Generator().manual_seed(1)).bfloat16()
    model = torch.nn.Module()
    model.parts = torch.nn.ModuleList(linears)
    model._joint = JointLinear(*linears)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    join_weights(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with torch.inference_mode():
        linears[1].weight.fill_(2.0)
        first, second, third = model._joint(x)
        assert torch.allclose(second, x.sum(1, keepdim=True) * 2.0, rtol=2e-2, atol=1e-2)
        assert side_by_side(first, second, third).data_ptr() == first.data_ptr()
        joint = torch.cat([first, second, third], dim=1)
        assert torch.equal(side_by_side(first, second, third), joint)
        assert torch.equal(side_by_side(first, third), torch.cat([first, third], dim=1))
