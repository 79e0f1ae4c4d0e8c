"""The native engine: log-probabilities, states, forks, misses, swaps, memory. Common promises: tests/contract/.

Models are in float64 unless a bound speaks of float32, so that equal distributions give equal tokens.
"""

import asyncio
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from model_cases import make_config, make_model, run_whole
from rollout_cases import (
    VERSION,
    generate_all,
    make_engine,
    make_id,
    make_prompt,
    make_sampling,
    open_session,
    play_turns,
    run,
    teacher_forced,
)

from segue.conf.schema import OnSwap, RolloutConfig
from segue.envs.clock import EpisodeClock
from segue.model.checkpoint import published_tensors
from segue.model.weights import pack_weights
from segue.rollout.engine.base import EngineFailure
from segue.rollout.engine.native import build_native_engine
from segue.rollout.trajectory import PolicyVersion

NEXT_VERSION = PolicyVersion(1, 8)


def swap_of(seed):
    """The weights of another model, as an update."""
    return pack_weights(published_tensors(make_model(make_config(), seed=seed)))


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-4), (torch.float64, 1e-6)])
def test_log_probabilities_are_those_of_one_forward_over_the_stream(dtype, bound):
    model = make_model(make_config(), dtype=dtype)
    engine = make_engine(model, num_pages=1000, prefill_chunk_tokens=50)

    async def play():
        sampling = make_sampling(max_new_tokens=70)
        prefix = open_session(engine, make_prompt(37), None)
        sessions = [engine.open(make_id(index), fork_of=prefix) for index in range(3)]
        return sessions, await asyncio.gather(
            *(play_turns(engine, session, sampling, num_turns=2) for session in sessions)
        )

    sessions, played = run(play())
    num_rows = num_flips = 0
    for session, turns in zip(sessions, played, strict=True):
        expert_ids = session.expert_ids
        assert session.num_expert_rows == len(session) - 1
        free, free_ids = teacher_forced(model, session.token_ids, 0.8)
        replayed, replayed_ids = teacher_forced(model, session.token_ids, 0.8, expert_ids)
        assert np.array_equal(replayed_ids, expert_ids[:-1])
        flips = (np.sort(free_ids, -1) != np.sort(expert_ids[:-1], -1)).any(-1)
        flipped_at = np.flatnonzero(flips.any(-1))
        # token t is predicted from tokens before it, so the first flip at t touches predictions from t + 1 on
        clean = flipped_at[0] + 1 if len(flipped_at) else len(session)
        num_rows += flips[:clean].size
        num_flips += flips[:clean].sum()
        for start, completion in turns:
            at = np.arange(start, start + len(completion.token_ids))
            assert np.abs(replayed[at - 1] - completion.logprobs).max() < bound
            before = at < clean
            if before.any():
                assert np.abs(free[at - 1] - completion.logprobs)[before].max() < bound
    assert num_flips <= 1e-4 * num_rows or num_flips == 0


def test_greedy_decoding_takes_the_likeliest_token_at_every_step():
    model = make_model(make_config())
    engine = make_engine(model)
    session = open_session(engine, make_prompt(9))
    completion = run(engine.generate(session, make_sampling(greedy=True, training=False, max_new_tokens=12)))
    ids = torch.from_numpy(session.token_ids.astype(np.int64))
    (hidden,) = run_whole(model, [ids[:-1]])
    logits = hidden.detach() @ model.lm_head.weight.detach().t()
    assert logits[8:].argmax(-1).tolist() == completion.token_ids.tolist()
    expected = (logits / 0.8).log_softmax(-1)[8:].gather(-1, ids[9:, None])[:, 0]
    # the temperature, 0.8, is float32
    assert np.abs(expected.numpy() - completion.logprobs).max() < 1e-5


