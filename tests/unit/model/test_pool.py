"""StatePool: slots, shared pages, forks, moves, exhaustion."""

import numpy as np
import pytest
import torch
from model_cases import make_config, make_model, make_tokens
from torch import Tensor

from segue.model.inputs import PackedInputs
from segue.model.pool import PoolExhausted, Slot, StatePool
from segue.model.routing import Routing

CONFIG = make_config()


def make_pool(**changes) -> StatePool:
    sizes = {"num_slots": 4, "num_pages": 12, "page_size": 4, "dtype": torch.float64} | changes
    return StatePool(CONFIG, **sizes)


def feed(pool: StatePool, slots: list[Slot], sequences: list[Tensor], *, dtype: torch.dtype = torch.float64) -> Tensor:
    with torch.no_grad():
        return make_model(CONFIG, dtype=dtype)(PackedInputs.pack(sequences), pool.view(slots), Routing())[0]


def bits(pool: StatePool, slot: Slot) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in pool.export(slot).items()}


def test_pages_are_taken_as_tokens_come() -> None:
    pool = make_pool()
    slot = pool.allocate()
    taken = []
    for count in (3, 1, 1, 8, 0):
        before = slot.num_tokens
        free = pool.free_pages
        feed(pool, [slot], [make_tokens(count, seed=count)])
        assert free - pool.free_pages == pool.pages_needed(before, count)
        taken.append(12 - pool.free_pages)
    # 3, 4, 5, 13 and 13 tokens in pages of 4
    assert taken == [1, 1, 2, 4, 4]


def test_a_fork_copies_the_last_page_and_shares_the_full_ones() -> None:
    pool = make_pool()
    root = pool.allocate()
    feed(pool, [root], [make_tokens(10, seed=1)])
    twin = pool.fork(root)
    assert twin.pages[:2] == root.pages[:2]
    assert twin.pages[2] != root.pages[2]
    assert 12 - pool.free_pages == 4
    assert bits(pool, twin) == bits(pool, root)


def test_a_fork_at_a_page_border_takes_no_page() -> None:
    pool = make_pool()
    root = pool.allocate()
    feed(pool, [root], [make_tokens(8, seed=1)])
    free = pool.free_pages
    twin = pool.fork(root)
    assert pool.free_pages == free
    feed(pool, [twin], [make_tokens(1, seed=2)])
    assert twin.pages[:2] == root.pages
    assert len(root.pages) == 2


def test_siblings_do_not_see_each_other() -> None:
    pool = make_pool()
    root = pool.allocate()
    feed(pool, [root], [make_tokens(6, seed=1)])
    before = bits(pool, root)
    twin = pool.fork(root)
    alone = bits(pool, pool.fork(twin))
    feed(pool, [twin], [make_tokens(5, seed=2)])
    assert bits(pool, root) == before == alone
    next_token = make_tokens(1, seed=3)
    pair = feed(pool, [root, twin], [next_token, next_token])
    assert not torch.allclose(pair[0], pair[1])


def test_pages_return_with_their_last_owner() -> None:
    pool = make_pool()
    root = pool.allocate()
    feed(pool, [root], [make_tokens(10, seed=1)])
    twin = pool.fork(root)
    pool.free(root)
    # the copy of the partial page is back, the two shared ones are not
    assert pool.free_pages == 12 - 3
    pool.free(twin)
    assert (pool.free_slots, pool.free_pages) == (4, 12)


