"""What a sandbox uses: summed over the first process of its namespace and everything below it."""

import contextlib
import functools
import os
import socket
from dataclasses import dataclass

import psutil

from segue.envs.python.command import SCRATCH
from segue.envs.python.program import ProgramLimits

# what a process's status says of its memory; page tables grow with what is looked at, not with what is kept
_MEMORY = (b"VmRSS:", b"VmPTE:", b"VmSwap:", b"HugetlbPages:")


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """One look at a tree."""

    memory_bytes: int
    """Resident and swapped memory, its page tables, and what the sockets could hold; a page that two processes share
    counts twice."""
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
        memory_bytes += _memory_of(process.pid)
        # it ended between two looks
        with contextlib.suppress(psutil.NoSuchProcess):
            cpu_s += sum(process.cpu_times()[:4])
    memory_bytes += _count_sockets(root.pid) * _socket_bytes()
    return Usage(memory_bytes=memory_bytes, cpu_s=cpu_s, scratch_files=_count_files(root.pid))


def _memory_of(pid: int) -> int:
    """Bytes of a process, 0 where it has ended."""
    memory_bytes = _read_memory(f"/proc/{pid}/status")
    if memory_bytes:
        return memory_bytes
    # where its first thread has ended, the others still tell
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return max((_read_memory(f"/proc/{pid}/task/{thread}/status") for thread in threads), default=0)


def _read_memory(path: str) -> int:
    try:
        # as bytes: the program chooses its name
        with open(path, "rb") as file:
            # b"VmRSS:      9216 kB"
            lines = [line.split() for line in file if line.startswith(_MEMORY)]
    # it ended between two looks
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return 1024 * sum(int(kilobytes) for _, kilobytes, _ in lines)


def _count_sockets(pid: int) -> int:
    """Sockets of a process's network namespace, whoever holds them and also where nobody does."""
    try:
        with open(f"/proc/{pid}/net/unix", "rb") as file:
            # below its heading
            return sum(1 for _ in file) - 1
    # it ended between two looks
    except (FileNotFoundError, ProcessLookupError):
        return 0


@functools.cache
def _socket_bytes() -> int:
    """What the kernel keeps at most of what was written to a socket and not yet read."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        return ours.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)


def _count_files(pid: int) -> int:
    """Index nodes in use in the scratch folder, seen through a process that lives there."""
    try:
        status = os.statvfs(f"/proc/{pid}/root{SCRATCH}")
    # it ended between two looks
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return status.f_files - status.f_ffree