def test_ways_of_sampling_mix_in_one_batch():
    ways = [
        make_sampling(),
        make_sampling(temperature=1.7),
        make_sampling(training=False, greedy=True),
        make_sampling(training=False, top_k=1),
        make_sampling(training=False, top_p=0.5, temperature=1.3),
        make_sampling(training=False, top_p=1e-6),
    ]

    async def play(engine, chosen):
        sessions = [open_session(engine, make_prompt(8), task=str(index)) for index, _ in chosen]
        pairs = zip(sessions, (way for _, way in chosen), strict=True)
        return await asyncio.gather(*(engine.generate(session, way) for session, way in pairs))

    together = run(play(make_engine(), list(enumerate(ways))))
    for chosen in enumerate(ways):
        (alone,) = run(play(make_engine(), [chosen]))
        assert alone.token_ids.tolist() == together[chosen[0]].token_ids.tolist()
        assert np.allclose(alone.logprobs, together[chosen[0]].logprobs, atol=1e-6)
    greedy = together[2].token_ids.tolist()
    # one token to choose from is the best one, and certain
    for narrow in (together[3], together[5]):
        assert narrow.token_ids.tolist() == greedy
        assert np.abs(narrow.logprobs).max() == 0.0


def test_sessions_may_come_and_go_between_decode_steps():
    lengths = [2, 30, 5, 17, 70, 3, 9, 1, 12, 26, 7, 4]

    async def play(engine):
        async def one(index, length):
            # later ones arrive while earlier ones decode
            for _ in range(3 * index):
                await asyncio.sleep(0)
            session = open_session(engine, make_prompt(4 + 3 * index, seed=index), index)
            completion = await engine.generate(session, make_sampling(max_new_tokens=length))
            engine.close(session)
            return completion.token_ids.tolist()

        return await asyncio.gather(*(one(index, length) for index, length in enumerate(lengths)))

    engine = make_engine(max_sessions=3, num_pages=100)
    crowded = run(play(engine))
    assert [len(ids) for ids in crowded] == lengths
    assert crowded == run(play(make_engine(max_sessions=1, num_slots=1, num_pages=30, prefill_chunk_tokens=1000)))
    # all of a prompt but its last token is fed, then a token for each one sampled
    assert engine.stats.prefill.num_tokens == sum(3 + 3 * index for index in range(12))
    assert engine.stats.decode.num_tokens == sum(lengths)
    assert engine.stats.num_missed == 0


def test_a_prompt_is_fed_once_for_all_siblings():
    engine = make_engine()

    async def play():
        prefix = open_session(engine, make_prompt(33), None)
        forks = [engine.open(make_id(index), fork_of=prefix) for index in range(6)]
        await generate_all(engine, forks, make_sampling())

    run(play())
    assert engine.stats.prefill.num_tokens == 32
    assert engine.stats.num_forked == 6


def test_a_parent_that_went_on_is_not_forked():
    async def play(engine):
        parent = open_session(engine, make_prompt(9), 0)
        child = engine.open(make_id(1), fork_of=parent)
        await engine.generate(parent, make_sampling())
        return await engine.generate(child, make_sampling())

    engine = make_engine()
    completion = run(play(engine))
    assert engine.stats.num_forked == 0
    alone = make_engine()
    assert (
        completion.token_ids.tolist()
        == run(alone.generate(open_session(alone, make_prompt(9), 1), make_sampling())).token_ids.tolist()
    )


def test_a_state_that_was_evicted_is_rebuilt_from_the_tokens():
    sampling = make_sampling(max_new_tokens=8)

    async def play(engine):
        old, young = open_session(engine, make_prompt(20), 0), open_session(engine, make_prompt(20, seed=1), 1)
        results = [await engine.generate(young, sampling)]
        results.append(await engine.generate(old, sampling))
        engine.extend(young, [1, 2, 3])
        engine.close(old)
        results.append(await engine.generate(young, sampling))
        return results, young

    # 28 tokens take 7 pages of 4, so two sessions do not fit into 10
    narrow, wide = make_engine(num_pages=10), make_engine()
    results, session = run(play(narrow))
    expected, free_session = run(play(wide))
    assert narrow.stats.num_missed == 1
    assert wide.stats.num_missed == 0
    for result, reference in zip(results, expected, strict=True):
        assert result.token_ids.tolist() == reference.token_ids.tolist()
        assert np.abs(result.logprobs - reference.logprobs).max() < 1e-6
    assert np.array_equal(session.expert_ids, free_session.expert_ids)


