"""Continuous batching on our own model, in this process.

Forwards run one at a time in a thread of the engine's own, so that environments are answered meanwhile; while one
runs, the event loop's thread touches nothing that it reads. A round is: admit, feed, decode (`scheduler.py` says who).
What callers want changed meanwhile (sessions closed) is changed right after the forward, so never inside one. New
weights are copied in the same thread, between two forwards. Decode steps follow each other in the thread until a
session is finished or a caller wants something.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from segue.conf.schema import OnSwap, RolloutConfig
from segue.model.checkpoint import published_tensors
from segue.model.inputs import PackedInputs
from segue.model.network import SegueModel
from segue.model.pool import PooledState, StatePool
from segue.model.routing import Routing
from segue.model.weights import WeightUpdate, check_weights, copy_weights
from segue.rollout.engine.base import Completion, EngineFailure, Sampling
from segue.rollout.engine.batch import DecodeBatch
from segue.rollout.engine.graphs import DecodeSteps
from segue.rollout.engine.request import CachedState, Request
from segue.rollout.engine.scheduler import Scheduler
from segue.rollout.engine.stats import EngineStats
from segue.rollout.session import Session, SessionId
from segue.rollout.trajectory import PolicyVersion, Source

Result = TypeVar("Result")


class NativeEngine:
    """See `Engine`.

    Args:
        model: sampled from as it is; `load_weights` writes into it.
        pool: an unused pool of states for this model; with a spare slot and page, steps have fixed sizes, which on a
            GPU are graphs.
        version: of the model's present weights.
        max_sessions: most sessions that are fed or decode at a time.
        prefill_chunk_tokens: most tokens fed between two decode steps.
        on_swap: what new weights do to the states that older ones built.
        record_experts: keep the experts of each token with its session.
    Invariants:
        tests/contract/test_engine_contract.py and tests/unit/rollout/test_native.py.
    """

    source = Source.policy

    def __init__(
        self,
        model: SegueModel,
        pool: StatePool,
        *,
        version: PolicyVersion,
        max_sessions: int,
        prefill_chunk_tokens: int,
        on_swap: OnSwap,
        record_experts: bool,
    ) -> None:
        config = model.config
        self.version = version
        self.stats = EngineStats()
        self._model = model
        self._pool = pool
        self._on_swap = on_swap
        self._num_recorded = len(config.moe_layers) if record_experts else 0
        self._scheduler = Scheduler(
            pool, self.stats, max_sessions=max_sessions, prefill_chunk_tokens=prefill_chunk_tokens
        )
        self._batch = DecodeBatch(
            pool,
            max_rows=max_sessions,
            vocab_size=config.vocab_size,
            expert_shape=(self._num_recorded, config.num_experts_per_token),
        )
        self._steps = (
            DecodeSteps(model, pool, num_recorded=self._num_recorded, stats=self.stats) if pool.num_spare else None
        )
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="native engine")
        self._is_computing = False
        self._changes: list[Callable[[], None]] = []
        self._swaps: list[_Swap] = []
        # set by callers, read between two decode steps
        self._has_news = False
        self._loop: asyncio.Task[None] | None = None

    def open(self, session_id: SessionId, *, fork_of: Session | None = None) -> Session:
        """See `Engine`."""
        session = Session(session_id, fork_of=fork_of)
        self._scheduler.add(session)
        return session

    def extend(self, session: Session, token_ids: ArrayLike) -> None:
        """See `Engine`."""
        self._idle_state(session)
        self._check_vocabulary(token_ids)
        session.append(token_ids)

    async def generate(self, session: Session, sampling: Sampling) -> Completion:
        """See `Engine`."""
        state = self._idle_state(session)
        session.check_not_empty()
        self._check_vocabulary(sampling.stop_ids)
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        request = Request.for_sampling(state, sampling, future)
        if not self._scheduler.can_ever_hold(request.max_length):
            raise ValueError(
                f"{session.id} may grow to {request.max_length} tokens, which rollout.state_budget_mb cannot hold"
            )
        self._scheduler.start(request)
        self._has_news = True
        self._wake()
        try:
            return await future
        except asyncio.CancelledError:
            self._change(partial(self._abandon, request))
            raise

    def close(self, session: Session) -> None:
        """See `Engine`."""
        if not session.is_closed:
            session.is_closed = True
            self._change(partial(self._release, session))

    async def load_weights(self, update: WeightUpdate, version: PolicyVersion) -> None:
        """See `Engine`."""
        tensors = published_tensors(self._model)
        # reading every byte takes long, and environments want answers meanwhile
        await asyncio.to_thread(check_weights, update, tensors)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._swaps.append(_Swap(update=update, tensors=tensors, version=version, done=done))
        self._has_news = True
        self._wake()
        await done

    def _check_vocabulary(self, token_ids: ArrayLike) -> None:
        """Refuse ids that the model has no embedding for: inside a forward they would end everybody's."""
        ids, vocab_size = np.asarray(token_ids), self._model.config.vocab_size
        if ids.size and not (ids.min() >= 0 and ids.max() < vocab_size):
            raise ValueError(f"token ids must be in [0, {vocab_size - 1}], got {ids.min()} to {ids.max()}")

    def _idle_state(self, session: Session) -> CachedState:
        session.check_open()
        state = self._scheduler.states[session]
        if state.request is not None:
            raise ValueError(f"{session.id} is generating already")
        return state

    def _change(self, change: Callable[[], None]) -> None:
        """Change what forwards read, but not while one runs."""
        if self._is_computing:
            self._changes.append(change)
            self._has_news = True
            return
        change()
        if self._scheduler.has_waiting:
            self._wake()

    def _release(self, session: Session) -> None:
        state = self._scheduler.states[session]
        if state.request is not None:
            state.request.fail(ValueError(f"{session.id} was closed while it was generating"))
            self._abandon(state.request)
        self._scheduler.release(state)

    def _abandon(self, request: Request) -> None:
        if request.state.request is not request:
            return
        if request in self._batch.requests:
            self._batch.remove([self._batch.requests.index(request)])
        self._scheduler.abandon(request)

    def _wake(self) -> None:
        """See to it that the loop runs."""
        if self._loop is None or self._loop.done():
            self._loop = asyncio.get_running_loop().create_task(self._run(), name="native engine")
            self._loop.add_done_callback(self._pass_on_failure)

    async def _run(self) -> None:
        while await self._advance():
            pass

    def _pass_on_failure(self, loop: "asyncio.Task[None]") -> None:
        """Let everyone who waits see why the loop ended early."""
        self._make_changes()
        error = EngineFailure("the engine's loop was cancelled") if loop.cancelled() else loop.exception()
        if error is None:
            return
        for state in self._scheduler.states.values():
            if state.request is not None:
                state.request.fail(error)
                self._abandon(state.request)
        for swap in self._swaps:
            if not swap.done.done():
                swap.done.set_exception(error)
        self._swaps.clear()

    async def _advance(self) -> bool:
        """One round: swap, admit, feed, decode. False where nothing can be done until someone calls."""
        self._has_news = False
        while self._swaps:
            await self._swap(self._swaps[0])
        self._batch.add(self._scheduler.admit(len(self._batch), self.version))
        feeds = self._scheduler.should_feed(len(self._batch))
        if feeds:
            await self._feed()
        decodes = len(self._batch) > 0
        if decodes:
            await self._decode()
        return feeds or decodes

    async def _swap(self, swap: "_Swap") -> None:
        """Take up new weights."""
        await self._compute(partial(self._take_up, swap))
        self._swaps.remove(swap)
        self.version = swap.version
        if self._on_swap is OnSwap.rebuild:
            self._scheduler.forget_states(self._batch.remove(range(len(self._batch))))
        for request in (*self._scheduler.feeding, *self._batch.requests):
            request.state.note_fed(self.version)
        self._make_changes()
        if not swap.done.done():
            swap.done.set_result(None)

    def _take_up(self, swap: "_Swap") -> None:
        copy_weights(swap.update, swap.tensors)
        if self._steps is not None:
            self._steps.refresh()

    async def _feed(self) -> None:
        """Feed one chunk of given tokens."""
        chunks = self._scheduler.next_chunks()
        lengths = [len(chunk.token_ids) for chunk in chunks]
        inputs = PackedInputs(
            token_ids=torch.from_numpy(np.concatenate([chunk.token_ids for chunk in chunks]).astype(np.int64)).to(
                self._pool.device
            ),
            # on the CPU, where operators read them without waiting for a GPU
            offsets=torch.from_numpy(np.cumsum([0, *lengths])),
        )
        slots = [chunk.request.state.slot for chunk in chunks]
        # always in the form for many tokens: which others are fed must not choose it
        view = self._pool.view([slot for slot in slots if slot is not None], may_step=False)

        def feed() -> NDArray[Any]:
            with self.stats.prefill.measure(sum(lengths)), torch.inference_mode():
                _, expert_ids = self._forward(inputs, view)
                return expert_ids.cpu().numpy()

        expert_ids = await self._compute(feed)
        self._batch.add(self._scheduler.note_fed(chunks, expert_ids.astype(np.uint16)))
        self._make_changes()

    async def _decode(self) -> None:
        """Sample tokens of every session in the batch: one each, and more while there is nothing else to do."""
        finished = await self._compute(self._take_steps)
        if finished:
            for request in self._batch.remove(finished):
                self._scheduler.finish(request)
        self._make_changes()

    def _take_steps(self) -> list[int]:
        """Decode until rows are finished, which are returned, or somebody waits for the steps to end."""
        while True:
            finished = self._take_step()
            if finished or self._has_news or self._scheduler.feeding:
                return finished

    def _take_step(self) -> list[int]:
        batch = self._batch
        with self.stats.decode.measure(len(batch)), torch.inference_mode():
            if self._steps is not None:
                step = self._steps.run(batch)
                return batch.record(step.token_ids, step.logprobs, step.expert_ids, self.version)
            hidden, expert_ids = self._forward(batch.inputs(), batch.view)
            ids, logprobs = batch.sample(hidden, self._model.lm_head.weight)
            return batch.record(ids.numpy(), logprobs.numpy(), expert_ids.numpy(), self.version)

    def _forward(self, inputs: PackedInputs, view: PooledState) -> tuple[Tensor, Tensor]:
        """Hidden states [T, D] and recorded expert ids [T, M, k]."""
        routing = Routing()
        hidden, _ = self._model(inputs, view, routing)
        if not self._num_recorded:
            return hidden, torch.zeros(len(hidden), 0, self._model.config.num_experts_per_token)
        return hidden, routing.expert_ids

    async def _compute(self, work: Callable[[], Result]) -> Result:
        """Run a forward in the engine's thread."""
        self._is_computing = True
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except asyncio.CancelledError:
            # nobody takes the result, so the thread stops behind its present step
            self._has_news = True
            raise
        finally:
            self._is_computing = False

    def _make_changes(self) -> None:
        changes, self._changes = self._changes, []
        for change in changes:
            change()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Swap:
    """New weights that wait for the forward at hand to end."""

    update: WeightUpdate
    tensors: dict[str, Tensor]
    """The model's, by name."""
    version: PolicyVersion
    done: "asyncio.Future[None]"


