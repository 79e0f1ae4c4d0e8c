"""What programs in the sandbox try, and what becomes of it: really run in bubblewrap.

Not covered: faults of the kernel itself, and kernels other than the one at hand.
"""

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from python_attacks import (
    ALLOCATE,
    ALLOCATE_IN_CHILDREN,
    BURN_IN_CHILDREN,
    COUNT_FORKS,
    COUNT_THREADS,
    ESCAPE,
    FILL_SCRATCH,
    FLOOD,
    FORK_BOMB,
    HIDDEN_MEMORY,
    KILL_ALL,
    LOOK_AROUND,
    MANY_FILES,
    OUTLIVE,
    WRITE_OUTSIDE,
    reach_process,
    reach_sockets,
    read_paths,
)
from sandbox_cases import LIMITS, make_sandbox, results, survivors

from segue.envs.errors import InfrastructureFailure
from segue.envs.python.program import MIB, ProgramLimits
from segue.envs.python.sandbox import DEFAULT_INTERPRETER, BubblewrapSandbox

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("nothing_is_left")]

ROOT = Path(__file__).parents[2]
# a filter that lets everything pass: `return allow`
NO_FILTER = struct.pack("=HBBI", 0x06, 0, 0, 0x7FFF0000)


def test_a_program_sees_its_files_and_its_output_comes_back(sandbox: BubblewrapSandbox) -> None:
    reply = sandbox.run("print(open('a.txt').read().strip(), end='')\nraise SystemExit(3)", {"a.txt": b"57\n"})
    assert (reply.output, reply.exit_status, reply.stopped) == ("57", 3, None)


def test_the_standard_library_works() -> None:
    code = (
        "import asyncio, collections, csv, ctypes, datetime, decimal, fractions, hashlib, itertools, json, math, re\n"
        "import sqlite3, ssl, statistics, subprocess, sys, tempfile, threading, lzma, bz2, zlib, unicodedata\n"
        "tempfile.TemporaryFile().write(b'x')\n"
        "async def main(): return 6 * 7\n"
        "print(asyncio.run(main()), subprocess.run([sys.executable, '-c', 'print(1)'], capture_output=True).stdout)\n"
    )
    reply = make_sandbox(ProgramLimits(timeout_s=20.0)).run(code, {})
    assert (reply.output, reply.exit_status) == ("42 b'1\\n'\n", 0)


def test_the_order_of_sets_is_the_same_in_every_run(sandbox: BubblewrapSandbox) -> None:
    outputs = {sandbox.run("print({str(i) for i in range(50)})", {}).output for _ in range(3)}
    assert len(outputs) == 1


def test_nothing_outside_the_scratch_folder_can_be_written(sandbox: BubblewrapSandbox) -> None:
    before = Path(DEFAULT_INTERPRETER).stat()
    reply = sandbox.run(WRITE_OUTSIDE, {})
    assert len(reply.output.splitlines()) == 15, reply
    assert set(results(reply.output).values()) <= {"EROFS", "EACCES", "EPERM", "ENOENT", "EBUSY"}
    assert Path(DEFAULT_INTERPRETER).stat() == before
    assert Path(os.devnull).stat().st_mode & 0o777 == 0o666


