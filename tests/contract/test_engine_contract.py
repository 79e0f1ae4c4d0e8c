"""What every engine promises, held by the scripted and the native one.

What only an engine with a model can promise (log-probabilities, states, memory): tests/unit/rollout/test_native.py.
"""

import asyncio

import numpy as np
import pytest
from model_cases import make_config, make_model
from rollout_cases import (
    STOP,
    VERSION,
    generate_all,
    make_engine,
    make_id,
    make_prompt,
    make_sampling,
    open_session,
    run,
)

from segue.model.checkpoint import published_tensors
from segue.model.weights import pack_weights
from segue.rollout.engine.base import FinishReason
from segue.rollout.engine.scripted import ScriptedEngine
from segue.rollout.session import Session
from segue.rollout.trajectory import PolicyVersion, Source


async def _script(session: Session) -> np.ndarray:
    """Thirty tokens that depend on the session's id and stream."""
    for _ in range(5):
        await asyncio.sleep(0)
    seed = [len(session.id.task_id), 0 if session.id.index is None else session.id.index, *session.token_ids[-8:]]
    return np.random.default_rng(seed).integers(0, 40, 30).astype(np.int32)


def make_scripted():
    """A scripted engine over `_script`."""
    return ScriptedEngine(_script, version=VERSION)


@pytest.fixture(params=[make_scripted, make_engine], ids=["scripted", "native"])
def engine(request):
    """An engine of each kind."""
    return request.param()


def test_a_stream_is_only_ever_appended_to(engine):
    async def play():
        session = open_session(engine, make_prompt(11))
        before = session.token_ids.copy()
        first = await engine.generate(session, make_sampling())
        engine.extend(session, [8, 9])
        second = await engine.generate(session, make_sampling(max_new_tokens=4))
        expected = np.concatenate([before, first.token_ids, [8, 9], second.token_ids])
        assert session.token_ids.tolist() == expected.tolist()
        twin = Session(make_id())
        twin.append(expected)
        assert session.prefix_hash == twin.prefix_hash

    run(play())


def test_a_completion_describes_each_of_its_tokens(engine):
    async def play():
        session = open_session(engine, make_prompt(5))
        completion = await engine.generate(session, make_sampling(max_new_tokens=6))
        assert completion.finish_reason is FinishReason.length
        for values in (
            completion.token_ids,
            completion.logprobs,
            completion.policy_incarnation,
            completion.policy_step,
        ):
            assert values.shape == (6,)
        assert set(completion.policy_incarnation.tolist()) == {VERSION.incarnation}
        assert set(completion.policy_step.tolist()) == {VERSION.step}
        assert np.isfinite(completion.logprobs).all()
        # an engine that samples gives a probability, a script has none to give
        assert (completion.logprobs < 0).all() == (engine.source is Source.policy)

    run(play())


def test_a_stop_token_ends_a_completion_and_is_part_of_it(engine):
    async def play():
        free = open_session(engine, make_prompt(5))
        ids = (await engine.generate(free, make_sampling(max_new_tokens=20))).token_ids
        stop = int(ids[9])
        first = ids.tolist().index(stop)
        engine.close(free)
        session = open_session(engine, make_prompt(5))
        completion = await engine.generate(session, make_sampling(max_new_tokens=20, stop_ids=(stop, 39)))
        assert completion.finish_reason is FinishReason.stop
        stops = [place for place, token in enumerate(ids.tolist()) if token in (stop, 39)]
        assert completion.token_ids.tolist() == ids[: stops[0] + 1].tolist()
        assert stops[0] <= first

    run(play())


def test_a_completion_does_not_depend_on_what_runs_beside_it(engine):
    async def play():
        prompts = [make_prompt(3 + 5 * index, seed=index) for index in range(6)]
        together = [open_session(engine, prompt, index) for index, prompt in enumerate(prompts)]
        completions = await generate_all(engine, together, make_sampling())
        for session in together:
            engine.close(session)
        for index, prompt in enumerate(prompts):
            alone = open_session(engine, prompt, index)
            completion = await engine.generate(alone, make_sampling())
            assert completion.token_ids.tolist() == completions[index].token_ids.tolist()
            assert completion.logprobs.tolist() == completions[index].logprobs.tolist()

    run(play())