def test_a_younger_session_waits_for_an_older_one_instead_of_evicting_it():
    engine = make_engine(num_slots=1)
    events = []

    async def one(session, name, between):
        for turn in range(2):
            await engine.generate(session, make_sampling(max_new_tokens=3))
            events.append((name, turn))
            await asyncio.sleep(between)
            engine.extend(session, [1])
        engine.close(session)

    async def play():
        old, young = open_session(engine, make_prompt(5), 0), open_session(engine, make_prompt(5), 1)
        # while the old one waits for its tool, the young one could only run by taking its state
        await asyncio.gather(one(old, "old", 0.05), one(young, "young", 0.0))

    run(play())
    assert events == [("old", 0), ("old", 1), ("young", 0), ("young", 1)]
    assert engine.stats.num_missed == 0


def test_many_sessions_get_on_in_little_memory():
    async def play(engine):
        async def one(index):
            session = open_session(engine, make_prompt(5 + index, seed=index), index)
            turns = await play_turns(engine, session, make_sampling(max_new_tokens=4))
            engine.close(session)
            return [completion.token_ids.tolist() for _, completion in turns]

        return await asyncio.gather(*(one(index) for index in range(10)))

    narrow = make_engine(num_slots=3, num_pages=14, max_sessions=3)
    assert run(play(narrow)) == run(play(make_engine()))


def test_siblings_get_on_where_there_is_no_room_for_their_prefix():
    async def play(engine):
        prefix = open_session(engine, make_prompt(12), None)
        forks = [engine.open(make_id(index), fork_of=prefix) for index in range(3)]

        async def one(fork):
            completion = await engine.generate(fork, make_sampling(max_new_tokens=4))
            engine.close(fork)
            return completion.token_ids.tolist()

        return await asyncio.gather(*(one(fork) for fork in forks))

    narrow, wide = make_engine(num_slots=1), make_engine()
    assert run(play(narrow)) == run(play(wide))
    assert narrow.stats.num_forked == 0 and wide.stats.num_forked == 3


def test_a_session_that_can_never_fit_is_refused():
    engine = make_engine(num_pages=4)
    session = open_session(engine, make_prompt(8))
    with pytest.raises(ValueError, match=r"may grow to 17 tokens, which rollout.state_budget_mb cannot hold"):
        run(engine.generate(session, make_sampling(max_new_tokens=9)))
    assert len(run(engine.generate(session, make_sampling(max_new_tokens=8))).token_ids) == 8


def test_an_episodes_clock_stands_still_while_it_queues():
    engine = make_engine(max_sessions=1)

    class Noting(EpisodeClock):
        def __init__(self):
            super().__init__(60.0)
            self.events = []

        def begin_wait(self):
            super().begin_wait()
            self.events.append(("waits", engine.stats.decode.num_tokens))

        def end_wait(self):
            super().end_wait()
            self.events.append(("goes on", engine.stats.decode.num_tokens))

    async def one(clock, index):
        async with clock:
            await engine.generate(open_session(engine, make_prompt(5), index), make_sampling(max_new_tokens=9))

    async def play():
        first, second, third = clocks = [Noting() for _ in range(3)]
        work = [asyncio.ensure_future(one(clock, index)) for index, clock in enumerate(clocks)]
        await asyncio.sleep(0)
        # one that is cancelled in the queue waits no longer
        work[2].cancel()
        await asyncio.gather(*work, return_exceptions=True)
        return first.events, second.events, [name for name, _ in third.events]

    first, second, third = run(play())
    assert first == [("waits", 0), ("goes on", 0)]
    assert second == [("waits", 0), ("goes on", 9)]
    assert third == ["waits", "goes on"]


