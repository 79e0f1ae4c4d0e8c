"""The seccomp filter, run by a small machine of the kernel's kind."""

import errno
import struct

import pytest

from segue.envs.errors import EnvironmentSetupError
from segue.envs.python.seccomp import build_filter

X86_64, AARCH64 = 0xC000003E, 0xC00000B7
ALLOW, KILL = 0x7FFF0000, 0x80000000
EPERM, ENOSYS = 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS


def judge(program: bytes, *, number: int, machine: int, arguments: tuple[int, ...] = ()) -> int:
    """What a filter returns for a system call."""
    data = struct.pack("=IIQ6Q", number, machine, 0, *arguments, *[0] * (6 - len(arguments)))
    instructions = list(struct.iter_unpack("=HBBI", program))
    accumulator, at = 0, 0
    while True:
        code, if_true, if_false, value = instructions[at]
        at += 1
        if code == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, value)
        elif code == 0x54:
            accumulator &= value
        elif code == 0x06:
            return value
        else:
            is_true = {0x15: accumulator == value, 0x35: accumulator >= value}[code]
            at += if_true if is_true else if_false


@pytest.mark.parametrize(
    ("name", "machine", "denied", "allowed", "clone", "clone3"),
    [
        # ptrace, socket, unshare, memfd_create, bpf, vmsplice; read, write, openat, exit_group, mmap, fcntl
        ("x86_64", X86_64, (101, 41, 272, 319, 321, 278), (0, 1, 257, 231, 9, 72), 56, 435),
        ("aarch64", AARCH64, (117, 198, 97, 279, 280, 75), (63, 64, 56, 94, 222, 25), 220, 435),
    ],
)
def test_the_filter_denies_what_it_lists_and_nothing_else(
    name: str, machine: int, denied: tuple[int, ...], allowed: tuple[int, ...], clone: int, clone3: int
) -> None:
    program = build_filter(name)
    assert {judge(program, number=number, machine=machine) for number in denied} == {EPERM}
    assert {judge(program, number=number, machine=machine) for number in allowed} == {ALLOW}
    assert judge(program, number=clone3, machine=machine) == ENOSYS
    # a thread and a child, then each namespace
    for flags in (0x3D0F00, 17):
        assert judge(program, number=clone, machine=machine, arguments=(flags,)) == ALLOW
    for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert judge(program, number=clone, machine=machine, arguments=(flag | 17,)) == EPERM


@pytest.mark.parametrize(
    ("name", "machine", "mmap", "fcntl", "socketpair"),
    [("x86_64", X86_64, 9, 72, 53), ("aarch64", AARCH64, 222, 25, 199)],
)
def test_calls_are_told_apart_by_an_argument(name: str, machine: int, mmap: int, fcntl: int, socketpair: int) -> None:
    program = build_filter(name)

    def verdicts(number: int, *calls: tuple[int, ...]) -> set[int]:
        return {judge(program, number=number, machine=machine, arguments=call) for call in calls}

    # private; private and anonymous; shared with a file; the same with a flag that is denied elsewhere, as an address
    assert verdicts(mmap, (0, 1, 3, 2), (0, 1, 3, 0x22), (0, 1, 3, 1), (0x21, 1, 3, 2)) == {ALLOW}
    # shared and anonymous, in both spellings and with more flags; huge pages
    assert verdicts(mmap, (0, 1, 3, 0x21), (0, 1, 3, 0x23), (0, 1, 3, 0x8021), (0, 1, 3, 0x40022)) == {EPERM}
    # duplicate, lock, size of a pipe; change its size
    assert verdicts(fcntl, (1, 0), (1, 6), (1, 1032)) == {ALLOW}
    assert verdicts(fcntl, (1, 1031)) == {EPERM}
    # local; of the internet, and of a family that is a module
    assert verdicts(socketpair, (1, 1)) == {ALLOW}
    assert verdicts(socketpair, (2, 1), (30, 1), (2**32 + 30, 1)) == {EPERM}


def test_calls_by_another_machines_numbers_end_the_program() -> None:
    # 32-bit calls on x86_64 (AUDIT_ARCH_I386), where number 26 is ptrace
    assert judge(build_filter("x86_64"), number=26, machine=0x40000003) == KILL
    # x32: ptrace is 0x40000000 + 521
    assert judge(build_filter("x86_64"), number=0x40000000 + 521, machine=X86_64) == EPERM


def test_an_unknown_machine_is_refused() -> None:
    with pytest.raises(EnvironmentSetupError, match="x86_64 and aarch64, got riscv64"):
        build_filter("riscv64")
