"""What a sandbox uses: summed over the first process of its namespace and everything below it."""

import os
from dataclasses import dataclass

import psutil

from segue.envs.python.command import SCRATCH
from segue.envs.python.program import ProgramLimits


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """One look at a tree."""

    memory_bytes: int
    """Resident memory; a page that two processes share counts twice."""
    cpu_s: float
    """User and system seconds of the living, and of the dead whom one of them has waited for."""
    scratch_files: int
    """Files and folders in the scratch folder."""

    def find_breach(self, limits: ProgramLimits) -> str | None:
        """The limit that was passed, in words, or None."""
        if self.memory_bytes > limits.max_memory_bytes:
            return f"it used more than {limits.max_memory_bytes // 2**20} MB of memory"
        if self.cpu_s > limits.max_cpu_s:
            return f"it used more than {limits.max_cpu_s} s of processor time"
        if self.scratch_files > limits.max_scratch_files:
            return f"it made more than {limits.max_scratch_files} files"
        return None


def measure_tree(root: psutil.Process) -> Usage:
    """Looks at a tree that may change, or be gone, meanwhile.

    Args:
        root: the first process of the namespace: whoever loses its parent becomes its child.

    Raises:
        OSError, psutil.Error: it cannot be looked at, which is not the same as being gone.
    """
    memory_bytes, cpu_s = 0, 0.0
    try:
        processes = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        processes = []
    for process in processes:
        try:
            with process.oneshot():
                memory_bytes += process.memory_info().rss
                cpu_s += sum(process.cpu_times()[:4])
        # it ended between two looks
        except psutil.NoSuchProcess:
            continue
    return Usage(memory_bytes=memory_bytes, cpu_s=cpu_s, scratch_files=_count_files(root.pid))


def _count_files(pid: int) -> int:
    """Index nodes in use in the scratch folder, seen through a process that lives there."""
    try:
        status = os.statvfs(f"/proc/{pid}/root{SCRATCH}")
    # it ended between two looks
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return status.f_files - status.f_ffree