def test_a_fork_goes_on_like_a_session_of_the_same_tokens(engine):
    async def play():
        prefix = open_session(engine, make_prompt(13), None)
        forks = [engine.open(make_id(index), fork_of=prefix) for index in range(4)]
        completions = await generate_all(engine, forks, make_sampling())
        engine.close(prefix)
        for index, fork in enumerate(forks):
            assert fork.token_ids[:13].tolist() == make_prompt(13).tolist()
            engine.close(fork)
            whole = open_session(engine, make_prompt(13), index)
            completion = await engine.generate(whole, make_sampling())
            assert completion.token_ids.tolist() == completions[index].token_ids.tolist()
        # siblings have noise, or a script, of their own
        assert len({tuple(completion.token_ids.tolist()) for completion in completions}) == 4

    run(play())


def test_attempts_have_noise_of_their_own(engine):
    async def play():
        first = open_session(engine, make_prompt(6))
        again = open_session(engine, make_prompt(6), attempt=1)
        one, two = await generate_all(engine, [first, again], make_sampling())
        assert (one.token_ids.tolist() == two.token_ids.tolist()) == (engine.source is Source.demonstrator)

    run(play())


def test_tokens_carry_the_version_that_sampled_them(engine):
    async def play():
        session = open_session(engine, make_prompt(6))
        await engine.generate(session, make_sampling())
        update = pack_weights(published_tensors(make_model(make_config(), seed=1)))
        await engine.load_weights(update, PolicyVersion(2, 8))
        assert engine.version == PolicyVersion(2, 8)
        completion = await engine.generate(session, make_sampling())
        assert set(completion.policy_incarnation.tolist()) == {2}
        assert set(completion.policy_step.tolist()) == {8}

    run(play())


def test_sessions_that_cannot_go_on_are_refused(engine):
    async def play():
        empty = engine.open(make_id())
        with pytest.raises(ValueError, match="must hold a token"):
            await engine.generate(empty, make_sampling())
        busy = open_session(engine, make_prompt(4), 1)
        work = asyncio.ensure_future(engine.generate(busy, make_sampling()))
        await asyncio.sleep(0)
        with pytest.raises(ValueError, match="generating already"):
            await engine.generate(busy, make_sampling())
        await work
        engine.close(busy)
        engine.close(busy)
        with pytest.raises(ValueError, match="is closed"):
            await engine.generate(busy, make_sampling())
        with pytest.raises(ValueError, match="is closed"):
            engine.extend(busy, [1])

    run(play())


def test_a_cancelled_call_leaves_others_alone(engine):
    async def play():
        sessions = [open_session(engine, make_prompt(7, seed=index), index) for index in range(3)]
        expected = await generate_all(engine, sessions, make_sampling())
        for session in sessions:
            engine.close(session)
        sessions = [open_session(engine, make_prompt(7, seed=index), index) for index in range(3)]
        work = [asyncio.ensure_future(engine.generate(session, make_sampling())) for session in sessions]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        work[1].cancel()
        results = await asyncio.gather(*work, return_exceptions=True)
        engine.close(sessions[1])
        assert isinstance(results[1], asyncio.CancelledError)
        for index in (0, 2):
            assert results[index].token_ids.tolist() == expected[index].token_ids.tolist()

    run(play())


def test_stop_tokens_are_looked_for_in_the_whole_vocabulary(engine):
    async def play():
        session = open_session(engine, make_prompt(5))
        completion = await engine.generate(session, make_sampling(stop_ids=tuple(range(40)), max_new_tokens=STOP))
        assert len(completion.token_ids) == 1 and completion.finish_reason is FinishReason.stop

    run(play())
