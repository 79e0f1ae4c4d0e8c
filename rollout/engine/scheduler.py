"""Who works next: requests that wait for memory, and those whose tokens are being fed.

start  ->  waiting   oldest session first; StateMemory gives or refuses memory
              |      (a fork whose parent is not ready waits at the parent)
           feeding   all tokens but the last, several sessions packed into one forward
              |
           ready     to decode: handed to the engine, which returns the request to `finish`
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np

from segue.model.pool import StatePool
from segue.rollout.engine.memory import StateMemory
from segue.rollout.engine.request import CachedState, Request
from segue.rollout.engine.stats import EngineStats
from segue.rollout.session import Session
from segue.rollout.trajectory import Int32Array, PolicyVersion, UInt16Array

# a forward over a few tokens costs as much as a decode step, so sessions that need feeding wait for company:
# until they are a quarter of those that decode, or for this many steps
_FEEDING_SHARE = 4
_MAX_FEEDING_DELAY_STEPS = 16


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens that one forward feeds to one session."""

    request: Request
    start: int
    """Index of the first in the session's stream."""
    token_ids: Int32Array


class Scheduler:
    """Sessions with their states, and the queues of requests.

    Args:
        pool: holds the states.
        stats: counted into.
        max_sessions: most sessions that are fed or decode at a time.
        prefill_chunk_tokens: most tokens fed in one forward.
    """

    def __init__(self, pool: StatePool, stats: EngineStats, *, max_sessions: int, prefill_chunk_tokens: int) -> None:
        self.states: dict[Session, CachedState] = {}
        self.feeding: list[Request] = []
        self._stats = stats
        self._memory = StateMemory(pool, stats)
        self._max_sessions = max_sessions
        self._prefill_chunk_tokens = prefill_chunk_tokens
        self._ages = count()
        # (age of the session, order of arrival, request)
        self._waiting: list[tuple[int, int, Request]] = []
        self._arrivals = count()
        self._feeding_delay_steps = 0

    @property
    def has_waiting(self) -> bool:
        """True where a request waits for memory or for its turn."""
        return bool(self._waiting)

    def add(self, session: Session) -> None:
        """Take up a session that was just opened."""
        self.states[session] = CachedState(session, next(self._ages))

    def can_ever_hold(self, num_tokens: int) -> bool:
        """Whether a session of so many tokens could be worked on if it were alone."""
        return self._memory.can_ever_hold(num_tokens)

    def start(self, request: Request) -> None:
        """Queue a request."""
        request.state.request = request
        request.wait()
        self._enqueue(request)

    def admit(self, num_decoding: int, version: PolicyVersion) -> list[Request]:
        """Give memory to waiting requests, oldest session first; one that must wait holds up those behind it.

        Args:
            num_decoding: sessions that decode.
            version: of the present weights.
        Returns:
            Those that are ready to decode; the others are fed first.
        """
        ready: list[Request] = []
        while self._waiting and len(self.feeding) + num_decoding + len(ready) < self._max_sessions:
            entry = heapq.heappop(self._waiting)
            request = entry[2]
            parent = self._find_parent(request, version)
            if parent is not None and not parent.is_ready_to_fork:
                parent.waiting_forks.append(request)
            elif self._give_memory(request, parent):
                request.run()
                request.state.note_fed(version)
                (self.feeding if request.num_unfed else ready).append(request)
            else:
                heapq.heappush(self._waiting, entry)
                break
        return ready

    def should_feed(self, num_decoding: int) -> bool:
        """Whether those that need feeding have waited for company long enough; asked once a decode step."""
        if not self.feeding:
            return False
        self._feeding_delay_steps += 1
        return (
            len(self.feeding) * _FEEDING_SHARE >= num_decoding
            or self._feeding_delay_steps > _MAX_FEEDING_DELAY_STEPS
            or sum(request.num_unfed for request in self.feeding) >= self._prefill_chunk_tokens
        )

    def next_chunks(self) -> list[Chunk]:
        """What the next feeding forward takes, first come first served.

        Where a session's tokens are cut depends on that session alone: another cut would sum in another order.
        """
        chunks: list[Chunk] = []
        room = self._prefill_chunk_tokens
        for request in self.feeding:
            start = request.state.num_fed
            token_ids = request.stream[start : start + min(request.num_unfed, self._prefill_chunk_tokens)]
            room -= len(token_ids)
            if room < 0:
                break
            chunks.append(Chunk(request, start, token_ids))
        return chunks

    def note_fed(self, chunks: Sequence[Chunk], expert_ids: UInt16Array) -> list[Request]:
        """Take the result of a feeding forward.

        Args:
            chunks: what it fed.
            expert_ids: [T, M, k] of all chunks' tokens, one after another.
        Returns:
            Those that are now ready to decode.
        """
        self._feeding_delay_steps = 0
        borders = np.cumsum([len(chunk.token_ids) for chunk in chunks])
        for chunk, rows in zip(chunks, np.split(expert_ids, borders[:-1]), strict=True):
            chunk.request.fed_experts.append((chunk.start, rows))
        fed = [request for request in self.feeding if not request.num_unfed]
        self.feeding = [request for request in self.feeding if request.num_unfed]
        for request in fed:
            if request.sampling is None:
                self.finish(request)
        return [request for request in fed if request.sampling is not None]

    def finish(self, request: Request) -> None:
        """Hand a request's result over; the session keeps its state."""
        state = request.state
        request.finish()
        state.request = None
        state.last_used = self._stats.prefill.num_forwards + self._stats.decode.num_forwards
        self._memory.trim(state)
        self._release_forks(state)

    def abandon(self, request: Request) -> None:
        """Forget a request that does not decode, and its state, which may have consumed tokens of the request only."""
        state = request.state
        state.request = None
        request.leave()
        self._waiting = [entry for entry in self._waiting if entry[2] is not request]
        heapq.heapify(self._waiting)
        self.feeding = [other for other in self.feeding if other is not request]
        parent = None if state.session.fork_of is None else self.states.get(state.session.fork_of)
        if parent is not None and request in parent.waiting_forks:
            parent.waiting_forks.remove(request)
        self._drop(state)

    def release(self, state: CachedState) -> None:
        """Forget a session that nothing works on."""
        self._drop(state)
        del self.states[state.session]

    def forget_states(self, decoding: Sequence[Request]) -> None:
        """Drop every state; sessions at work (those that decode among them) are fed again from their tokens."""
        for request in (*decoding, *self.feeding):
            request.restart()
            request.wait()
            self._enqueue(request)
        self.feeding = []
        for state in self.states.values():
            self._memory.drop(state)

    def _enqueue(self, request: Request) -> None:
        heapq.heappush(self._waiting, (request.state.age, next(self._arrivals), request))

    def _drop(self, state: CachedState) -> None:
        self._memory.drop(state)
        self._release_forks(state)

    def _release_forks(self, state: CachedState) -> None:
        for request in state.waiting_forks:
            self._enqueue(request)
        state.waiting_forks.clear()

    def _find_parent(self, request: Request, version: PolicyVersion) -> CachedState | None:
        """The state that this request's should be forked from: ready, or being fed. None to feed all tokens anew."""
        session = request.state.session
        if request.state.slot is not None or session.fork_of is None:
            return None
        parent = self.states.get(session.fork_of)
        # the last token is left to the fork, so a parent of one token has nothing to give
        if parent is None or len(parent.session) != session.fork_length or session.fork_length < 2:
            return None
        if parent.request is not None:
            return parent if parent.request.sampling is None else None
        if parent.is_ready_to_fork and parent.is_pure(version):
            return parent
        self._memory.drop(parent)
        if not self._memory.has_room_for_fork(len(parent.session), request.max_length):
            return None
        self.start(Request.for_feeding(parent))
        return parent

    def _give_memory(self, request: Request, parent: CachedState | None) -> bool:
        state, length = request.state, request.max_length
        if self._memory.admit(state, length, fork_of=parent):
            return True
        # the parent's state may be what is in the way
        return parent is not None and self._memory.admit(state, length)