def test_a_program_finds_the_interpreter_and_itself_and_nothing_else(
    sandbox: BubblewrapSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEGUE_TEST_TOKEN", "a secret")
    reply = sandbox.run(LOOK_AROUND, {"a.txt": b""})
    variables, *rest = reply.output.splitlines()
    assert variables == str(
        ["HOME", "LANG", "LD_LIBRARY_PATH", "MALLOC_ARENA_MAX", "PWD", "PYTHONHASHSEED", "PYTHONUNBUFFERED",
         "PYTHONUTF8", "TMPDIR"]
    )  # fmt: skip
    (loader,) = [line for line in rest if line.startswith("/lib") and not line.endswith("[]")]
    assert loader.split()[2].startswith("['ld-")
    assert [line for line in rest if not line.startswith("/lib")] == [
        f"/ {['dev', loader.split()[0][1:].split('/')[0], 'python', 'scratch']} ['main.py']",
        "/scratch [] ['a.txt']",
        "/dev [] ['null', 'urandom']",
        "/python ['bin', 'lib', 'so'] []",
        "[]",
        "1000 True sandbox",
    ]


def test_no_file_of_this_machine_can_be_read(sandbox: BubblewrapSandbox, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("the run folder")
    paths = [
        str(tmp_path / "metrics.jsonl"), str(ROOT / "pyproject.toml"), str(Path.home() / ".bashrc"), "/etc/passwd",
        f"/proc/{os.getpid()}/environ", "/proc/1/environ", "/proc/self/mem", f"/proc/{os.getpid()}/cwd/pyproject.toml",
    ]  # fmt: skip
    reply = sandbox.run(read_paths(paths), {})
    lines = reply.output.splitlines()
    assert len(lines) == 3 * len(paths)
    assert set(lines) == {"read: ENOENT", "list: ENOENT", "link: ENOENT"}


@pytest.mark.parametrize("has_filter", [True, False])
def test_no_process_of_this_machine_can_be_reached(has_filter: bool) -> None:
    sandbox = make_sandbox(system_call_filter=None if has_filter else NO_FILTER)
    with subprocess.Popen(["sleep", "30"]) as neighbour:
        reply = sandbox.run(reach_process(neighbour.pid), {})
        assert neighbour.poll() is None
        neighbour.kill()
    found = results(reply.output)
    assert (found["signal"], found["handle"]) == ("ESRCH", "ESRCH")
    # the namespace alone hides it already
    assert {found["trace"], found["read memory"]} == {"EPERM" if has_filter else "ESRCH"}


@pytest.mark.parametrize("has_filter", [True, False])
def test_no_socket_of_this_machine_can_be_reached(has_filter: bool) -> None:
    sandbox = make_sandbox(system_call_filter=None if has_filter else NO_FILTER)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        addresses: list[tuple[int, object]] = [
            (socket.AF_INET, ("127.0.0.1", 0)),
            (socket.AF_UNIX, f"\0segue-{os.getpid()}"),
            (socket.AF_UNIX, f"{folder}/socket"),
        ]
        listeners = []
        for family, address in addresses:
            listener = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
            listener.bind(address)
            listener.listen()
            listener.setblocking(False)
            listeners.append(listener)
        port = listeners[0].getsockname()[1]
        reply = sandbox.run(reach_sockets(port, f"segue-{os.getpid()}", f"{folder}/socket"), {})
        for listener in listeners:
            with pytest.raises(BlockingIOError):
                listener.accept()
    found = results(reply.output)
    if has_filter:
        assert set(found.values()) == {"EPERM"}
    else:
        # the namespace alone: its loopback has no listener, and there is no way out
        assert found["tcp"] in {"ECONNREFUSED", "ENETUNREACH"}
        assert (found["abstract"], found["path"], found["udp"]) == ("ECONNREFUSED", "ENOENT", "ENETUNREACH")


def test_no_link_device_or_namespace_leads_out(sandbox: BubblewrapSandbox) -> None:
    found = results(sandbox.run(ESCAPE, {}).output)
    assert found.pop("devices") == "['null', 'urandom']"
    # the C library's own way of saying no
    assert found.pop("raise limit") == "-1"
    assert found.pop("clone3") == "ENOSYS"
    assert set(found.values()) <= {"EPERM", "EACCES", "EROFS", "ENOENT", "EXDEV", "EINVAL"}
    assert len(found) == 27


def test_memory_that_belongs_to_no_process_cannot_be_had(sandbox: BubblewrapSandbox) -> None:
    found = results(sandbox.run(HIDDEN_MEMORY, {}).output)
    assert (len(found), set(found.values())) == (12, {"EPERM"})


@pytest.mark.parametrize("program", [COUNT_FORKS, COUNT_THREADS])
def test_processes_and_threads_are_counted_together(sandbox: BubblewrapSandbox, program: str) -> None:
    reply = sandbox.run(program, {})
    # the first process of the namespace and the program itself take two of the eight
    assert reply.output.split()[0] == "6", reply


def test_a_fork_bomb_ends_with_its_sandbox(sandbox: BubblewrapSandbox) -> None:
    reply = sandbox.run(FORK_BOMB, {})
    assert reply.stopped in {
        "it used more than 2 s of processor time", "it took longer than 20 s", "it used more than 96 MB of memory",
    }  # fmt: skip


def test_fifty_blocks_of_memory_cannot_be_had(sandbox: BubblewrapSandbox) -> None:
    alone = sandbox.run(ALLOCATE, {})
    assert alone.stopped == "it used more than 96 MB of memory" or "MemoryError" in alone.output
    # processes of 30 MB are within every limit of a process
    assert sandbox.run(ALLOCATE_IN_CHILDREN, {}).stopped == "it used more than 96 MB of memory"


def test_the_tree_shares_its_processor_time() -> None:
    # four processes take turns, so none of them comes near the 2 s that each may use; the deadline is for slow machines
    reply = make_sandbox(replace(LIMITS, timeout_s=60.0)).run(BURN_IN_CHILDREN, {})
    assert reply.stopped == "it used more than 2 s of processor time"


def test_a_call_ends_at_its_deadline() -> None:
    start = time.monotonic()
    sandbox = make_sandbox(replace(LIMITS, timeout_s=2.0))
    reply = sandbox.run("import time\nprint('begun', flush=True)\ntime.sleep(60)", {})
    assert (reply.output, reply.exit_status, reply.stopped) == ("begun\n", None, "it took longer than 2 s")
    assert time.monotonic() - start < 2.0 + LIMITS.start_timeout_s


def test_the_scratch_folder_is_bounded_and_fresh(sandbox: BubblewrapSandbox) -> None:
    written, reason = sandbox.run(FILL_SCRATCH, {}).output.split()
    assert 3 * MIB <= int(written) <= 4 * MIB and reason == "ENOSPC"
    assert sandbox.run("import os\nprint(os.listdir())", {}).output == "[]\n"
    assert sandbox.run(MANY_FILES, {}).stopped == "it made more than 100 files"


def test_nothing_outlives_its_call(sandbox: BubblewrapSandbox) -> None:
    start = time.monotonic()
    reply = sandbox.run(OUTLIVE, {})
    assert survivors() == []
    assert (reply.output, reply.exit_status, reply.stopped) == ("left one behind\n", 0, None)
    # what was left behind holds the output open, and is not waited for
    assert time.monotonic() - start < LIMITS.timeout_s


def test_a_flood_of_output_ends_the_program(sandbox: BubblewrapSandbox) -> None:
    reply = sandbox.run(FLOOD, {})
    assert reply.stopped == f"it wrote more than {LIMITS.max_output_bytes} bytes"
    assert len(reply.output) == LIMITS.max_output_bytes
    # also where the program is done before anybody looks
    quick = sandbox.run(f"print('x' * {LIMITS.max_output_bytes}, end='y')", {})
    assert (quick.stopped, set(quick.output)) == (reply.stopped, {"x"})


def test_killing_all_that_can_be_named_kills_nobody_else(sandbox: BubblewrapSandbox) -> None:
    reply = sandbox.run(KILL_ALL, {})
    assert reply.output == "they live\nnobody else is there\n"
    assert reply.exit_status == 128 + signal.SIGKILL
    assert sandbox.run("print(1)", {}).output == "1\n"


def test_a_sandbox_that_cannot_be_built_is_no_fault_of_the_program() -> None:
    # the task's own file does not fit: bwrap itself fails, after its namespaces are there
    sandbox = make_sandbox(replace(LIMITS, max_scratch_bytes=4096))
    with pytest.raises(InfrastructureFailure, match=r"the sandbox did not start: bwrap: .*"):
        sandbox.run("print(1)", {"a.txt": bytes(MIB)})


def test_a_sandbox_dies_with_its_worker() -> None:
    code = (
        "from segue.envs.python.program import ProgramLimits\n"
        "from segue.envs.python.sandbox import BubblewrapSandbox, DEFAULT_INTERPRETER\n"
        "from segue.envs.python.seccomp import build_filter\n"
        "limits = ProgramLimits(timeout_s=60.0)\n"
        "sandbox = BubblewrapSandbox(limits, interpreter=DEFAULT_INTERPRETER, system_call_filter=build_filter())\n"
        "sandbox.run('import time; time.sleep(60)', {})\n"
    )
    with subprocess.Popen([sys.executable, "-P", "-c", code]) as worker:
        wait_until(lambda: any(process.cmdline()[-1] == "/main.py" for process in survivors()))
        worker.kill()
    wait_until(lambda: not survivors())


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20.0
    while not condition():
        assert time.monotonic() < deadline, survivors()
        time.sleep(0.02)
