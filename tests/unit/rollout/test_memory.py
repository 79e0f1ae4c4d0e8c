"""Admission: shared pages are counted once, and nobody is evicted in vain. Pages of 4 tokens, of a small model."""

import torch
from model_cases import make_config, make_model
from rollout_cases import generate_all, make_engine, make_id, make_prompt, make_sampling, open_session, run

from segue.model.inputs import PackedInputs
from segue.model.pool import StatePool
from segue.model.routing import Routing
from segue.rollout.engine.memory import StateMemory
from segue.rollout.engine.request import CachedState, Request
from segue.rollout.engine.stats import EngineStats
from segue.rollout.session import Session

MODEL = make_model(make_config())


def make_memory(*, num_pages: int) -> tuple[StatePool, StateMemory]:
    """An empty pool and its memory."""
    pool = StatePool(MODEL.config, 8, num_pages, 4, MODEL.lm_head.weight.dtype)
    return pool, StateMemory(pool, EngineStats())


def hold(pool: StatePool, memory: StateMemory, num_tokens: int, *, age: int, index: int | None = 0) -> CachedState:
    """An idle session whose state has consumed so many tokens."""
    session = Session(make_id(index))
    session.append(make_prompt(num_tokens + 1))
    state = CachedState(session, age)
    assert memory.admit(state, num_tokens + 1)
    with torch.inference_mode():
        ids = torch.from_numpy(session.token_ids[:-1].astype("int64"))
        MODEL(PackedInputs.pack([ids]), pool.view([state.slot]), Routing())
    memory.trim(state)
    return state


def fork(parent: CachedState, *, age: int) -> CachedState:
    """A session that shares the parent's tokens, without a state yet."""
    return CachedState(Session(make_id(age), fork_of=parent.session), age)


def keep_running(state: CachedState) -> None:
    """Let the session be at work: its state is not to be taken."""
    state.request = Request.for_feeding(state)
    state.request.is_running = True


def test_forks_pay_for_what_they_do_not_share() -> None:
    # a prefix of 8 full pages and 12 forks that need a page each fit into 20 pages
    engine = make_engine(num_pages=20, max_sessions=12)

    async def play() -> None:
        prefix = open_session(engine, make_prompt(33), None)
        forks = [engine.open(make_id(index), fork_of=prefix) for index in range(12)]
        await generate_all(engine, forks, make_sampling(max_new_tokens=3))
        for session in (prefix, *forks):
            engine.close(session)

    run(play())
    # all side by side
    assert (engine.stats.decode.num_forwards, engine.stats.decode.num_tokens) == (3, 36)
    assert engine.stats.num_forked == 12 and engine.stats.prefill.num_tokens == 32
    assert engine._scheduler._memory._free_pages == engine._pool.free_pages == 20


def test_shared_pages_come_back_with_the_last_who_holds_them() -> None:
    pool, memory = make_memory(num_pages=20)
    parent = hold(pool, memory, 10, age=0)
    # two full pages are shared, the third is the fork's own, and a fork of the fork shares the third, too
    child = fork(parent, age=1)
    assert memory.admit(child, 11, fork_of=parent)
    child.session.append([1, 2, 3])
    assert memory.admit(child, 14)
    with torch.inference_mode():
        MODEL(PackedInputs.pack([torch.tensor([5, 1, 2])]), pool.view([child.slot]), Routing())
    memory.trim(child)
    grandchild = fork(child, age=2)
    assert memory.admit(grandchild, 20, fork_of=child)
    # the parent's 3, 2 of the child's 4, 2 of the 5 that the grandchild may come to
    assert memory._free_pages == 20 - 3 - 2 - 2
    for state in (child, parent, grandchild):
        memory.drop(state)
        assert memory._free_pages <= pool.free_pages
    assert memory._free_pages == pool.free_pages == 20


def test_nobody_is_evicted_where_it_would_not_suffice() -> None:
    pool, memory = make_memory(num_pages=10)
    busy, idle = hold(pool, memory, 20, age=1), hold(pool, memory, 12, age=2)
    keep_running(busy)
    in_need = CachedState(Session(make_id(3)), 0)
    # 2 pages are free and 3 could be
    assert not memory.admit(in_need, 24)
    assert idle.slot is not None and in_need.slot is None
    assert memory.admit(in_need, 20)
    assert idle.slot is None and in_need.slot is not None


def test_nobody_is_evicted_who_has_nothing_to_give() -> None:
    pool, memory = make_memory(num_pages=10)
    prefix = hold(pool, memory, 16, age=1, index=None)
    child = fork(prefix, age=2)
    assert memory.admit(child, 20, fork_of=prefix)
    keep_running(child)
    idle = hold(pool, memory, 12, age=3)
    in_need = CachedState(Session(make_id(4)), 0)
    # the prefix would go first, but all that it holds stays with its fork
    assert memory.admit(in_need, 12)
    assert prefix.slot is not None and idle.slot is None
