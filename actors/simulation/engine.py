"""A rollout actor's engine in virtual time.

An iteration is a decode step of all sessions that sample, one token each, and a chunk of the prompts and observations
that wait to be fed. Between two events both go on evenly, so that what is done is two numbers: tokens that a session
has sampled since the start if it always did, and tokens that were fed.
"""

import bisect
import heapq
import itertools
from collections import deque
from collections.abc import Callable
from functools import partial

from segue.actors.simulation.events import Events
from segue.conf.schema import SimulateConfig
from segue.rollout.trajectory import PolicyVersion

VersionCounts = list[tuple[PolicyVersion, int]]
"""Tokens by the weights that sampled them."""


class Engine:
    """See the module.

    Args:
        chunk_tokens: fed between two decode steps.
    """

    def __init__(self, events: Events, config: SimulateConfig, chunk_tokens: int) -> None:
        self._events = events
        self._config = config
        self._chunk_tokens = chunk_tokens
        self._order = itertools.count()
        # (tokens sampled when it is done, order, tokens sampled when it began, its tokens, what then happens)
        self._decoding: list[tuple[float, int, float, int, Callable[[VersionCounts], None]]] = []
        # (tokens fed when it is done, what then happens)
        self._feeding: deque[tuple[float, Callable[[], None]]] = deque()
        self._sampled = self._fed = 0.0
        self._settled_at = 0.0
        self._plan_number = 0
        # tokens sampled at each swap, and the weights that it brought
        self._swaps: list[float] = []
        self._versions: list[PolicyVersion] = []
        self.busy_s = 0.0
        """Seconds in which it had something to do, up to when it was settled last."""
        self.num_sampled = 0
        """Tokens of the turns that are done."""

    def feed(self, num_tokens: int, done: Callable[[], None]) -> None:
        """Feed a prompt or an observation, behind those that wait."""
        self.settle()
        last = self._feeding[-1][0] if self._feeding else self._fed
        self._feeding.append((last + num_tokens, done))
        self._plan()

    def decode(self, num_tokens: int, done: Callable[[VersionCounts], None]) -> None:
        """Sample a turn; `done` is told by which weights."""
        self.settle()
        item = (self._sampled + num_tokens, next(self._order), self._sampled, num_tokens, done)
        heapq.heappush(self._decoding, item)
        self._plan()

    def swap(self, version: PolicyVersion) -> None:
        """New weights, between two decode steps."""
        self.settle()
        self._swaps.append(self._sampled)
        self._versions.append(version)

    def settle(self) -> None:
        """Bring the counters up to now."""
        elapsed_s = self._events.now - self._settled_at
        self._settled_at = self._events.now
        if elapsed_s > 0 and (self._decoding or self._feeding):
            iterations = elapsed_s / self._iteration_s()
            self._sampled += iterations if self._decoding else 0.0
            self._fed += iterations * self._chunk_tokens if self._feeding else 0.0
            self.busy_s += elapsed_s

    def _iteration_s(self) -> float:
        config = self._config
        decode_s = config.decode_step_s + config.decode_session_s * len(self._decoding) if self._decoding else 0.0
        return decode_s + (self._chunk_tokens / config.prefill_tokens_per_s if self._feeding else 0.0)

    def _plan(self) -> None:
        """Wake up when the next session or prompt is done."""
        self._plan_number += 1
        never = float("inf")
        turn = self._decoding[0][0] - self._sampled if self._decoding else never
        prompt = (self._feeding[0][0] - self._fed) / self._chunk_tokens if self._feeding else never
        if self._decoding or self._feeding:
            wake = partial(self._wake, self._plan_number, is_turn=turn <= prompt)
            self._events.after(max(min(turn, prompt), 0.0) * self._iteration_s(), wake)

    def _wake(self, plan_number: int, *, is_turn: bool) -> None:
        if plan_number != self._plan_number:
            # something came between
            return
        self.settle()
        # exactly: what the clock rounds off must not keep anything from being done
        if is_turn:
            self._sampled = self._decoding[0][0]
        else:
            self._fed = self._feeding[0][0]
        finished: list[Callable[[], None]] = []
        while self._decoding and self._decoding[0][0] <= self._sampled:
            _, _, begin, num_tokens, done = heapq.heappop(self._decoding)
            self.num_sampled += num_tokens
            finished.append(partial(done, self._by_version(begin, num_tokens)))
        while self._feeding and self._feeding[0][0] <= self._fed:
            finished.append(self._feeding.popleft()[1])
        for happen in finished:
            happen()
        self._plan()

    def _by_version(self, begin: float, num_tokens: int) -> VersionCounts:
        """Tokens of a turn that began at `begin`, by the swaps that fell into it."""
        first = max(bisect.bisect_right(self._swaps, begin) - 1, 0)
        counts: VersionCounts = []
        done = 0
        for index in range(first, len(self._swaps)):
            is_last = index + 1 == len(self._swaps)
            upto = num_tokens if is_last else min(max(round(self._swaps[index + 1] - begin), done), num_tokens)
            if upto > done:
                counts.append((self._versions[index], upto - done))
            done = upto
        return counts
