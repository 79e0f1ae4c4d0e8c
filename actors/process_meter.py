"""CPU seconds and memory of all processes of a run on this machine: the driver and everything below it.

A process's CPU time is lost to its parent when it dies unreaped, so the meter remembers the last reading of each; what
one used between its last reading and its death is not counted.
"""

import time
from dataclasses import dataclass

import psutil

_READ_EVERY_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What the run has used so far."""

    cpu_s: float
    """User and system seconds, over all processes, the dead ones included."""
    memory_bytes: int
    """Proportional set size of the living: shared pages are counted once over all."""
    peak_memory_bytes: int
    """Largest `memory_bytes` of any reading."""
    num_processes: int


class ProcessMeter:
    """Reads the process tree below this one; call `read` every step."""

    def __init__(self) -> None:
        self._root = psutil.Process()
        self._cpu_s: dict[tuple[int, float], float] = {}
        self._peak = 0
        self.read()

    def read_if_due(self) -> Usage:
        """The latest reading, a new one where that is older than a few seconds: walking the processes takes time."""
        return self._latest if time.monotonic() - self._read_at < _READ_EVERY_S else self.read()

    def read(self) -> Usage:
        """Take a reading."""
        memory, count = 0, 0
        for process in (self._root, *self._root.children(recursive=True)):
            try:
                with process.oneshot():
                    times = process.cpu_times()
                    key = (process.pid, process.create_time())
                    self._cpu_s[key] = times.user + times.system
                    memory += process.memory_full_info().pss
                    count += 1
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        self._peak = max(self._peak, memory)
        self._read_at = time.monotonic()
        self._latest = Usage(
            cpu_s=sum(self._cpu_s.values()), memory_bytes=memory, peak_memory_bytes=self._peak, num_processes=count
        )
        return self._latest
