"""The user's wish that the run end, as signals bring it."""

import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

# some senders, such as `timeout` and service managers, signal a process and its group: one wish comes twice
_SAME_WISH_S = 0.5


class Interrupt:
    """Remembers that the user asked the run to end: the first Ctrl-C asks, a later second one does not wait.

    SIGTERM, and SIGHUP where it is not ignored (as under nohup), ask for the same.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.is_set = False
        self._say = say
        self._asked_at = 0.0
        self._earlier: dict[int, Any] = {}

    def install(self) -> None:
        """Take over these signals; also again, where another library took them over meanwhile."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            present = signal.getsignal(number)
            if number == signal.SIGHUP and present == signal.SIG_IGN:
                continue
            self._earlier.setdefault(number, present)
            signal.signal(number, self._on_signal)

    def uninstall(self) -> None:
        """Give them back to whom they were with first."""
        for number, handler in self._earlier.items():
            signal.signal(number, handler)
        self._earlier = {}

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.is_set:
            if time.monotonic() < self._asked_at + _SAME_WISH_S:
                return
            self.uninstall()
            raise KeyboardInterrupt
        self.is_set = True
        self._asked_at = time.monotonic()
        self._say("ending: the step at hand, then a checkpoint; again to end at once")
