"""What the native engine keeps for a session and for a call of `generate`."""

import asyncio
import math
from dataclasses import dataclass, field

import numpy as np

from segue.envs.clock import EpisodeClock, present_clock
from segue.model.pool import Slot
from segue.rollout.engine.base import Completion, FinishReason, Sampling
from segue.rollout.engine.tape import TapePiece
from segue.rollout.noise import noise_key
from segue.rollout.session import Session
from segue.rollout.trajectory import Int32Array, PolicyVersion, UInt16Array


@dataclass(slots=True, kw_only=True, eq=False)
class SharedPages:
    """Full pages that a state and its forks have in common; nobody writes them."""

    num_pages: int
    num_owners: int
    """States that hold them."""


@dataclass(slots=True, eq=False)
class CachedState:
    """A session and its state, if there is one."""

    session: Session
    age: int
    """Place in the order of opening: the older of two sessions has the first claim on memory."""
    slot: Slot | None = None
    oldest_version: PolicyVersion | None = None
    """Version of the first weights that fed the state; None where it has fed nothing."""
    newest_version: PolicyVersion | None = None
    """Version of the last ones."""
    num_own_pages: int = 0
    """Pages set aside for it alone, used or not."""
    shared_pages: tuple[SharedPages, ...] = ()
    """Full pages that it and others began with."""
    had_state: bool = False
    """True once it has held a state: the next one that must be built is a miss."""
    last_used: int = 0
    """The engine's forward that used it last."""
    request: "Request | None" = None
    """What it is doing; None where it is idle."""
    waiting_forks: "list[Request]" = field(default_factory=list)
    """Requests that start as soon as this state is ready to be forked."""

    @property
    def num_fed(self) -> int:
        """Tokens that the state has consumed."""
        return 0 if self.slot is None else self.slot.num_tokens

    @property
    def num_shared_pages(self) -> int:
        """Pages in `shared_pages`."""
        return sum(pages.num_pages for pages in self.shared_pages)

    @property
    def is_evictable(self) -> bool:
        """True where a state is held that nobody works on or is about to fork."""
        is_running = self.request is not None and self.request.is_running
        return self.slot is not None and not is_running and not self.waiting_forks

    @property
    def is_ready_to_fork(self) -> bool:
        """True where the state has consumed all of the session but the last token, which a fork feeds itself."""
        return self.slot is not None and self.request is None and self.num_fed == len(self.session) - 1

    def note_fed(self, version: PolicyVersion) -> None:
        """Record the weights of a forward over this state."""
        self.oldest_version = self.oldest_version or version
        self.newest_version = version

    def is_pure(self, version: PolicyVersion) -> bool:
        """True where nothing but these weights has fed the state."""
        return self.slot is not None and self.oldest_version == self.newest_version == version


@dataclass(slots=True, eq=False)
class Request:
    """Work on one session: feed all of `stream` but its last token, then sample if `sampling` says how.

    The last token is fed by the first decode step, so that sampling happens in one place.
    """

    state: CachedState
    stream: Int32Array
    """Tokens to feed: the session's, and what this request has sampled before its state was lost."""
    sampling: Sampling | None
    """None feeds only (a prefix that others fork)."""
    future: "asyncio.Future[Completion] | None"
    clock: EpisodeClock
    """Stands still while the request waits."""
    key: int = 0
    """Noise key of the session under the sampling's seed."""
    is_running: bool = False
    """True from admission on: its state is not to be taken away."""
    num_sampled: int = 0
    pieces: list[TapePiece] = field(default_factory=list)
    """What was sampled so far, but for the steps still on the tape."""
    fed_experts: list[tuple[int, UInt16Array]] = field(default_factory=list)
    """(index of the first token, rows [n, M, k]) in the order of feeding."""

    @classmethod
    def for_sampling(cls, state: CachedState, sampling: Sampling, future: "asyncio.Future[Completion]") -> "Request":
        """A request that continues the session's stream."""
        return cls(
            state=state,
            stream=state.session.token_ids,
            sampling=sampling,
            future=future,
            clock=present_clock(),
            key=noise_key(sampling.seed, state.session.id),
        )

    @classmethod
    def for_feeding(cls, state: CachedState) -> "Request":
        """A request that only prepares the session's state."""
        return cls(
            state=state, stream=state.session.token_ids, sampling=None, future=None, clock=EpisodeClock(math.inf)
        )

    @property
    def num_unfed(self) -> int:
        """Tokens to feed before the last one."""
        return len(self.stream) - 1 - self.state.num_fed

    @property
    def max_length(self) -> int:
        """Tokens of the session when this request is finished, at most."""
        if self.sampling is None:
            return len(self.stream)
        return len(self.stream) + self.sampling.max_new_tokens - self.num_sampled

    def wait(self) -> None:
        """Queue, behind others."""
        self.is_running = False
        self.clock.begin_wait()

    def run(self) -> None:
        """Memory was given: from here on the time is the request's own."""
        self.is_running = True
        self.clock.end_wait()

    def leave(self) -> None:
        """Nothing works on the request any more."""
        if not self.is_running:
            self.clock.end_wait()

    def take(self, piece: TapePiece) -> None:
        """Keep what was sampled; its expert rows belong to the tokens one before."""
        # not from `stream`, which holds earlier pieces only where the state was rebuilt
        start = len(self.state.session) - 1 + sum(len(earlier.token_ids) for earlier in self.pieces)
        self.fed_experts.append((start, piece.expert_ids))
        self.pieces.append(piece)

    def restart(self) -> None:
        """Go back to waiting, to go on from the tokens alone: everything sampled so far joins the stream to feed."""
        self.stream = np.concatenate([self.state.session.token_ids, *(piece.token_ids for piece in self.pieces)])

    def finish(self) -> None:
        """Append what was sampled to the session and hand it to the caller."""
        session = self.state.session
        for start, rows in self.fed_experts:
            session.record_experts(start, rows)
        if self.sampling is None or self.future is None:
            return
        ids, logprobs, incarnation, step = (
            np.concatenate([getattr(piece, name) for piece in self.pieces])
            for name in ("token_ids", "logprobs", "policy_incarnation", "policy_step")
        )
        session.append(ids)
        is_stop = int(ids[-1]) in self.sampling.stop_ids
        completion = Completion(
            token_ids=ids,
            logprobs=logprobs,
            policy_incarnation=incarnation,
            policy_step=step,
            finish_reason=FinishReason.stop if is_stop else FinishReason.length,
        )
        if not self.future.done():
            self.future.set_result(completion)

    def fail(self, error: BaseException) -> None:
        """Hand an error to the caller."""
        if self.future is not None and not self.future.done():
            self.future.set_exception(error)
