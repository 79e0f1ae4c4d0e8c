"""Engines, sessions and environments for the tests of `rollout/`."""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from model_cases import make_config, make_model

from segue.conf.schema import OnSwap
from segue.envs.episode_record import EpisodeRecord
from segue.envs.reply import ResetReply, StepReply
from segue.envs.tool import ToolCall, ToolSpec, object_schema
from segue.kernels.head.op import token_logprob
from segue.model.inputs import PackedInputs
from segue.model.network import SegueModel
from segue.model.pool import StatePool
from segue.model.routing import Routing
from segue.model.state import DifferentiableState
from segue.rollout.engine.base import Completion, Sampling
from segue.rollout.engine.native import NativeEngine
from segue.rollout.session import Session, SessionId
from segue.rollout.trajectory import PolicyVersion

Result = TypeVar("Result")
VERSION = PolicyVersion(1, 7)
STOP = 3


def run(awaitable: Awaitable[Result]) -> Result:
    """The result of a coroutine on an event loop of its own."""

    async def main() -> Result:
        return await asyncio.wait_for(awaitable, timeout=20)

    return asyncio.run(main())


def make_sampling(**changes: Any) -> Sampling:
    """Training at temperature 0.8, nine tokens without a stop."""
    values: dict[str, Any] = {
        "temperature": 0.8,
        "max_new_tokens": 9,
        "stop_ids": (),
        "seed": 5,
        "training": True,
    }
    return Sampling(**(values | changes))


def make_engine(
    model: SegueModel | None = None,
    *,
    num_slots: int = 16,
    num_pages: int = 128,
    max_sessions: int = 8,
    prefill_chunk_tokens: int = 16,
    on_swap: OnSwap = OnSwap.keep,
    record_experts: bool = True,
    num_spare: int = 0,
) -> NativeEngine:
    """A native engine over a small float64 model, with pages of 4 tokens."""
    model = model if model is not None else make_model(make_config())
    pool = StatePool(model.config, num_slots, num_pages, 4, model.lm_head.weight.dtype, num_spare=num_spare)
    return NativeEngine(
        model,
        pool,
        version=VERSION,
        max_sessions=max_sessions,
        prefill_chunk_tokens=prefill_chunk_tokens,
        on_swap=on_swap,
        record_experts=record_experts,
    )


def make_id(index: int | None = 0, *, task: str = "task", attempt: int = 0) -> SessionId:
    """The id of a session."""
    return SessionId(task_id=task, index=index, attempt=attempt)


def make_prompt(length: int, *, seed: int = 0) -> np.ndarray:
    """[length] int32 ids below 40."""
    return np.random.default_rng(seed).integers(0, 40, length).astype(np.int32)


def open_session(engine: Any, prompt: np.ndarray, index: int | None = 0, **changes: Any) -> Session:
    """A session that holds a prompt."""
    session: Session = engine.open(make_id(index, **changes))
    engine.extend(session, prompt)
    return session


async def generate_all(engine: Any, sessions: Sequence[Session], sampling: Sampling) -> list[Completion]:
    """One completion of each session, side by side."""
    return list(await asyncio.gather(*(engine.generate(session, sampling) for session in sessions)))


async def play_turns(
    engine: Any, session: Session, sampling: Sampling, *, num_turns: int = 3
) -> list[tuple[int, Completion]]:
    """Turns with given tokens between them; [(start, completion)]."""
    turns = []
    for turn in range(num_turns):
        start = len(session)
        turns.append((start, await engine.generate(session, sampling)))
        if turn < num_turns - 1:
            engine.extend(session, make_prompt(1 + 6 * turn, seed=turn))
    return turns


def teacher_forced(
    model: SegueModel, token_ids: np.ndarray, temperature: float, replay_ids: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """What one forward over the whole stream says.

    Args:
        token_ids: [T].
        temperature: of every token.
        replay_ids: [T, M, k]; None lets the router choose.
    Returns:
        Log-probability of each token but the first, [T - 1], and expert ids of each token but the last, [T - 1, M, k].
    """
    ids = torch.from_numpy(token_ids.astype(np.int64))
    state = DifferentiableState.zeros(model.config, 1, model.lm_head.weight.dtype)
    routing = Routing(replay_ids=None if replay_ids is None else torch.from_numpy(replay_ids[:-1].astype(np.int64)))
    with torch.no_grad():
        hidden, _ = model(PackedInputs.pack([ids[:-1]]), state, routing)
        logprob, _ = token_logprob(
            hidden, model.lm_head.weight, ids[1:], torch.full((len(ids) - 1,), temperature, dtype=torch.float32)
        )
    return logprob.numpy(), routing.expert_ids.numpy()


class FakeEnvironments:
    """Environments that answer from a list and write down what they are asked.

    Args:
        replies: what each step of an episode answers, in order: a reply, or an exception to raise.
        resets: what each reset or restore does, in order, then None: an exception to raise, or None to begin.
        observation: the user's message.
    """

    tools = (ToolSpec(name="look", description="Looks.", parameters=object_schema({"at": {"type": "string"}})),)

    def __init__(
        self,
        replies: Sequence[StepReply | Exception] = (),
        *,
        resets: Sequence[Exception | None] = (),
        observation: str = "go",
    ) -> None:
        self.events: list[tuple[Any, ...]] = []
        self._replies = list(replies)
        self._resets = list(resets)
        self._observation = observation
        self._num_steps: dict[str, int] = {}

    async def reset(self, episode_id: str, seed: int, options: dict[str, Any] | None) -> ResetReply:
        """See `Environments`."""
        self.events.append(("reset", episode_id, seed, options))
        self._begin(episode_id, 0)
        return ResetReply(observation=self._observation, system="", tools=self.tools, info={"kind": "fake"})

    async def step(self, episode_id: str, call: ToolCall) -> StepReply:
        """See `Environments`."""
        self.events.append(("step", episode_id, call.name, call.arguments))
        reply = self._replies[self._num_steps[episode_id]]
        self._num_steps[episode_id] += 1
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def expert(self, episode_id: str, skill: str) -> dict[str, Any]:
        """See `Environments`."""
        return {"response": skill, "calls": [{"name": "look", "arguments": {"at": str(self._num_steps[episode_id])}}]}

    async def record(self, episode_id: str) -> EpisodeRecord:
        """See `Environments`."""
        self.events.append(("record", episode_id))
        calls = (({"op": "step"}, {"step": number}) for number in range(self._num_steps[episode_id]))
        return EpisodeRecord(snapshot=None, num_snapshot_steps=0, calls=tuple(calls))

    async def restore(self, episode_id: str, seed: int, record: EpisodeRecord) -> None:
        """See `Environments`."""
        self.events.append(("restore", episode_id, seed, len(record.calls)))
        self._begin(episode_id, len(record.calls))

    async def close(self, episode_id: str) -> None:
        """See `Environments`."""
        self.events.append(("close", episode_id))

    def _begin(self, episode_id: str, num_steps: int) -> None:
        failure = self._resets.pop(0) if self._resets else None
        if failure is not None:
            raise failure
        self._num_steps[episode_id] = num_steps


def make_reply(observation: str = "seen", **changes: Any) -> StepReply:
    """A step that ends nothing and earns nothing."""
    values: dict[str, Any] = {"reward_terms": {}, "terminated": False, "truncated": False, "info": {}}
    return StepReply(observation=observation, **(values | changes))
