"""The clock of an episode: seconds that it uses itself. While it waits behind others, its clock stands still.

Nothing is handed around: whoever plays an episode enters its clock, and whoever has it wait asks for the present one.
"""

import asyncio
import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType

_PRESENT: ContextVar["EpisodeClock"] = ContextVar("present episode clock")


class EpisodeClock:
    """A bound on the seconds of one episode, entered by `async with`; what runs inside is cancelled when it is over.

    Waits may overlap; the clock stands still while there is any. Outside of `async with` there is nothing to bound, and
    waits pass unnoticed.

    Args:
        max_s: seconds.
    Invariants:
        Waiting never lets an episode run out of time: tests/unit/envs/test_clock.py.
    """

    def __init__(self, max_s: float) -> None:
        self._max_s = self._left_s = max_s
        self._num_waits = 0
        self._deadline = asyncio.Timeout(None)
        self._is_running = False

    async def __aenter__(self) -> "EpisodeClock":
        await self._deadline.__aenter__()
        self._is_running = True
        self._earlier = _PRESENT.set(self)
        self._go_on()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _PRESENT.reset(self._earlier)
        self._is_running = False
        await self._deadline.__aexit__(kind, error, traceback)

    @property
    def has_expired(self) -> bool:
        """True where its time ran out."""
        return self._deadline.expired()

    @property
    def used_s(self) -> float:
        """Seconds that the episode has used."""
        with self.wait():
            return self._max_s - self._left_s

    def spend(self, seconds: float) -> None:
        """Count seconds that the episode used before, under another clock."""
        with self.wait():
            self._left_s -= seconds

    def begin_wait(self) -> None:
        """The episode waits for its turn."""
        self._num_waits += 1
        if self._num_waits == 1 and self._is_running and not self.has_expired:
            due = self._deadline.when()
            assert due is not None, "a clock that runs is due at some time"
            self._left_s = due - asyncio.get_running_loop().time()
            self._deadline.reschedule(None)

    def end_wait(self) -> None:
        """Its turn has come."""
        self._num_waits -= 1
        self._go_on()

    @contextmanager
    def wait(self) -> Iterator[None]:
        """What happens inside is a wait."""
        self.begin_wait()
        try:
            yield
        finally:
            self.end_wait()

    def _go_on(self) -> None:
        if not self._num_waits and self._is_running and not self.has_expired:
            self._deadline.reschedule(asyncio.get_running_loop().time() + self._left_s)


def present_clock() -> EpisodeClock:
    """The clock of the episode on whose behalf this runs; one that bounds nothing where there is none."""
    return _PRESENT.get(None) or EpisodeClock(math.inf)