def test_all_memory_comes_back():
    engine = make_engine()

    async def play():
        prefix = open_session(engine, make_prompt(18), None)
        sessions = [engine.open(make_id(index), fork_of=prefix) for index in range(4)]
        work = [asyncio.ensure_future(engine.generate(session, make_sampling())) for session in sessions]
        for _ in range(4):
            await asyncio.sleep(0)
        work[2].cancel()
        await asyncio.gather(*work, return_exceptions=True)
        for session in (prefix, *sessions):
            engine.close(session)

    run(play())
    assert engine._pool.free_slots == engine._pool.num_slots
    assert engine._pool.free_pages == engine._pool.num_pages
    assert engine._scheduler._memory._free_pages == engine._pool.num_pages


@pytest.mark.parametrize("on_swap", list(OnSwap))
def test_weights_swapped_in_flight_stamp_each_token(on_swap):
    model = make_model(make_config())
    engine = make_engine(model, on_swap=on_swap)
    session = open_session(engine, make_prompt(10))

    async def play():
        work = asyncio.ensure_future(engine.generate(session, make_sampling(max_new_tokens=400)))
        while engine.stats.decode.num_tokens < 6:
            await asyncio.sleep(0)
        await engine.load_weights(swap_of(1), NEXT_VERSION)
        return await work

    completion = run(play())
    num_old = int((completion.policy_step == 7).sum())
    # six were sampled before the swap was asked for, and it was long before the end
    assert 6 <= num_old < 400
    assert completion.policy_step.tolist() == [7] * num_old + [8] * (400 - num_old)
    old, _ = teacher_forced(make_model(make_config()), session.token_ids, 0.8)
    new, _ = teacher_forced(make_model(make_config(), seed=1), session.token_ids, 0.8)
    at = np.arange(10, 410) - 1
    assert np.abs(old[at] - completion.logprobs)[:num_old].max() < 1e-6
    gap = np.abs(new[at] - completion.logprobs)[num_old:].max()
    if on_swap is OnSwap.rebuild:
        # the state is that of the new weights over the whole stream
        assert gap < 1e-6
        assert engine.stats.num_missed == 1
    else:
        # the state of the old weights goes on under the new ones
        assert gap > 1e-3
        assert engine.stats.num_missed == 0


def test_weights_are_read_outside_the_event_loops_thread():
    readers = []

    class Noting(np.ndarray):
        def __getitem__(self, key):
            readers.append(threading.current_thread().name.split("_")[0])
            return super().__getitem__(key)

    update = swap_of(1)
    engine = make_engine()
    run(engine.load_weights(replace(update, data=update.data.view(Noting)), NEXT_VERSION))
    # checked somewhere, then copied where forwards run; the loop answers environments meanwhile
    num_tensors = len(update.manifest)
    assert readers == ["asyncio"] * num_tensors + ["native engine"] * num_tensors
    assert engine.version == NEXT_VERSION


def test_a_state_of_older_weights_is_never_forked():
    async def play(engine):
        prefix = open_session(engine, make_prompt(14), None)
        first = engine.open(make_id(0), fork_of=prefix)
        await engine.generate(first, make_sampling())
        await engine.load_weights(swap_of(1), NEXT_VERSION)
        second = engine.open(make_id(1), fork_of=prefix)
        return second, await engine.generate(second, make_sampling())

    engine = make_engine()
    session, completion = run(play(engine))
    # fed twice, forked twice
    assert engine.stats.prefill.num_tokens == 2 * 13
    assert engine.stats.num_forked == 2
    new, new_ids = teacher_forced(make_model(make_config(), seed=1), session.token_ids, 0.8)
    assert np.abs(new[13:] - completion.logprobs).max() < 1e-6
    assert np.array_equal(session.expert_ids[:-1], new_ids)


