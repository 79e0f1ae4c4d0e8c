"""What a session samples, to the last bit, whatever runs beside it and whenever its environment answers."""

import asyncio
from typing import Any

import numpy as np
import pytest
import torch
from model_cases import make_config, make_model
from rollout_cases import generate_all, make_engine, make_id, make_prompt, make_sampling, open_session, run

from segue.conf.model_config import ModelConfig
from segue.rollout.engine.base import Completion
from segue.rollout.engine.native import NativeEngine

NUM_TURNS = 3
PROMPTS = {"a": 33, "b": 18, "c": 2}
"""Task to tokens of its prompt; the feeding forward takes 16."""
NUM_SIBLINGS = 4


class Answers:
    """Observations that come when the test says so: one after the other, in any order, at any step of the engine."""

    def __init__(self, seed: int, share: float) -> None:
        self._random = np.random.default_rng(seed)
        self._share = share
        self._waiting: list[asyncio.Future[None]] = []

    async def wait(self) -> None:
        """Until it is this one's turn."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        await future

    async def give(self) -> None:
        """Answer until cancelled."""
        while True:
            if self._waiting and self._random.random() < self._share:
                self._waiting.pop(self._random.integers(len(self._waiting))).set_result(None)
            # spinning, it would hold the engine up, whose thread wants the interpreter too
            await asyncio.sleep(0 if self._waiting else 1e-3)


def make_fp32_engine(max_sessions: int) -> NativeEngine:
    model = make_model(make_config(), dtype=torch.float32)
    return make_engine(model, num_slots=40, num_pages=2000, max_sessions=max_sessions)


async def play_one(engine: NativeEngine, session: Any, answers: Answers) -> list[Any]:
    """Turns with observations between them, of which one is a single token; bits of what was sampled."""
    sampled = []
    for turn in range(NUM_TURNS):
        await answers.wait()
        if turn:
            engine.extend(session, make_prompt((1, 40)[turn - 1], seed=turn))
        completion = await engine.generate(session, make_sampling(max_new_tokens=5 + 3 * session.id.index))
        sampled.append((completion.token_ids.tobytes(), completion.logprobs.tobytes()))
    engine.close(session)
    return sampled


async def play_group(engine: NativeEngine, task: str, answers: Answers) -> list[list[Any]]:
    prefix = open_session(engine, make_prompt(PROMPTS[task]), None, task=task)
    siblings = [engine.open(make_id(index, task=task), fork_of=prefix) for index in range(NUM_SIBLINGS)]
    return list(await asyncio.gather(*(play_one(engine, sibling, answers) for sibling in siblings)))


async def play_all(engine: NativeEngine, *, seed: int, share: float) -> list[list[Any]]:
    answers = Answers(seed, share)
    giving = asyncio.ensure_future(answers.give())
    groups = await asyncio.gather(*(play_group(engine, task, answers) for task in PROMPTS))
    giving.cancel()
    assert engine.stats.num_missed == 0
    return [session for group in groups for session in group]


async def play_each_alone() -> list[list[Any]]:
    answers = Answers(0, 1.0)
    giving = asyncio.ensure_future(answers.give())
    played = []
    for task, length in PROMPTS.items():
        for index in range(NUM_SIBLINGS):
            engine = make_fp32_engine(1)
            session = open_session(engine, make_prompt(length), index, task=task)
            played.append(await play_one(engine, session, answers))
    giving.cancel()
    return played


@pytest.fixture(scope="module")
def alone() -> list[list[Any]]:
    return run(play_each_alone())


@pytest.mark.parametrize(("seed", "share", "max_sessions"), [(1, 1.0, 12), (2, 0.1, 12), (3, 1.0, 3)])
def test_tokens_and_log_probabilities_keep_their_bits(
    alone: list[list[Any]], seed: int, share: float, max_sessions: int
) -> None:
    engine = make_fp32_engine(max_sessions)
    assert run(play_all(engine, seed=seed, share=share)) == alone
    # many decoded together, and not always the same ones
    decode = engine.stats.decode
    assert decode.num_tokens / decode.num_forwards > 1.3


@pytest.mark.parametrize("num_neighbours", [3, 100])
def test_neighbours_of_the_default_model_change_no_bit(num_neighbours: int) -> None:
    # the operators' forms for few tokens and for many are both met
    model = make_model(ModelConfig(), dtype=torch.float32)

    async def play(engine: NativeEngine, tasks: list[int]) -> Completion:
        sessions = [open_session(engine, make_prompt(100 + task, seed=task), task=str(task)) for task in tasks]
        completions = await generate_all(engine, sessions, make_sampling(max_new_tokens=6))
        return completions[tasks.index(0)]

    tasks = [*range(1, 2 + num_neighbours // 2), 0, *range(200, 200 + num_neighbours // 2)]
    sizes = {"num_slots": 128, "num_pages": 8000, "max_sessions": 128, "prefill_chunk_tokens": 2048}
    engines = (make_engine(model, **sizes) for _ in range(2))
    alone, among_others = run(play(next(engines), [0])), run(play(next(engines), tasks))
    assert np.array_equal(alone.token_ids, among_others.token_ids)
    assert np.array_equal(alone.logprobs, among_others.logprobs)
