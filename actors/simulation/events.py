"""Virtual time: what is still to happen, in its order."""

import heapq
import itertools
from collections.abc import Callable


class Events:
    """A clock that jumps from one event to the next.

    Invariants:
        Time never falls; of events at the same time the one that was asked for first happens first.
    """

    def __init__(self) -> None:
        self.now = 0.0
        """Seconds since the start."""
        self._coming: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def after(self, delay_s: float, happen: Callable[[], None]) -> None:
        """Have something happen `delay_s` seconds from now; at least 0."""
        heapq.heappush(self._coming, (self.now + delay_s, next(self._order), happen))

    def advance(self) -> bool:
        """Let the next event happen; False where there is none."""
        if not self._coming:
            return False
        self.now, _, happen = heapq.heappop(self._coming)
        happen()
        return True
