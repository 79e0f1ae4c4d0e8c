"""What is remembered of first uses: on one rank, told to any, until all tokens are too old, and over a checkpoint."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch

from segue.learner.first_values import FirstValues

SIZES = {"a#0": 3, "a#1": 2, "b#0": 2}
OWNS = [{"a#1": torch.tensor([4.0, 5.0])}, {"a#0": torch.tensor([1.0, 2.0, 3.0]), "b#0": torch.tensor([6.0])}]


def on_ranks(num_ranks: int, work: Callable[[FirstValues, int], object]) -> list:
    """What each rank's work gives; their sums meet."""
    barrier, brought = Barrier(num_ranks, timeout=10), [torch.zeros(0)] * num_ranks

    def run(rank: int) -> object:
        def sum_over_ranks(flat: torch.Tensor) -> torch.Tensor:
            brought[rank] = flat.clone()
            barrier.wait()
            flat.copy_(sum(brought))
            barrier.wait()
            return flat

        return work(FirstValues(1, sum_over_ranks), rank)

    with ThreadPoolExecutor(num_ranks) as pool:
        return list(pool.map(run, range(num_ranks)))


def told(memory: FirstValues, *names: str) -> list[list[float] | None]:
    found = memory.of(names, names)
    return [found[name].tolist() if name in found else None for name in names]


def test_a_rank_is_told_what_another_said_and_keeps_what_is_its_own() -> None:
    def work(memory: FirstValues, rank: int):
        memory.keep(SIZES, OWNS[rank], step=0)
        # the next time each runs what the other had
        others = OWNS[1 - rank].keys() | {"c#0"}
        found = memory.of(["c#0", "b#0", "a#1", "a#0"], others)
        return {name: values.tolist() for name, values in found.items()}, memory.tensor("first_value/a#0").tolist()

    first, second = on_ranks(2, work)
    # sizes are upper bounds: the last trajectory has one place only
    assert first == ({"a#0": [1.0, 2.0, 3.0], "b#0": [6.0, 0.0]}, [1.0, 2.0, 3.0])
    assert second == ({"a#1": [4.0, 5.0]}, [1.0, 2.0, 3.0])


def test_the_first_word_stays_and_is_forgotten_when_all_tokens_are_too_old() -> None:
    memory = FirstValues(1, lambda flat: flat)

    def keep(names, value, step):
        memory.keep(dict.fromkeys(names, 1), {n: torch.tensor([value]) for n in names}, step)

    keep(["a"], 1.0, step=4)
    keep(["a", "b"], 2.0, step=5)
    assert told(memory, "a", "b") == [[1.0], [2.0]]
    keep(["c"], 3.0, step=6)
    assert told(memory, "a", "b", "c") == [None, [2.0], [3.0]]
    keep([], 0.0, step=9)
    assert memory.of(["c"], ["c"]) == {}


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_a_checkpoint_brings_all_back_and_nothing_else_on_any_number_of_ranks(num_ranks: int) -> None:
    def save(memory: FirstValues, rank: int):
        memory.keep(SIZES, OWNS[rank], step=3)
        return {name: memory.tensor(name).clone() for name in memory.layout()}, memory.steps()

    (tensors, steps), other = on_ranks(2, save)
    assert other[1] == steps

    def load(memory: FirstValues, rank: int):
        memory.keep({"z#0": 1}, {"z#0": torch.ones(1)}, 3)
        memory.load(tensors.__getitem__, steps, rank=rank, num_ranks=num_ranks)
        loaded = told(memory, "z#0", *SIZES)
        # the steps came along: one later everything is there, two later nothing
        memory.keep({}, {}, 4)
        later = told(memory, *SIZES)
        memory.keep({}, {}, 5)
        return loaded, later, memory.steps()

    values = [[1.0, 2.0, 3.0], [4.0, 5.0], [6.0, 0.0]]
    assert on_ranks(num_ranks, load) == [([None, *values], values, {})] * num_ranks


def test_a_checkpoint_without_entries_leaves_none() -> None:
    memory = FirstValues(1, lambda flat: flat)
    memory.keep(SIZES, OWNS[1], step=3)
    memory.load({}.__getitem__, {}, rank=0, num_ranks=1)
    assert told(memory, *SIZES) == [None] * 3
    assert not memory.layout()
