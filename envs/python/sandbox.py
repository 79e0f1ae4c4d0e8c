"""Runs a model's programs in bubblewrap, one at a time, and leaves nothing of them behind.

    worker ── bwrap ── first process of the namespace ── launcher, then the program ── whatever that starts
      │                      │
      └── output, limits ────┘  killed together: the kernel ends a namespace with its first process

Each run is a new sandbox; nothing of one reaches the next.
"""

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping

import psutil

from segue.envs.errors import EnvironmentSetupError, InfrastructureFailure
from segue.envs.python.command import PROGRAM, SCRATCH, build_command
from segue.envs.python.interpreter import find_interpreter
from segue.envs.python.program import ProgramLimits, ProgramReply
from segue.envs.python.tree import measure_tree

DEFAULT_INTERPRETER = "/usr/bin/python3"
"""The system's own: everybody may read it, and it lies in nobody's home."""

# root's processes are not counted by the kernel, and root owns the devices, so root's sandboxes belong to `nobody`
_NOBODY = 65534
_WATCH_PERIOD_S = 0.05
_END_TIMEOUT_S = 5.0
_CHUNK_BYTES = 65536
_REMEDY = (
    "remedy: apt-get install bubblewrap (0.8 or later), and allow user namespaces "
    "(sysctl user.max_user_namespaces above 0; kernel.unprivileged_userns_clone=1 and "
    "kernel.apparmor_restrict_unprivileged_userns=0 where the kernel has them)"
)


class BubblewrapSandbox:
    """Runs programs in bubblewrap.

    Invariants (tests/system/test_python_sandbox.py):
        When `run` returns, no process of the program is left, whatever it did.
        Its limits hold for the tree as a whole.
    """

    def __init__(self, limits: ProgramLimits, *, interpreter: str, system_call_filter: bytes) -> None:
        """Finds what every run needs.

        Args:
            limits: of each run.
            interpreter: path of the interpreter; readable by everybody.
            system_call_filter: as `seccomp.build_filter` makes it.

        Raises:
            EnvironmentSetupError: there is no bubblewrap, or no such interpreter.
        """
        bwrap = shutil.which("bwrap")
        if bwrap is None:
            raise EnvironmentSetupError(f"env.id=python needs bubblewrap, and bwrap is not on the path; {_REMEDY}")
        self._bwrap = bwrap
        self._limits = limits
        self._interpreter = find_interpreter(interpreter)
        self._filter = system_call_filter

    @property
    def max_call_s(self) -> float:
        """Seconds that one run takes at most."""
        return self._limits.start_timeout_s + self._limits.timeout_s + _END_TIMEOUT_S

    def check(self) -> None:
        """Runs a program that says one word.

        Raises:
            EnvironmentSetupError: bubblewrap is there, and cannot do its work.
        """
        try:
            reply = self.run("print('ready')", {})
        except InfrastructureFailure as error:
            raise EnvironmentSetupError(f"{error}; {_REMEDY}") from error
        if reply.output != "ready\n":
            raise EnvironmentSetupError(f"the sandbox's interpreter does not work: {reply}")

    def run(self, code: str, files: Mapping[str, bytes]) -> ProgramReply:
        """Runs one program; see `ProgramRunner`.

        Args:
            code: the program.
            files: name to content of what lies in the scratch folder when it starts.

        Raises:
            InfrastructureFailure: there was no sandbox to run it in, or it could not be watched.
        """
        contents = {PROGRAM: code.encode(errors="replace")}
        contents |= {f"{SCRATCH}/{name}": content for name, content in files.items()}
        with contextlib.ExitStack() as stack:
            try:
                run = self._start(stack, contents)
            except (OSError, ValueError, psutil.Error, subprocess.SubprocessError) as error:
                raise InfrastructureFailure(f"the sandbox did not start: {error}") from error
            try:
                return run.watch()
            except (OSError, psutil.Error) as error:
                raise InfrastructureFailure(f"the sandbox could not be watched: {error}") from error

    def _start(self, stack: contextlib.ExitStack, contents: Mapping[str, bytes]) -> "_Run":
        with contextlib.ExitStack() as theirs:
            output, output_end = _pipe(stack, theirs)
            info, info_end = _pipe(stack, theirs)
            ready, ready_end = _pipe(stack, theirs)
            hold_end, hold = os.pipe()
            _close_later(theirs, hold_end)
            _close_later(stack, hold)
            filter_descriptor = _hold(theirs, self._filter)
            descriptors = {inside: _hold(theirs, content) for inside, content in contents.items()}
            command = build_command(
                self._interpreter, self._limits, bwrap=self._bwrap, contents=descriptors,
                filter_descriptor=filter_descriptor, info_descriptor=info_end, hold_descriptor=hold_end,
                ready_descriptor=ready_end,
            )  # fmt: skip
            passed = (info_end, hold_end, ready_end, filter_descriptor, *descriptors.values())
            user = _NOBODY if os.geteuid() == 0 else None
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output_end, stderr=output_end, cwd="/", env={},
                pass_fds=passed, user=user, group=user, extra_groups=None if user is None else (),
            )  # fmt: skip
        stack.callback(_end_process, process)
        deadline = time.monotonic() + self._limits.start_timeout_s
        first = _read_info(_read_within(info, deadline))
        run = None
        if first is not None:
            # nothing can happen to it before we hold it
            run = _Run(self._limits, process, first, output, stack)
            os.write(hold, b"1")
        # a byte where the launcher came that far, nothing where it ended before
        if run is None or not _read_within(ready, deadline, max_bytes=1):
            said = _read_available(output, self._limits.max_output_bytes).decode(errors="replace").strip()
            raise InfrastructureFailure(f"the sandbox did not start: {said or 'bwrap said nothing in time'}")
        return run


