"""Child processes that talk in frames over a socket of their own, and that never outlive their parent."""

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence

END_TIMEOUT_S = 2.0
"""For a keeper to end all that descends from it."""
_PR_SET_PDEATHSIG = 1


def start_module(
    module: str, *, flags: Sequence[str], environment: Mapping[str, str] | None
) -> tuple["subprocess.Popen[bytes]", socket.socket]:
    """Starts `python -m module <descriptor of its socket>` in a session of its own.

    In a session of its own Ctrl-C reaches the parent alone, which then ends its children, and `kill` reaches whatever
    the child started. Standard output goes nowhere until the child says otherwise.

    Args:
        module: to run.
        flags: of the interpreter, such as `-P`, so that the current folder never precedes the installed packages.
        environment: of the child; None for a copy of this process's.
    Returns:
        The process and this side's socket, blocking.
    Raises:
        OSError: the system gave no process, or no socket.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with theirs:
        try:
            process = subprocess.Popen(
                [sys.executable, *flags, "-m", module, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env=environment,
                start_new_session=True,
            )
        except OSError:
            ours.close()
            raise
    return process, ours


def kill(process: "subprocess.Popen[bytes]") -> int:
    """Kills a child of `start_module` with its process group, reaps it and returns its exit status."""
    # the group may be gone already
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


def end_keeper(process: "subprocess.Popen[bytes]") -> int:
    """Has a keeper (`keeper.py`) kill all that descends from it, reaps it and returns its worker's exit status."""
    process.terminate()
    try:
        return process.wait(2.0 * END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return kill(process)


def die_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    """Has the kernel send this process a signal when its parent dies, even inside a call that never returns.

    The kernel takes the thread that started this process for its parent, so that thread should live as long.
    A parent that died before this call is noticed at the next read, which finds the socket closed.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