def test_a_used_slot_comes_back_empty() -> None:
    pool = make_pool(num_slots=1)
    first = pool.allocate()
    expected = feed(pool, [first], [make_tokens(6, seed=1)])
    pool.free(first)
    again = pool.allocate()
    assert torch.equal(feed(pool, [again], [make_tokens(6, seed=1)]), expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_moved_state_is_the_same_bit_for_bit_and_so_is_its_continuation(dtype: torch.dtype) -> None:
    source, target = make_pool(dtype=dtype), make_pool(dtype=dtype, page_size=3)
    slot = source.allocate()
    feed(source, [slot], [make_tokens(10, seed=1)], dtype=dtype)
    target.allocate()
    moved = target.import_(source.export(slot))
    assert moved.num_tokens == 10
    assert bits(target, moved) == bits(source, slot)
    # with pages of one size the decoding step reads equal bits in equal order
    same = make_pool(dtype=dtype)
    back = same.import_(target.export(moved))
    token = [make_tokens(1, seed=2)]
    assert torch.equal(feed(same, [back], token, dtype=dtype), feed(source, [slot], token, dtype=dtype))
    assert bits(same, back) == bits(source, slot)


def test_exhaustion_is_an_error_that_changes_nothing() -> None:
    pool = make_pool(num_slots=2, num_pages=3)
    one, two = pool.allocate(), pool.allocate()
    with pytest.raises(PoolExhausted, match="all 2 slots are taken"):
        pool.allocate()
    feed(pool, [one, two], [make_tokens(4, seed=1), make_tokens(2, seed=2)])
    before = bits(pool, one), bits(pool, two)
    # the first sequence needs a page and the second one: a single page is left
    assert pool.pages_needed(one.num_tokens, 1) + pool.pages_needed(two.num_tokens, 3) == 2
    with pytest.raises(PoolExhausted, match="2 pages are needed, free are 1 of 3"):
        feed(pool, [one, two], [make_tokens(1, seed=3), make_tokens(3, seed=4)])
    assert pool.free_pages == 1
    assert (bits(pool, one), bits(pool, two)) == before

    pool.free(one)
    feed(pool, [two], [make_tokens(8, seed=5)])
    with pytest.raises(PoolExhausted, match="1 pages are needed, free are 0 of 3"):
        pool.import_({"num_tokens": np.array(1)})
    assert pool.free_slots == 1
    with pytest.raises(PoolExhausted, match="fork needs 1 page, free are 0 of 3"):
        pool.fork(two)
    assert pool.free_slots == 1


def test_size_counts_whole_pages() -> None:
    pool = make_pool()
    # 3 KDA layers: 2 x 16 x 16 state and 3 x 96 conv; 2 MLA layers: pages of 4 rows of 14; 8 bytes each
    fixed = 3 * (2 * 16 * 16 + 3 * 96) * 8
    assert [pool.size_bytes(n) for n in (0, 1, 4, 5)] == [fixed + pages * 2 * 4 * 14 * 8 for pages in (0, 1, 1, 2)]


def test_a_forward_that_would_need_gradients_is_refused() -> None:
    pool = make_pool()
    with pytest.raises(AssertionError, match="carry no gradient"):
        make_model(CONFIG)(PackedInputs.pack([make_tokens(2, seed=1)]), pool.view([pool.allocate()]), Routing())


def test_a_forward_that_never_ended_takes_its_pages_only_once() -> None:
    pool = make_pool()
    slot = pool.allocate()
    tokens = make_tokens(5, seed=1)
    with torch.no_grad():
        pool.view([slot]).open(PackedInputs.pack([tokens]))
    assert (pool.free_pages, slot.num_tokens) == (12 - 2, 0)
    expected = feed(pool, [pool.allocate()], [tokens])
    assert torch.equal(feed(pool, [slot], [tokens]), expected)
    assert pool.free_pages == 12 - 4


def test_where_slots_lie_changes_no_bit() -> None:
    tokens, step = [make_tokens(6, seed=1), make_tokens(3, seed=2)], [make_tokens(1, seed=3), make_tokens(1, seed=4)]
    pool = make_pool()
    slots = [pool.allocate() for _ in range(4)]
    results = []
    # side by side, then apart and in falling order
    for pair in ([slots[0], slots[1]], [slots[3], slots[2]]):
        results.append([feed(pool, pair, tokens), feed(pool, pair, step), *(bits(pool, slot) for slot in pair)])
    near, far = results
    assert torch.equal(near[0], far[0]) and torch.equal(near[1], far[1])
    assert near[2:] == far[2:]
