"""What the sweeps allocate: nothing but rows and their gradients has an axis of the trajectory's size.

Every tensor that any operation returns during a step is seen by a dispatch mode. Trajectory-sized is an axis longer
than anything that belongs to a segment. What is measured in megabytes is a benchmark's (benchmarks/).
"""

from collections import Counter

import torch
from learner_cases import make_batch, make_config, make_model, sweep_step
from torch.utils._python_dispatch import TorchDispatchMode

LENGTH, SEGMENT = 4096, 64


class SizeWatch(TorchDispatchMode):
    """Counts tensors with an axis above a size, by shape, and what made them."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.seen: Counter[tuple[tuple[int, ...], str]] = Counter()

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        result = function(*arguments, **(keywords or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, torch.Tensor) and max(tensor.shape, default=0) > self.size:
                self.seen[tuple(tensor.shape), str(function)] += 1
        return result


def test_only_rows_their_gradients_and_label_arrays_grow_with_the_trajectory():
    config = make_config(num_hidden_layers=2)
    model, batch = make_model(config, torch.float32), make_batch([LENGTH])
    # above all sizes of the model and of a segment, below half the trajectory
    with SizeWatch(LENGTH // 4) as watch:
        sweep_step(
            model,
            batch,
            lambda arrays: arrays.logprob.sum(),
            segment_tokens=SEGMENT,
            micro_step_tokens=SEGMENT,
        )
    row, number = (config.latent_row_size,), ()
    assert {shape[1:] for shape, _ in watch.seen} == {row, number}
    # rows are stored once, and their gradients summed in one place; the other zeros are what autograd returns for the
    # rows before each of the later segments (the tensors are named by the operations that allocate)
    stored = (LENGTH - SEGMENT, config.latent_row_size)
    made = Counter({name: count for (shape, name), count in watch.seen.items() if shape == stored})
    assert made["aten.empty.memory_format"] == 1
    assert made["aten.zeros_like.default"] == 2
    assert made["aten.cat.default"] == made["aten.clone.default"] == made["aten.stack.default"] == 0