def test_a_prefix_whose_weights_changed_while_it_was_fed_is_fed_again():
    engine = make_engine(prefill_chunk_tokens=4, num_pages=300)

    async def play():
        prefix = open_session(engine, make_prompt(401), None)
        fork = engine.open(make_id(0), fork_of=prefix)
        work = asyncio.ensure_future(engine.generate(fork, make_sampling()))
        while engine.stats.prefill.num_tokens < 8:
            await asyncio.sleep(0)
        await engine.load_weights(swap_of(1), NEXT_VERSION)
        return fork, await work

    session, completion = run(play())
    assert engine.stats.prefill.num_tokens == 2 * 400
    new, _ = teacher_forced(make_model(make_config(), seed=1), session.token_ids, 0.8)
    assert np.abs(new[400:] - completion.logprobs).max() < 1e-6
    assert set(completion.policy_step.tolist()) == {8}


def test_an_update_that_does_not_fit_changes_nothing():
    engine = make_engine()
    other = pack_weights(published_tensors(make_model(make_config(vocab_size=41))))
    with pytest.raises(
        ValueError, match=r"embed_tokens.weight must be torch.float64 \[40, 24\], got float64 \[41, 24\]"
    ):
        run(engine.load_weights(other, NEXT_VERSION))
    assert engine.version == VERSION


def test_broken_weights_are_an_engine_failure_and_the_engine_survives():
    model = make_model(make_config())
    engine = make_engine(model)
    good = pack_weights(published_tensors(model))

    async def play():
        with torch.no_grad():
            model.lm_head.weight[3] = torch.nan
        sessions = [open_session(engine, make_prompt(6), index) for index in range(3)]
        results = await asyncio.gather(
            *(engine.generate(session, make_sampling()) for session in sessions), return_exceptions=True
        )
        assert all(isinstance(result, EngineFailure) for result in results)
        for session in sessions:
            engine.close(session)
        await engine.load_weights(good, NEXT_VERSION)
        return await engine.generate(open_session(engine, make_prompt(6)), make_sampling())

    completion = run(play())
    alone = make_engine()
    expected = run(alone.generate(open_session(alone, make_prompt(6)), make_sampling()))
    assert completion.token_ids.tolist() == expected.token_ids.tolist()


def test_ids_outside_the_vocabulary_are_refused_where_they_come_in():
    engine = make_engine()
    session = open_session(engine, make_prompt(6))
    for wrong in ([40], [0, -1]):
        with pytest.raises(ValueError, match=r"token ids must be in \[0, 39\]"):
            engine.extend(session, wrong)
    with pytest.raises(ValueError, match=r"token ids must be in \[0, 39\], got 40 to 40"):
        run(engine.generate(session, make_sampling(stop_ids=(40,))))
    assert len(session) == 6


def test_the_pool_fits_the_budget():
    model = make_model(make_config(), dtype=torch.float32)
    config = RolloutConfig(state_budget_mb=1, max_sessions=8, max_episode_tokens=512, page_tokens=16)
    engine = build_native_engine(model, config, version=VERSION)
    pool = engine._pool
    tensors = (*pool.recurrent, *pool.conv, *pool.pages)
    assert sum(tensor.nbytes for tensor in tensors) <= 10**6
    # a state: 3 KDA layers x 2 heads x 16 x 16, and 3 x 3 x 96 convolution inputs, in float32
    slot_bytes = 4 * (3 * 2 * 16 * 16 + 3 * 3 * 96)
    assert pool.num_slots == min(16, 500_000 // slot_bytes) == 16
    # a page: 2 MLA layers x 16 rows of 14
    assert pool.num_pages == min(16 * 32, (10**6 - 16 * slot_bytes) // (4 * 2 * 16 * 14))
    with pytest.raises(
        ValueError, match=r"rollout.state_budget_mb must be at least 2, for one episode of 16384 tokens"
    ):
        build_native_engine(
            model, RolloutConfig(state_budget_mb=1, max_episode_tokens=16384, page_tokens=16), version=VERSION
        )


def test_experts_are_kept_only_where_asked():
    streams = {}
    for record in (True, False):
        engine = make_engine(record_experts=record)
        session = engine.open(make_id())
        engine.extend(session, make_prompt(9))
        run(engine.generate(session, make_sampling(max_new_tokens=5)))
        streams[record] = session.token_ids.tolist()
        assert (session.expert_ids is not None) == record
    assert streams[True] == streams[False]
