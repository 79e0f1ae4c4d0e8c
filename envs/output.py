"""What an env worker's output may cost: it is passed on within an allowance, and what is beyond it is counted."""

import contextlib
import os
import select
import time
from collections.abc import Callable

BURST_BYTES = 256 * 2**10
"""What is passed on at once, of a worker that was silent."""
BYTES_PER_S = 4 * 2**10
"""What is passed on for long."""
# one that floods is heard again once so much of the allowance has come back
_RESUME_BYTES = BURST_BYTES // 4
# a pipe that is ready takes so much without blocking
_CHUNK_BYTES = select.PIPE_BUF


class OutputRelay:
    """Passes output on as long as its allowance lasts, then drops it and says how much that was.

    The allowance begins with `BURST_BYTES`, of which `BYTES_PER_S` come back. Whoever writes is never held up, neither
    by this bound nor by a reader further on who does not read.

    Args:
        descriptor: where output goes.
        clock: seconds.
    Invariants:
        What is passed on, less the notes, is at most burst + rate x time, and with what the notes count it is all that
        came: tests/unit/envs/test_output.py.
    """

    def __init__(self, descriptor: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._descriptor = descriptor
        self._clock = clock
        self._allowance = float(BURST_BYTES)
        self._refilled_at = clock()
        self._num_dropped = 0

    def take(self, data: bytes) -> None:
        """Passes on what the allowance and the reader further on take."""
        now = self._clock()
        self._allowance = min(BURST_BYTES, self._allowance + BYTES_PER_S * (now - self._refilled_at))
        self._refilled_at = now
        if self._num_dropped and self._allowance < _RESUME_BYTES:
            self._num_dropped += len(data)
            return
        self._tell_dropped()
        num_passed = self._write(data[: int(self._allowance)])
        self._allowance -= num_passed
        self._num_dropped += len(data) - num_passed

    def close(self) -> None:
        """Nothing more comes."""
        self._tell_dropped()

    def _tell_dropped(self) -> None:
        note = f"\n[env worker: {self._num_dropped} bytes of output left out]\n".encode()
        if self._num_dropped and self._write(note):
            self._num_dropped = 0

    def _write(self, data: bytes) -> int:
        """Writes what can be written without waiting; returns how much that was."""
        poller = select.poll()
        poller.register(self._descriptor, select.POLLOUT)
        num_written = 0
        # a reader that is gone is no matter of the worker's
        with contextlib.suppress(OSError):
            while num_written < len(data) and poller.poll(0):
                num_written += os.write(self._descriptor, data[num_written : num_written + _CHUNK_BYTES])
        return num_written
