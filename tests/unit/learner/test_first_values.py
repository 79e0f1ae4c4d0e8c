"""What is remembered of first uses: on every rank, until all tokens are too old, and over a checkpoint."""

import pytest
import torch

from segue.learner.first_values import FirstValues

SIZES = {"a#0": 3, "a#1": 2, "b#0": 2}


def keep_on_ranks(memories, sizes, owns, step):
    """Ranks in turn: what all of them bring is summed first."""
    brought = []
    for own in owns:
        FirstValues(9).keep(sizes, own, step, lambda flat: (brought.append(flat.clone()), flat)[1])
    for memory, own in zip(memories, owns, strict=True):
        memory.keep(sizes, own, step, lambda flat: flat.copy_(sum(brought)))


def told(memory, name):
    values = memory.of(name)
    return None if values is None else values.tolist()


def test_every_rank_knows_what_any_rank_said() -> None:
    memories = [FirstValues(1), FirstValues(1)]
    # sizes are upper bounds: the last trajectory has one place only
    owns = [{"a#1": torch.tensor([4.0, 5.0])}, {"a#0": torch.tensor([1.0, 2.0, 3.0]), "b#0": torch.tensor([6.0])}]
    keep_on_ranks(memories, SIZES, owns, step=0)
    for memory in memories:
        assert told(memory, "a#0") == [1.0, 2.0, 3.0]
        assert told(memory, "a#1") == [4.0, 5.0]
        assert memory.of("b#0")[:1].tolist() == [6.0]
        assert memory.of("c#0") is None


def test_the_first_word_stays_and_is_forgotten_when_all_tokens_are_too_old() -> None:
    memory = FirstValues(1)

    def keep(names, value, step):
        memory.keep(dict.fromkeys(names, 1), {n: torch.tensor([value]) for n in names}, step, lambda flat: flat)

    keep(["a"], 1.0, step=4)
    keep(["a", "b"], 2.0, step=5)
    assert (told(memory, "a"), told(memory, "b")) == ([1.0], [2.0])
    keep(["c"], 3.0, step=6)
    assert (memory.of("a"), told(memory, "b"), told(memory, "c")) == (None, [2.0], [3.0])
    keep([], 0.0, step=9)
    assert memory.of("c") is None


@pytest.mark.parametrize("has_entries", [True, False])
def test_a_checkpoint_brings_all_back_and_nothing_else(has_entries: bool) -> None:
    saved, other = FirstValues(1), FirstValues(1)
    if has_entries:
        saved.keep(SIZES, {name: torch.arange(size) + 0.5 for name, size in SIZES.items()}, 3, lambda flat: flat)
    other.keep({"z#0": 1}, {"z#0": torch.ones(1)}, 3, lambda flat: flat)
    tensors, steps = saved.state()
    other.load(tensors.__getitem__, steps)
    assert other.of("z#0") is None
    assert [told(other, name) for name in SIZES] == [told(saved, name) for name in SIZES]
    # the steps came along: one later everything is there, two later nothing
    other.keep({}, {}, 4, lambda flat: flat)
    assert (other.of("a#0") is not None) == has_entries
    other.keep({}, {}, 5, lambda flat: flat)
    assert other.of("a#0") is None
