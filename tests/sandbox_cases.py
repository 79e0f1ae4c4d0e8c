"""Sandboxes with small limits, and what is left of them."""

import os
from contextlib import suppress

import psutil

from segue.envs.python.interpreter import EXECUTABLE
from segue.envs.python.program import MIB, ProgramLimits
from segue.envs.python.sandbox import DEFAULT_INTERPRETER, BubblewrapSandbox
from segue.envs.python.seccomp import build_filter

LIMITS = ProgramLimits(
    timeout_s=20.0, max_cpu_s=2, max_memory_bytes=96 * MIB, max_address_bytes=256 * MIB, max_processes=8,
    max_scratch_bytes=4 * MIB, max_scratch_files=100,
)  # fmt: skip


_ADOPTERS = {psutil.Process(1).name(), "systemd"}


def make_sandbox(limits: ProgramLimits = LIMITS, system_call_filter: bytes | None = None) -> BubblewrapSandbox:
    """A sandbox on the system's interpreter; the filter is the real one unless another is given."""
    return BubblewrapSandbox(
        limits,
        interpreter=DEFAULT_INTERPRETER,
        system_call_filter=build_filter() if system_call_filter is None else system_call_filter,
    )


def survivors() -> list[psutil.Process]:
    """Processes that run in a sandbox, those of other runs on this machine left out."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        # one may end while it is looked at
        with suppress(psutil.NoSuchProcess):
            if EXECUTABLE in (process.info["cmdline"] or []) and process.status() != psutil.STATUS_ZOMBIE:
                parents = {parent.pid: parent.name() for parent in process.parents()}
                # what outlived its call is ours or an orphan
                if os.getpid() in parents or set(parents.values()) <= {"bwrap", *_ADOPTERS}:
                    found.append(process)
    return found


def results(output: str) -> dict[str, str]:
    """What each attempt came to."""
    return dict(line.split(": ", 1) for line in output.splitlines())
