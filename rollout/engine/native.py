"""Continuous batching on our own model, in this process, on the caller's event loop.

    generate()  ->  waiting      oldest session first; StateMemory gives or refuses memory
                       |  (a fork whose parent is not ready waits at the parent)
                    feeding      prompts and observations, several sessions packed into one forward
                       |
                    decoding     one token a session and step (DecodeBatch), until stop token or length
                       |
                    completion   the session holds its new tokens and keeps its state until it must make room

One task runs `_advance` while there is work and lets other coroutines take a turn after each round. Whatever they call
(`generate`, `close`, `load_weights`) therefore happens between two forwards and never inside one.
"""

import asyncio
import heapq
from collections.abc import Sequence
from itertools import count

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
from segue.model.weights import WeightUpdate, apply_weights
from segue.rollout.engine.base import Completion, Sampling
from segue.rollout.engine.batch import DecodeBatch
from segue.rollout.engine.memory import StateMemory
from segue.rollout.engine.request import CachedState, Request
from segue.rollout.engine.stats import EngineStats
from segue.rollout.session import Session, SessionId
from segue.rollout.trajectory import PolicyVersion, Source

# a forward over a few tokens costs as much as a decode step, so sessions that need feeding wait for company:
# until they are a quarter of those that decode, or for this many steps
_FEEDING_SHARE = 4
_MAX_FEEDING_DELAY_STEPS = 16


