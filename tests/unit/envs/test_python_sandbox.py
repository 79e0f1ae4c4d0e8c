"""What the sandbox asks of bubblewrap, and what it says where it cannot have it; run in tests/system."""

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from segue.conf.schema import EnvConfig
from segue.envs.errors import EnvironmentSetupError
from segue.envs.factory import EnvFactory
from segue.envs.python.command import build_command
from segue.envs.python.interpreter import Interpreter, _read_ldd, find_interpreter
from segue.envs.python.program import ProgramLimits
from segue.envs.python.tree import Usage


@pytest.fixture
def fake_bin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder that is the whole path of executables, readable by everybody."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        monkeypatch.setenv("PATH", folder)
        yield Path(folder)


def make_command(limits: ProgramLimits) -> list[str]:
    interpreter = Interpreter(
        binds=(("/usr/bin/python3.11", "/python/bin/python3"), ("/lib/libm.so.6", "/python/so/libm.so.6")),
        hidden=("/python/lib/python3.11/site-packages",),
    )
    return build_command(
        interpreter, limits, bwrap="/usr/bin/bwrap", contents={"/main.py": 7, "/scratch/a.txt": 8},
        filter_descriptor=9, info_descriptor=10, hold_descriptor=12, ready_descriptor=11,
    )  # fmt: skip


def test_the_command_shows_the_interpreter_alone_and_locks_the_rest() -> None:
    command = make_command(ProgramLimits(max_scratch_bytes=4096))
    options, program = command[: command.index("--")], command[command.index("--") + 1 :]
    assert {"--unshare-all", "--unshare-user", "--die-with-parent", "--new-session", "--clearenv"} <= set(options)
    sources = [options[at + 1] for at, option in enumerate(options) if option.endswith("bind")]
    assert sources == ["/usr/bin/python3.11", "/lib/libm.so.6", "/dev/null", "/dev/urandom"]
    written = " ".join(options)
    # the order matters: the root is locked once everything lies in it, and the scratch folder stays open
    assert written.endswith(
        "--size 4096 --tmpfs /scratch --file 7 /main.py --file 8 /scratch/a.txt --remount-ro / --chdir /scratch"
    )
    assert "--tmpfs /python/lib/python3.11/site-packages --remount-ro /python/lib/python3.11/site-packages" in written
    assert "--seccomp 9 --info-fd 10 --block-fd 12" in written and "--proc" not in options and "--dev" not in options
    assert program[:4] == ["/python/bin/python3", "-I", "-S", "-c"]


def test_the_launcher_is_told_every_limit_of_a_process() -> None:
    limits = ProgramLimits(max_address_bytes=1, max_cpu_s=2, max_processes=3, max_descriptors=4, max_scratch_bytes=5)
    order = json.loads(make_command(limits)[-1])
    assert order == {
        "limits": {
            "RLIMIT_AS": 1, "RLIMIT_CPU": 2, "RLIMIT_NPROC": 3, "RLIMIT_NOFILE": 4, "RLIMIT_FSIZE": 5,
            "RLIMIT_CORE": 1, "RLIMIT_MEMLOCK": 0, "RLIMIT_MSGQUEUE": 0, "RLIMIT_SIGPENDING": 4,
        },
        "ready": 11,
        "program": "/main.py",
    }  # fmt: skip


def test_a_tree_is_held_to_each_of_its_limits() -> None:
    limits = ProgramLimits(max_memory_bytes=2**21, max_cpu_s=3, max_scratch_files=4)
    assert Usage(memory_bytes=2**21, cpu_s=3.0, scratch_files=4).find_breach(limits) is None
    breaches = (
        Usage(memory_bytes=2**21 + 1, cpu_s=3.0, scratch_files=4),
        Usage(memory_bytes=2**21, cpu_s=3.01, scratch_files=4),
        Usage(memory_bytes=2**21, cpu_s=3.0, scratch_files=5),
    )
    assert [usage.find_breach(limits) for usage in breaches] == [
        "it used more than 2 MB of memory", "it used more than 3 s of processor time", "it made more than 4 files",
    ]  # fmt: skip


def test_libraries_are_shown_by_the_names_that_programs_ask_for() -> None:
    text = (
        "/usr/lib/python3.11/lib-dynload/_ssl.so:\n"
        "\tlinux-vdso.so.1 (0x00007ffd)\n"
        "\tlibm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x00007f00)\n"
        "\tlibm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x00007f00)\n"
        "\t/lib64/ld-linux-x86-64.so.2 (0x00007f01)\n"
        "\t/lib/ld-linux-aarch64.so.1 => /opt/ld.so (0x00007f01)\n"
        "\tlibtk8.6.so => not found\n"
        "\tstatically linked\n"
    )
    assert _read_ldd(text) == (
        ("/lib/x86_64-linux-gnu/libm.so.6", "/python/so/libm.so.6"),
        ("/lib64/ld-linux-x86-64.so.2", "/lib64/ld-linux-x86-64.so.2"),
        ("/opt/ld.so", "/lib/ld-linux-aarch64.so.1"),
    )


def test_an_interpreter_is_found_with_its_library() -> None:
    found = find_interpreter(sys.executable)
    inside = {there: here for here, there in found.binds}
    assert Path(inside["/python/bin/python3"]).samefile(sys.executable)
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    assert Path(inside[f"/python/{sys.platlibdir}/{version}"], "os.py").is_file()
    assert any(there.startswith("/python/so/libc.") for there in inside)


def test_what_is_no_interpreter_is_refused_with_the_remedy(fake_bin: Path) -> None:
    with pytest.raises(EnvironmentSetupError, match=r"interpreter=/no/python .*apt-get install python3"):
        find_interpreter("/no/python")


def test_without_bubblewrap_the_remedy_is_named(fake_bin: Path) -> None:
    with pytest.raises(EnvironmentSetupError, match="bwrap is not on the path; remedy: apt-get install bubblewrap"):
        EnvFactory(EnvConfig(id="python")).check()


def test_where_bubblewrap_may_not_unshare_the_remedy_is_named(fake_bin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{fake_bin}:{os.defpath}")
    script = fake_bin / "bwrap"
    script.write_text("#!/bin/sh\necho 'bwrap: No permissions to create a new namespace' >&2\nexit 1\n")
    script.chmod(0o755)
    config = EnvConfig(id="python", kwargs={"interpreter": sys.executable})
    with pytest.raises(EnvironmentSetupError, match=r"No permissions to create a new namespace; remedy: .*user name"):
        EnvFactory(config).check()


def test_a_call_must_have_time_for_the_limits_of_a_program(fake_bin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{fake_bin}:{os.defpath}")
    (fake_bin / "bwrap").touch(mode=0o755)
    config = EnvConfig(id="python", kwargs={"interpreter": sys.executable}, call_timeout_s=10.0)
    with pytest.raises(EnvironmentSetupError, match=r"call_timeout_s must be at least 25 for python, got 10"):
        EnvFactory(config).check()
