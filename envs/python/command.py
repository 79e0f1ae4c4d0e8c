"""How the sandbox is asked for: the arguments of `bwrap`.

What a program finds: the interpreter and its libraries, read-only; `/dev/null` and `/dev/urandom`; itself as
`/main.py`; and `/scratch`, the only place that it can write to. There is no `/proc`, no `/tmp`, no `/etc`, no home.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from segue.envs.python import launcher
from segue.envs.python.interpreter import EXECUTABLE, LIBRARIES, Interpreter
from segue.envs.python.program import ProgramLimits

PROGRAM = "/main.py"
SCRATCH = "/scratch"
_DEVICES = ("/dev/null", "/dev/urandom")
# a user of the new namespace, who is somebody else outside
_USER = "1000"
_ENVIRONMENT = {
    "HOME": SCRATCH,
    "LANG": "C.UTF-8",
    "LD_LIBRARY_PATH": LIBRARIES,
    # an arena of each thread reserves 64 MB of address space
    "MALLOC_ARENA_MAX": "1",
    # the order of sets must not change from run to run
    "PYTHONHASHSEED": "0",
    "PYTHONUNBUFFERED": "1",
    "PYTHONUTF8": "1",
    "TMPDIR": SCRATCH,
}


def build_command(
    interpreter: Interpreter,
    limits: ProgramLimits,
    *,
    bwrap: str,
    contents: Mapping[str, int],
    filter_descriptor: int,
    info_descriptor: int,
    hold_descriptor: int,
    ready_descriptor: int,
) -> list[str]:
    """The command that runs one program.

    Args:
        interpreter: which runs it.
        limits: that the launcher takes on; the rest is the watcher's.
        bwrap: path of the executable.
        contents: path in the sandbox to an open descriptor with the content of that file.
        filter_descriptor: holds the seccomp filter.
        info_descriptor: bwrap writes to it, as JSON, the process that is the first of the new namespace.
        hold_descriptor: the sandbox is built once a byte can be read from it.
        ready_descriptor: the launcher writes a byte to it when the program is about to start.
    """
    command = [
        bwrap, "--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session",
        "--uid", _USER, "--gid", _USER, "--hostname", "sandbox", "--clearenv", "--cap-drop", "ALL",
        "--seccomp", str(filter_descriptor), "--info-fd", str(info_descriptor), "--block-fd", str(hold_descriptor),
    ]  # fmt: skip
    for name, value in _ENVIRONMENT.items():
        command += ["--setenv", name, value]
    for path, inside in interpreter.binds:
        command += ["--ro-bind", path, inside]
    for folder in interpreter.hidden:
        command += ["--tmpfs", folder, "--remount-ro", folder]
    for device in _DEVICES:
        command += ["--dev-bind", device, device]
    command += ["--size", str(limits.max_scratch_bytes), "--tmpfs", SCRATCH]
    for inside, descriptor in contents.items():
        command += ["--file", str(descriptor), inside]
    # the root is a tmpfs without a bound of its own
    command += ["--remount-ro", "/", "--chdir", SCRATCH]
    order = {"limits": _kernel_limits(limits), "ready": ready_descriptor, "program": PROGRAM}
    return [*command, "--", EXECUTABLE, "-I", "-S", "-c", Path(launcher.__file__).read_text(), json.dumps(order)]


def _kernel_limits(limits: ProgramLimits) -> dict[str, int]:
    return {
        "RLIMIT_AS": limits.max_address_bytes,
        "RLIMIT_CPU": limits.max_cpu_s,
        "RLIMIT_NPROC": limits.max_processes,
        "RLIMIT_NOFILE": limits.max_descriptors,
        "RLIMIT_FSIZE": limits.max_scratch_bytes,
        # 0 would still hand a dump to whatever program of the machine collects them; 1 is the kernel's word for none
        "RLIMIT_CORE": 1,
        "RLIMIT_MEMLOCK": 0,
        "RLIMIT_MSGQUEUE": 0,
        "RLIMIT_SIGPENDING": limits.max_descriptors,
    }
