"""What programs try to cheat the watch, the launcher and the kernel that all share: really run in bubblewrap."""

import os
from dataclasses import replace

import pytest
from python_tricks import (
    ADOPT,
    ATTRIBUTES,
    DEAD_FIRST_THREAD,
    DEEP_TREE,
    ENDINGS,
    EXHAUST,
    HIDE_BEHIND_A_NAME,
    HIDE_TIME,
    HOP,
    INPUT,
    OUTPUT,
    PAGE_TABLES,
    PRIVILEGES,
    SHADOW,
    SHARED_BY_THE_MACHINE,
    SOCKET_BUFFERS,
    STOP,
    TERMINAL,
)
from sandbox_cases import LIMITS, make_sandbox, results

from segue.envs.python.program import ProgramLimits
from segue.envs.python.sandbox import BubblewrapSandbox

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("nothing_is_left")]


@pytest.mark.parametrize(
    "program",
    [PAGE_TABLES, SOCKET_BUFFERS, DEAD_FIRST_THREAD, HOP, HIDE_BEHIND_A_NAME],
    ids=["page tables", "socket buffers", "dead first thread", "hop", "name"],
)
def test_memory_is_seen_wherever_it_is_hidden(sandbox: BubblewrapSandbox, program: str) -> None:
    assert sandbox.run(program, {}).stopped == "it used more than 96 MB of memory"


def test_time_that_no_process_answers_for_ends_at_the_deadline() -> None:
    reply = make_sandbox(replace(LIMITS, timeout_s=1.0)).run(HIDE_TIME, {})
    assert (reply.output, reply.stopped) == ("begun\n", "it took longer than 1 s")


def test_what_the_whole_machine_shares_cannot_be_had(sandbox: BubblewrapSandbox) -> None:
    found = results(sandbox.run(SHARED_BY_THE_MACHINE, {}).output)
    assert (len(found), set(found.values())) == (18, {"EPERM"})


def test_whoever_is_stopped_is_ended_at_the_deadline() -> None:
    reply = make_sandbox(replace(LIMITS, timeout_s=1.0)).run(STOP, {})
    assert (reply.output, reply.stopped) == ("begun\n", "it took longer than 1 s")


def test_an_adopted_daemon_does_not_outlive_its_call(sandbox: BubblewrapSandbox) -> None:
    reply = sandbox.run(ADOPT, {})
    assert (reply.output, reply.exit_status) == ("left one behind\n", 0)


def test_there_is_no_terminal_to_type_on(sandbox: BubblewrapSandbox) -> None:
    found = results(sandbox.run(TERMINAL, {}).output)
    assert [found.pop(f"type {number}") for number in range(3)] == ["ENOTTY"] * 3
    assert found == dict.fromkeys(("terminal", "console", "pseudo terminal"), "ENOENT")


def test_a_program_has_no_privilege_and_can_give_itself_none() -> None:
    before = os.stat(os.devnull)
    found = results(make_sandbox(ProgramLimits(timeout_s=20.0)).run(PRIVILEGES, {}).output)
    assert found == {
        "capabilities": "True", "no new privileges": "1", "own program": "1000 1000", "own device": "EPERM",
        "own device's owner": "EPERM",
    }  # fmt: skip
    after = os.stat(os.devnull)
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)


def test_what_is_exhausted_is_the_programs_own(sandbox: BubblewrapSandbox) -> None:
    found = results(sandbox.run(EXHAUST, {}).output)
    assert found == {
        "arguments": "E2BIG", "one argument": "E2BIG", "descriptors": "EMFILE", "sparse file": "EFBIG",
        "sparse file's end": "EFBIG", "reserve": "EFBIG", "timers": "EAGAIN", "lock memory": "EPERM",
        # the kernel's word for no dump, to no file and to no program of the machine
        "core": "(1, 1)", "dumped": "False",
    }  # fmt: skip


@pytest.mark.parametrize("program", [DEEP_TREE, ATTRIBUTES], ids=["folders", "attributes"])
def test_whatever_takes_room_in_the_scratch_folder_is_counted(sandbox: BubblewrapSandbox, program: str) -> None:
    assert sandbox.run(program, {}).stopped == "it made more than 100 files"


def test_output_may_be_broken_and_closed_before_the_end(sandbox: BubblewrapSandbox) -> None:
    reply = sandbox.run(OUTPUT, {})
    assert (reply.output, reply.exit_status, reply.stopped) == ("a\ufffd\ufffd", 7, None)


def test_input_ends_at_once_and_output_cannot_be_read(sandbox: BubblewrapSandbox) -> None:
    found = results(sandbox.run(INPUT, {}).output)
    assert found == {"read": "''", "read on": "b''", "read output": "EBADF", "write": "1", "seek": "ESPIPE"}


def test_files_of_the_task_are_no_modules_of_the_launcher_or_the_program(sandbox: BubblewrapSandbox) -> None:
    names = ("json.py", "os.py", "resource.py", "sitecustomize.py", "usercustomize.py", "main.py", "x.pth")
    reply = sandbox.run("import json, resource\nprint(json.loads('57'))", dict.fromkeys(names, SHADOW))
    assert (reply.output, reply.exit_status) == ("57\n", 0)


@pytest.mark.parametrize(("code", "status"), ENDINGS.values(), ids=ENDINGS.keys())
def test_no_bad_ending_looks_like_a_good_one(sandbox: BubblewrapSandbox, code: str, status: int) -> None:
    reply = sandbox.run(code, {})
    assert (reply.output.splitlines()[0], reply.exit_status) == ("57", status)
