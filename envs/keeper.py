"""The keeper of an env worker: `python -P -m segue.envs.keeper <descriptor>`, started by `client.EnvClient`.

    rollout actor ---- keeper ---- worker ---- whatever the environment starts
                          |            output of the last two, within bounds, to the keeper's standard error

The keeper holds no environment and reads no frame, so nothing can hang it. It ends when the worker ends, when it is
told to (SIGTERM), and when the rollout actor dies, however that died; and whatever ends it, it first kills all that
descends from it. Orphans stay its descendants, those of other sessions included, and it reaps those that end: each
would take a place in the table of processes. Its exit status is the worker's.

What it cannot reach: work that was handed to another service (a container's, a batch system's), processes of another
user, and, if the keeper itself is killed by SIGKILL, those that the worker started; the worker then dies with it.
"""

import contextlib
import ctypes
import os
import resource
import select
import signal
import sys
import threading
import time

import psutil

from segue.envs.output import OutputRelay
from segue.envs.process import END_TIMEOUT_S, die_with_parent

_PR_SET_CHILD_SUBREAPER = 36
_STDOUT, _STDERR = 1, 2
_CHUNK_BYTES = 65536
# what a pipe may still hold when those who wrote to it are dead
_MAX_LAST_CHUNKS = 32
_REAP_AGAIN_S = 0.002


def main() -> None:
    """Starts the worker, and keeps it."""
    descriptor = int(sys.argv[1])
    told, wake = _pipe()
    # a signal that finds the pipe full is not missed: what fills it wakes this process
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    end = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: end.set())
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    die_with_parent(signal.SIGTERM)
    output, output_end = _pipe()
    os.set_blocking(output_end, True)
    keeper = os.getpid()
    worker = os.fork()
    if worker == 0:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        for ours in (told, wake, output):
            os.close(ours)
        _become_worker(descriptor, output_end, keeper)
        return
    # the worker's death must close its side of both
    os.close(descriptor)
    os.close(output_end)
    relay = OutputRelay(_STDERR)
    _wait(worker, told, end, output, relay)
    status = _end_tree(worker)
    for _ in range(_MAX_LAST_CHUNKS):
        if not _pass_on(output, relay):
            break
    relay.close()
    _exit_like(status)


def _become_worker(descriptor: int, output_end: int, keeper: int) -> None:
    # signals to the environment's group do not reach the keeper
    os.setsid()
    die_with_parent(signal.SIGKILL)
    if os.getppid() != keeper:
        return
    for target in (_STDOUT, _STDERR):
        os.dup2(output_end, target)
    os.close(output_end)
    # what an environment prints must not be lost with it
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    # gymnasium and the environments load in the worker alone
    from segue.envs.worker import main as work

    work(descriptor)


def _wait(worker: int, told: int, end: threading.Event, output: int, relay: OutputRelay) -> None:
    """Returns once the worker has ended or the keeper is told to end; passes output on and reaps orphans meanwhile."""
    handle = os.pidfd_open(worker)
    poller = select.poll()
    for descriptor in (handle, told, output):
        poller.register(descriptor, select.POLLIN)
    while True:
        ready = dict(poller.poll())
        if told in ready:
            _drain(told)
        if handle in ready or end.is_set():
            return
        _reap_orphans(worker)
        if output in ready and not _pass_on(output, relay):
            poller.unregister(output)


def _drain(pipe: int) -> None:
    with contextlib.suppress(BlockingIOError):
        while os.read(pipe, _CHUNK_BYTES):
            pass


def _reap_orphans(worker: int) -> None:
    """Reaps the children that have ended, but for the worker, whose status is still wanted."""
    while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and ended.si_pid != worker:
        os.waitpid(ended.si_pid, 0)


def _pass_on(output: int, relay: OutputRelay) -> bool:
    """Passes on what is there; False where there is nothing, or never will be."""
    try:
        data = os.read(output, _CHUNK_BYTES)
    except BlockingIOError:
        return False
    relay.take(data)
    return bool(data)


def _end_tree(worker: int) -> int:
    """Kills and reaps all that descends from this process, orphans included.

    Returns:
        The worker's exit code; minus the number of the signal that killed it.
    """
    status = -signal.SIGKILL
    deadline = time.monotonic() + END_TIMEOUT_S
    while time.monotonic() < deadline:
        for process in psutil.Process().children(recursive=True):
            # it may be gone, or of another user
            with contextlib.suppress(psutil.Error):
                process.kill()
        try:
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == worker:
                    status = os.waitstatus_to_exitcode(ended[1])
        except ChildProcessError:
            # an orphan would be a child: nobody is left
            return status
        time.sleep(_REAP_AGAIN_S)
    return status


def _exit_like(status: int) -> None:
    if status < 0:
        # the worker's own was enough
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def _pipe() -> tuple[int, int]:
    """A pipe whose ends never block."""
    ends = os.pipe()
    for end in ends:
        os.set_blocking(end, False)
    return ends


if __name__ == "__main__":
    main()
