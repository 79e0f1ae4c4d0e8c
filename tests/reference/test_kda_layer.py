"""A KDA layer's decoding step in both of its forms: an operator after the other, and all of them in place over a pool.

Covered: outputs, states, slots of other sequences. Not covered: the kernel behind the second form, which runs on a GPU
only (test_kda_triton.py, benchmarks/bench_kda.py).
"""

import pytest
import torch
from model_cases import make_config, make_linear_config, make_model, make_tokens
from torch import Tensor

from segue.conf.model_config import ModelConfig
from segue.model.inputs import PackedInputs
from segue.model.layers.kda import KimiDeltaAttention
from segue.model.pool import PooledStore, Slot, StatePool
from segue.model.routing import Routing


def make_store(config: ModelConfig) -> tuple[StatePool, list[Slot], PooledStore]:
    """Three sequences of unequal length in a pool, and the store of a forward of the last and the first of them."""
    pool = StatePool(config, num_slots=5, num_pages=12, page_size=4, dtype=torch.float64)
    slots = [pool.allocate() for _ in range(3)]
    model, tokens = make_model(config), [make_tokens(count, seed=count) for count in (5, 9, 2)]
    with torch.no_grad():
        model(PackedInputs.pack(tokens), pool.view(slots), Routing())
        store = pool.view([slots[2], slots[0]]).open(PackedInputs.pack([make_tokens(1, seed=0)] * 2))
    return pool, slots, store


@pytest.mark.parametrize("config", [make_config(), make_linear_config()])
def test_a_step_in_place_is_a_step_apart(config: ModelConfig) -> None:
    layer = next(part for part in make_model(config).modules() if isinstance(part, KimiDeltaAttention))
    width = layer.num_heads * layer.head_dim
    generator = torch.Generator().manual_seed(5)
    sizes = (3 * width, width, layer.num_heads, width)
    projections = [torch.randn(2, size, generator=generator, dtype=torch.float64) for size in sizes]
    results: list[Tensor] = []
    pools = []
    for step in (layer._step_apart, layer._step_in_place):
        pool, slots, store = make_store(config)
        before = [tensor[layer.kda_index].clone() for tensor in (pool.recurrent, pool.conv)]
        with torch.no_grad():
            results.append(step(*projections, store))
        pools.append((pool.recurrent[layer.kda_index], pool.conv[layer.kda_index]))
        for tensor, old in zip(pools[-1], before, strict=True):
            assert torch.equal(tensor[slots[1].index], old[slots[1].index])
            assert not torch.equal(tensor[slots[0].index], old[slots[0].index])
    assert torch.equal(*results)
    for apart, in_place in zip(*pools, strict=True):
        assert torch.equal(apart, in_place)