def build_native_engine(model: SegueModel, config: RolloutConfig, *, version: PolicyVersion) -> NativeEngine:
    """An engine with a pool of states within `config.state_budget_mb`.

    There are slots for twice the sessions that work at a time (the others wait for tools, or are snapshots), in at most
    half of the budget, and pages for what all slots can grow to, as far as the budget goes.

    Raises:
        ValueError: the budget cannot hold one episode.
    """
    weight = model.lm_head.weight

    def make_pool(num_slots: int, num_pages: int) -> StatePool:
        num_spare = int(weight.is_cuda)
        return StatePool(model.config, num_slots, num_pages, config.page_tokens, weight.dtype, weight.device, num_spare)

    probe = make_pool(1, 1)
    budget = config.state_budget_mb * 10**6
    slot_bytes = probe.size_bytes(0)
    page_bytes = probe.size_bytes(1) - slot_bytes
    episode_pages = probe.pages_needed(0, config.max_episode_tokens)
    if slot_bytes + episode_pages * page_bytes > budget:
        needed_mb = -(-(slot_bytes + episode_pages * page_bytes) // 10**6)
        raise ValueError(
            f"rollout.state_budget_mb must be at least {needed_mb}, for one episode of {config.max_episode_tokens} "
            f"tokens, got {config.state_budget_mb}"
        )
    num_slots = max(1, min(2 * config.max_sessions, budget // (2 * slot_bytes)))
    num_pages = num_slots * episode_pages
    if page_bytes:
        num_pages = min(num_pages, (budget - num_slots * slot_bytes) // page_bytes)
    return NativeEngine(
        model,
        make_pool(num_slots, num_pages),
        version=version,
        max_sessions=config.max_sessions,
        prefill_chunk_tokens=config.prefill_chunk_tokens,
        on_swap=config.on_swap,
        record_experts=config.record_experts,
    )