class NativeEngine:
    """See `Engine`.

    Args:
        model: sampled from as it is; `load_weights` writes into it.
        pool: an unused pool of states for this model.
        version: of the model's present weights.
        max_sessions: most sessions that are fed or decode at a time.
        prefill_chunk_tokens: most tokens fed between two decode steps.
        on_swap: what new weights do to the states that older ones built.
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
    ) -> None:
        config = model.config
        self.version = version
        self.stats = EngineStats()
        self._model = model
        self._pool = pool
        self._device = pool.page_table.device
        self._max_sessions = max_sessions
        self._prefill_chunk_tokens = prefill_chunk_tokens
        self._on_swap = on_swap
        self._has_experts = len(config.moe_layers) > 0
        self._memory = StateMemory(pool, self.stats)
        self._batch = DecodeBatch(
            pool,
            max_rows=max_sessions,
            vocab_size=config.vocab_size,
            expert_shape=(len(config.moe_layers), config.num_experts_per_token),
        )
        self._states: dict[Session, CachedState] = {}
        self._ages = count()
        # (age of the session, order of arrival, request)
        self._waiting: list[tuple[int, int, Request]] = []
        self._arrivals = count()
        self._feeding: list[Request] = []
        self._feeding_delay_steps = 0
        self._loop: asyncio.Task[None] | None = None

    def open(self, session_id: SessionId, *, fork_of: Session | None = None) -> Session:
        """See `Engine`."""
        session = Session(session_id, fork_of=fork_of)
        self._states[session] = CachedState(session, next(self._ages))
        return session

    def extend(self, session: Session, token_ids: ArrayLike) -> None:
        """See `Engine`."""
        if self._states[session].request is not None:
            raise ValueError(f"{session.id} is generating, and its stream is not to be extended meanwhile")
        session.append(token_ids)

    async def generate(self, session: Session, sampling: Sampling) -> Completion:
        """See `Engine`."""
        session.check_ready()
        state = self._states[session]
        if state.request is not None:
            raise ValueError(f"{session.id} is generating already")
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        request = Request.for_sampling(state, sampling, future)
        if not self._memory.can_ever_hold(request.max_length):
            raise ValueError(
                f"{session.id} may grow to {request.max_length} tokens, which rollout.state_budget_mb cannot hold"
            )
        self._start(request)
        self._wake()
        try:
            return await future
        except asyncio.CancelledError:
            self._abandon(request)
            raise

    def close(self, session: Session) -> None:
        """See `Engine`."""
        session.is_closed = True
        state = self._states.pop(session, None)
        if state is None:
            return
        if state.request is not None:
            state.request.fail(ValueError(f"{session.id} was closed while it was generating"))
            self._abandon(state.request)
        self._memory.drop(state)
        self._release_forks(state)
        if self._waiting:
            self._wake()

    def load_weights(self, update: WeightUpdate, version: PolicyVersion) -> None:
        """See `Engine`."""
        apply_weights(update, published_tensors(self._model))
        self.version = version
        self.stats.num_swaps += 1
        if self._on_swap is OnSwap.rebuild:
            self._forget_states()
        for request in [*self._feeding, *self._batch.requests]:
            request.state.note_fed(version)

    def _wake(self) -> None:
        """See to it that the loop runs."""
        if self._loop is None or self._loop.done():
            self._loop = asyncio.get_running_loop().create_task(self._run(), name="native engine")
            self._loop.add_done_callback(self._pass_on_failure)

    async def _run(self) -> None:
        while self._advance():
            await asyncio.sleep(0)

    def _pass_on_failure(self, loop: "asyncio.Task[None]") -> None:
        """Let everyone who waits see why the loop ended early."""
        error = asyncio.CancelledError() if loop.cancelled() else loop.exception()
        if error is None:
            return
        for state in self._states.values():
            if state.request is not None:
                state.request.fail(error)
                self._abandon(state.request)

    def _advance(self) -> bool:
        """One round: admit, feed, decode. False where nothing could be done until someone calls."""
        self._admit()
        feeds, decodes = self._should_feed(), len(self._batch) > 0
        if feeds:
            self._feed()
        if decodes:
            self._decode()
        return feeds or decodes

    def _admit(self) -> None:
        """Give memory to waiting requests, oldest session first; one that must wait holds up those behind it."""
        ready: list[Request] = []
        while self._waiting and len(self._feeding) + len(self._batch) + len(ready) < self._max_sessions:
            entry = heapq.heappop(self._waiting)
            request = entry[2]
            parent = self._parent(request)
            if parent is not None and not parent.is_ready_to_fork:
                parent.waiting_forks.append(request)
            elif self._give_memory(request, parent):
                self._put_to_work(request, ready)
            else:
                heapq.heappush(self._waiting, entry)
                break
        self._batch.add(ready)

    def _parent(self, request: Request) -> CachedState | None:
        """The state that this request's should be forked from: ready, or being fed. None to feed all tokens anew."""
        session = request.state.session
        if request.state.slot is not None or session.fork_of is None:
            return None
        parent = self._states.get(session.fork_of)
        # the last token is left to the fork, so a parent of one token has nothing to give
        if parent is None or len(parent.session) != session.fork_length or session.fork_length < 2:
            return None
        if parent.request is not None:
            return parent if parent.request.sampling is None else None
        if parent.is_ready_to_fork and parent.is_pure(self.version):
            return parent
        self._memory.drop(parent)
        if not self._memory.has_room(len(parent.session), request.max_length):
            return None
        self._start(Request.for_feeding(parent))
        return parent

    def _give_memory(self, request: Request, parent: CachedState | None) -> bool:
        state, length = request.state, request.max_length
        if self._memory.admit(state, length, fork_of=parent):
            return True
        # the parent's state may be what is in the way
        return parent is not None and self._memory.admit(state, length)

    def _put_to_work(self, request: Request, ready: list[Request]) -> None:
        request.is_running = True
        request.state.note_fed(self.version)
        (self._feeding if request.num_unfed else ready).append(request)

    def _should_feed(self) -> bool:
        """Whether sessions that need feeding have waited for company long enough."""
        if not self._feeding:
            return False
        return (
            len(self._feeding) * _FEEDING_SHARE >= len(self._batch)
            or self._feeding_delay_steps >= _MAX_FEEDING_DELAY_STEPS
            or sum(request.num_unfed for request in self._feeding) >= self._prefill_chunk_tokens
        )

    def _feed(self) -> None:
        """Feed one chunk of given tokens, of as many sessions as it takes in, first come first served."""
        chunks: list[NDArray[np.int32]] = []
        fed: list[Request] = []
        room = self._prefill_chunk_tokens
        for request in self._feeding:
            start = request.state.num_fed
            chunks.append(request.stream[start : start + min(request.num_unfed, room)])
            fed.append(request)
            room -= len(chunks[-1])
            if not room:
                break
        starts = [request.state.num_fed for request in fed]
        borders = np.cumsum([0, *map(len, chunks)])
        view = self._pool.view([request.state.slot for request in fed if request.state.slot is not None])
        inputs = PackedInputs(
            token_ids=torch.from_numpy(np.concatenate(chunks).astype(np.int64)).to(self._device),
            offsets=torch.from_numpy(borders).to(self._device),
        )
        with self.stats.prefill.measure(int(borders[-1])), torch.no_grad():
            _, experts = self._forward(inputs, view)
            rows = experts.cpu().numpy().astype(np.uint16)
        for request, start, chunk_rows in zip(fed, starts, np.split(rows, borders[1:-1]), strict=True):
            request.fed_experts.append((start, chunk_rows))
        self._feeding_delay_steps = 0
        self._leave_feeding([request for request in fed if not request.num_unfed])

    def _leave_feeding(self, requests: Sequence[Request]) -> None:
        self._feeding = [request for request in self._feeding if request not in requests]
        self._batch.add([request for request in requests if request.sampling is not None])
        for request in requests:
            if request.sampling is None:
                self._finish(request)

    def _decode(self) -> None:
        """Sample one token of every session in the batch."""
        batch = self._batch
        with self.stats.decode.measure(len(batch)), torch.no_grad():
            hidden, experts = self._forward(batch.inputs(), batch.view)
            ids, logprobs = batch.sample(hidden, self._model.lm_head.weight)
            finished = batch.record(ids, logprobs, experts, self.version)
        self._feeding_delay_steps += 1
        if finished:
            for request in batch.remove(finished):
                self._finish(request)

    def _forward(self, inputs: PackedInputs, view: PooledState) -> tuple[Tensor, Tensor]:
        """Hidden states [T, D] and expert ids [T, M, k]."""
        routing = Routing()
        hidden, _ = self._model(inputs, view, routing)
        if not self._has_experts:
            return hidden, torch.zeros(len(hidden), 0, self._model.config.num_experts_per_token)
        return hidden, routing.expert_ids

    def _finish(self, request: Request) -> None:
        """Hand the result over; the session keeps its state."""
        state = request.state
        request.finish()
        state.request = None
        state.last_used = self.stats.prefill.num_forwards + self.stats.decode.num_forwards
        self.stats.peak_pages = max(self.stats.peak_pages, self._pool.num_pages - self._pool.free_pages)
        self._memory.trim(state)
        self._release_forks(state)

    def _start(self, request: Request) -> None:
        request.state.request = request
        self._wait(request)

    def _wait(self, request: Request) -> None:
        heapq.heappush(self._waiting, (request.state.age, next(self._arrivals), request))

    def _release_forks(self, state: CachedState) -> None:
        for request in state.waiting_forks:
            self._wait(request)
        state.waiting_forks.clear()

    def _abandon(self, request: Request) -> None:
        """Forget a request, and the state, which may have consumed tokens that the session does not hold."""
        state = request.state
        if state.request is not request:
            return
        state.request = None
        self._waiting = [entry for entry in self._waiting if entry[2] is not request]
        heapq.heapify(self._waiting)
        self._feeding = [other for other in self._feeding if other is not request]
        if request in self._batch.requests:
            self._batch.remove([self._batch.requests.index(request)])
        parent = self._states.get(state.session.fork_of) if state.session.fork_of is not None else None
        if parent is not None and request in parent.waiting_forks:
            parent.waiting_forks.remove(request)
        self._memory.drop(state)
        self._release_forks(state)

    def _forget_states(self) -> None:
        """Drop every state; sessions at work are fed again from their tokens."""
        running = self._batch.remove(range(len(self._batch))) + self._feeding
        self._feeding = []
        for request in running:
            request.restart()
            self._wait(request)
        for state in self._states.values():
            self._memory.drop(state)


def build_native_engine(model: SegueModel, config: RolloutConfig, *, version: PolicyVersion) -> NativeEngine:
    """An engine with a pool of states within `config.state_budget_mb`.

    There are slots for twice the sessions that work at a time (the others wait for tools, or are snapshots), in at most
    half of the budget, and pages for what all slots can grow to, as far as the budget goes.

    Raises:
        ValueError: the budget cannot hold one episode.
    """
    weight = model.lm_head.weight

    def make_pool(num_slots: int, num_pages: int) -> StatePool:
        return StatePool(model.config, num_slots, num_pages, config.page_tokens, weight.dtype, weight.device)

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
    )
