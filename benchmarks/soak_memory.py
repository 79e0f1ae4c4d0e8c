"""Memory of a run's processes over time: what they take, and how fast it grows."""

import json
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
from soak_run import Role

WARM_UP_S = 600.0
"""A process's first seconds are not counted: it loads what it needs, and its heap grows to the largest batches."""
_MB = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Of the processes of one role."""

    slope: float
    """MB an hour."""
    minutes: float
    """Over which it was seen, of all processes added up."""
    num_processes: int


class MemoryWatch:
    """Samples of every process; one that was restarted is another.

    Args:
        log: takes every sample, a line each.
    """

    def __init__(self, log: Path) -> None:
        self._log = log
        self._samples: dict[tuple[Role, psutil.Process], list[tuple[float, float]]] = defaultdict(list)
        self.peak_bytes = 0
        """Largest proportional set size of all processes together."""

    def sample(self, processes: Mapping[Role, Sequence[psutil.Process]]) -> None:
        """Read every process."""
        total = 0
        with self._log.open("a") as log:
            for role, process in ((role, process) for role, members in processes.items() for process in members):
                try:
                    memory = process.memory_full_info()
                    age_s = time.time() - process.create_time()
                except (psutil.NoSuchProcess, psutil.AccessDenied):
                    continue
                total += memory.pss
                line = {"role": role.value, "pid": process.pid, "age_s": age_s, "rss": memory.rss, "pss": memory.pss}
                log.write(json.dumps(line) + "\n")
                if age_s > WARM_UP_S:
                    # resident, not proportional: what others share changes with them
                    self._samples[role, process].append((age_s, memory.rss))
        self.peak_bytes = max(self.peak_bytes, total)

    def growth(self, role: Role) -> Growth | None:
        """How fast processes of a role grow; None where none was seen for long enough."""
        series = [samples for (of, _), samples in self._samples.items() if of is role and len(samples) > 1]
        return fit(series)


def fit(series: Sequence[Sequence[tuple[float, float]]]) -> Growth | None:
    """One slope through several processes' samples, each with a level of its own: least squares.

    Args:
        series: for each process, pairs of seconds and bytes.
    Example:
        Two processes of 100 and 300 MB that both grow by 1 MB a second: 3,600 MB an hour.
    """
    above = below = observed_s = 0.0
    for samples in series:
        seconds, memory = np.array(samples, np.float64).T
        offset = seconds - seconds.mean()
        above += float((offset * (memory - memory.mean())).sum())
        below += float((offset**2).sum())
        observed_s += float(seconds[-1] - seconds[0])
    if not below:
        return None
    return Growth(slope=above / below * 3600.0 / _MB, minutes=observed_s / 60.0, num_processes=len(series))
