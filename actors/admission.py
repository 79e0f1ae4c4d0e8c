"""How many episodes a rollout actor plays at a time: the others wait here, before their clock starts."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Admission:
    """Seats for episodes, given in the order of asking.

    Invariants:
        Never more than `num_seats` are taken, unless one asks for more than there are and is alone; nobody who came
        later goes first: tests/unit/actors/test_admission.py.
    """

    def __init__(self, num_seats: int) -> None:
        self._num_seats = num_seats
        self._num_taken = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def seats(self, count: int) -> AsyncIterator[None]:
        """Hold `count` seats; waits until they are free."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((count, turn))
        self._admit()
        try:
            await turn
            yield
        finally:
            self._leave(count, turn)

    def _admit(self) -> None:
        while self._waiting:
            count, turn = self._waiting[0]
            if turn.cancelled():
                # its holder has not had the time to leave
                self._waiting.popleft()
                continue
            if self._num_taken and self._num_taken + count > self._num_seats:
                return
            self._waiting.popleft()
            self._num_taken += count
            turn.set_result(None)

    def _leave(self, count: int, turn: "asyncio.Future[None]") -> None:
        if turn.done() and not turn.cancelled():
            self._num_taken -= count
        elif (count, turn) in self._waiting:
            self._waiting.remove((count, turn))
        self._admit()
