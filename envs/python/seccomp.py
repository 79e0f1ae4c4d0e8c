"""System calls that a program in the sandbox cannot make: a seccomp filter, assembled by hand.

The namespaces already keep these calls from reaching anything of this machine. The filter takes away the parts of the
kernel in which a fault would break the namespaces, the kinds of memory that belong to no process and that no limit of
a process counts (System V segments, `memfd`, message queues, what a pipe or an unmapped page of a shared object keeps),
and what all processes of the machine have to share (asynchronous I/O, writing back the disks).
"""

import errno
import platform
import struct
from dataclasses import dataclass

from segue.envs.errors import EnvironmentSetupError

# machine: (what the kernel calls it, column of _DENIED)
_MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
# system call: its numbers on x86_64 and aarch64, None where there is none
_DENIED: dict[str, tuple[int | None, int | None]] = {
    # other processes
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "process_madvise": (440, 440), "kcmp": (312, 272), "pidfd_getfd": (438, 438),
    # namespaces and mounts
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41),
    "chroot": (161, 51), "move_mount": (429, 429), "open_tree": (428, 428), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "open_by_handle_at": (304, 265), "name_to_handle_at": (303, 264),
    "open_tree_attr": (467, 467), "statmount": (457, 457), "listmount": (458, 458),
    # the network: what a namespace of its own leaves is taken, too; `socketpair` stays, with buffers of the usual size
    "socket": (41, 198), "setsockopt": (54, 208),
    # memory and handles that outlive or escape a process's account
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194), "semget": (64, 190),
    "msgget": (68, 186), "mq_open": (240, 180), "inotify_init": (253, None), "inotify_init1": (294, 26),
    "fanotify_init": (300, 262), "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218),
    "landlock_create_ruleset": (444, 444),
    # a pipe would keep whole huge pages alive for a byte of each
    "vmsplice": (278, 75),
    # what the whole machine shares
    "io_setup": (206, 0), "sync": (162, 81), "syncfs": (306, 267),
    # large and rarely needed parts of the kernel
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "personality": (135, 92), "modify_ldt": (154, None), "iopl": (172, None), "ioperm": (173, None),
    "quotactl": (179, 60), "quotactl_fd": (443, 443), "lookup_dcookie": (212, 18), "syslog": (103, 116),
    "acct": (163, 89), "swapon": (167, 224), "swapoff": (168, 225), "reboot": (169, 142),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105),
    "finit_module": (313, 273), "delete_module": (176, 106), "settimeofday": (164, 170),
    "clock_settime": (227, 112), "adjtimex": (159, 171), "clock_adjtime": (305, 266),
    "sethostname": (170, 161), "setdomainname": (171, 162), "vhangup": (153, 58),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class _Form:
    """Calls of one kind that are told apart by an argument; its low 32 bits are looked at."""

    numbers: tuple[int, int]
    """As in `_DENIED`."""
    argument: int
    """Which one, from 0."""
    mask: int = 0xFFFFFFFF
    value: int
    """What the masked argument is compared with."""
    is_denied: bool = True
    """True: calls with this value are denied; False: all others are."""


_MMAP = (9, 222)
# what remains of calls that programs need
_FORMS = (
    # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET: none of them
    _Form(numbers=(56, 220), argument=0, mask=0x7E020000, value=0, is_denied=False),
    # MAP_SHARED with MAP_ANONYMOUS: such memory lives on while one page of it is mapped, and that page alone is counted
    _Form(numbers=_MMAP, argument=3, mask=0x21, value=0x21),
    # MAP_HUGETLB: from the machine's reserve
    _Form(numbers=_MMAP, argument=3, mask=0x40000, value=0x40000),
    # F_SETPIPE_SZ
    _Form(numbers=(72, 25), argument=1, value=1031),
    # AF_UNIX alone: others make the kernel load modules
    _Form(numbers=(53, 199), argument=0, value=1, is_denied=False),
)
_CLONE3 = (435, 435)
_FIRST_X32_CALL = 0x40000000

# of struct seccomp_data
_NUMBER_OFFSET, _MACHINE_OFFSET, _FIRST_ARGUMENT_OFFSET, _ARGUMENT_BYTES = 0, 4, 16, 8
_LOAD, _AND, _JUMP_EQUAL, _JUMP_AT_LEAST, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
_KILL, _FAIL, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000


def build_filter(machine: str = platform.machine()) -> bytes:
    """The filter as the kernel reads it: an array of `struct sock_filter`.

    Args:
        machine: as `platform.machine` names it.

    Raises:
        EnvironmentSetupError: the numbers of this machine's system calls are not known here.
    """
    if machine not in _MACHINES:
        raise EnvironmentSetupError(f"the sandbox knows the system calls of {' and '.join(_MACHINES)}, got {machine}")
    kernel_name, column = _MACHINES[machine]
    program = [
        (_LOAD, 0, 0, _MACHINE_OFFSET),
        (_JUMP_EQUAL, 1, 0, kernel_name),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_OFFSET),
        # the x32 names of the same calls
        (_JUMP_AT_LEAST, 0, 1, _FIRST_X32_CALL),
        (_RETURN, 0, 0, _FAIL | errno.EPERM),
    ]
    for numbers in _DENIED.values():
        number = numbers[column]
        if number is not None:
            program += [(_JUMP_EQUAL, 0, 1, number), (_RETURN, 0, 0, _FAIL | errno.EPERM)]
    # its flags lie in memory, where no filter sees them; the C library then asks `clone`
    program += [(_JUMP_EQUAL, 0, 1, _CLONE3[column]), (_RETURN, 0, 0, _FAIL | errno.ENOSYS)]
    for form in _FORMS:
        program += _judge_form(form, form.numbers[column])
    program.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


def _judge_form(form: _Form, number: int) -> list[tuple[int, int, int, int]]:
    """Instructions that refuse a form; they begin and end with the call's number at hand."""
    to_refuse, to_pass = (0, 1) if form.is_denied else (1, 0)
    return [
        (_JUMP_EQUAL, 0, 5, number),
        (_LOAD, 0, 0, _FIRST_ARGUMENT_OFFSET + _ARGUMENT_BYTES * form.argument),
        (_AND, 0, 0, form.mask),
        (_JUMP_EQUAL, to_refuse, to_pass, form.value),
        (_RETURN, 0, 0, _FAIL | errno.EPERM),
        (_LOAD, 0, 0, _NUMBER_OFFSET),
    ]
