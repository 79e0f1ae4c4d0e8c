"""What an environment started and did not end."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import psutil

# little beside the time of a call, which it is part of
_END_TIMEOUT_S = 0.5


@dataclass(kw_only=True, slots=True)
class Leftovers:
    """What still runs."""

    processes: list[str] = field(default_factory=list)
    """Names with process ids."""
    threads: list[str] = field(default_factory=list)
    """Names."""

    def to_header(self) -> dict[str, Any]:
        """As a frame's header."""
        return asdict(self)


@contextmanager
def watch_leftovers() -> Iterator[Leftovers]:
    """Fills in, when the context ends well, what was started inside of it and still runs then.

    In an env worker, whose keeper is the parent of all that it starts, orphans included.
    """
    left = Leftovers()
    processes, threads = _processes(), set(threading.enumerate())
    yield left
    # what was told to end takes a moment to do so
    _, alive = psutil.wait_procs(_processes() - processes, timeout=_END_TIMEOUT_S)
    left.processes = sorted(filter(None, map(_name, alive)))
    left.threads = sorted(thread.name for thread in set(threading.enumerate()) - threads)


def _processes() -> set[psutil.Process]:
    return set(psutil.Process(os.getppid()).children(recursive=True))


def _name(process: psutil.Process) -> str | None:
    """None for what has ended and was not asked for its status."""
    try:
        return None if process.status() == psutil.STATUS_ZOMBIE else f"{process.name()} ({process.pid})"
    except psutil.Error:
        return None