class _Run:
    """A program that has started."""

    def __init__(
        self,
        limits: ProgramLimits,
        process: "subprocess.Popen[bytes]",
        first: int,
        output: int,
        stack: contextlib.ExitStack,
    ) -> None:
        self._limits = limits
        self._process = process
        self._output = output
        self._captured = bytearray()
        # descriptors of processes: unlike numbers they never come to name another one
        self._process_handle = _close_later(stack, os.pidfd_open(process.pid))
        self._first_handle = _close_later(stack, os.pidfd_open(first))
        self._first = psutil.Process(first)
        stack.callback(self._end_all)

    @property
    def _flood(self) -> str:
        return f"it wrote more than {self._limits.max_output_bytes} bytes"

    def watch(self) -> ProgramReply:
        """Reads and measures until the program ends or has to."""
        stopped = self._find_end()
        self._end_all()
        self._capture()
        if stopped is None and len(self._captured) > self._limits.max_output_bytes:
            stopped = self._flood
        status = None if stopped is not None else self._process.wait(timeout=_END_TIMEOUT_S)
        if status is not None and status < 0:
            raise InfrastructureFailure(f"bwrap was killed by {signal.Signals(-status).name}")
        output = bytes(self._captured[: self._limits.max_output_bytes]).decode(errors="replace")
        return ProgramReply(output=output, exit_status=status, stopped=stopped)

    def _find_end(self) -> str | None:
        """Returns the limit that the program has to be stopped for, or None once it ended by itself."""
        limits = self._limits
        deadline = time.monotonic() + limits.timeout_s
        next_look = 0.0
        poller = select.poll()
        poller.register(self._process_handle, select.POLLIN)
        poller.register(self._output, select.POLLIN)
        while True:
            now = time.monotonic()
            if now >= deadline:
                return f"it took longer than {limits.timeout_s:g} s"
            if now >= next_look:
                breach = measure_tree(self._first).find_breach(limits)
                if breach is not None:
                    return breach
                next_look = time.monotonic() + _WATCH_PERIOD_S
            wait_s = max(0.0, min(next_look, deadline) - time.monotonic())
            events = dict(poller.poll(1000.0 * wait_s))
            if self._output in events and not self._capture():
                poller.unregister(self._output)
            if len(self._captured) > limits.max_output_bytes:
                return self._flood
            if self._process_handle in events:
                return None

    def _capture(self) -> bool:
        """Takes what was written, up to a byte more than allowed; returns False at the end of the output."""
        room = self._limits.max_output_bytes + 1 - len(self._captured)
        try:
            data = os.read(self._output, max(room, 1))
        except BlockingIOError:
            return True
        self._captured += data
        return bool(data)

    def _end_all(self) -> None:
        """Kills the namespace and waits until the kernel has ended every process of it."""
        # it may have ended by itself
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._first_handle, signal.SIGKILL)
        if not _wait_readable(self._first_handle, time.monotonic() + _END_TIMEOUT_S):
            raise InfrastructureFailure(f"a sandbox could not be ended within {_END_TIMEOUT_S:g} s")


def _pipe(ours: contextlib.ExitStack, theirs: contextlib.ExitStack) -> tuple[int, int]:
    """A pipe whose reading end never blocks."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    return _close_later(ours, reading), _close_later(theirs, writing)


def _hold(stack: contextlib.ExitStack, content: bytes) -> int:
    """A file without a name that holds a content, to be read from its start."""
    descriptor = _close_later(stack, os.memfd_create("segue"))
    with open(descriptor, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _close_later(stack: contextlib.ExitStack, descriptor: int) -> int:
    stack.callback(os.close, descriptor)
    return descriptor


def _end_process(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait(timeout=_END_TIMEOUT_S)


def _wait_readable(descriptor: int, deadline: float) -> bool:
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(1000.0 * max(0.0, deadline - time.monotonic())))


def _read_within(descriptor: int, deadline: float, max_bytes: int | None = None) -> bytes:
    """What arrives before the end of the stream, the deadline or so many bytes."""
    data = b""
    while (max_bytes is None or len(data) < max_bytes) and _wait_readable(descriptor, deadline):
        chunk = os.read(descriptor, max_bytes or _CHUNK_BYTES)
        if not chunk:
            break
        data += chunk
    return data


def _read_available(descriptor: int, max_bytes: int) -> bytes:
    try:
        return os.read(descriptor, max_bytes)
    except BlockingIOError:
        return b""


def _read_info(data: bytes) -> int | None:
    """The first process of the namespace, or None where bwrap ended before there was one."""
    return int(json.loads(data)["child-pid"]) if data else None
