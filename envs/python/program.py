"""A program that a model wrote: what it may use, and what came of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

MIB = 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramLimits:
    """Bounds of one run. Those of the tree hold for the program and all that it starts, together."""

    timeout_s: float = 5.0
    """Wall seconds from the program's first instruction."""
    start_timeout_s: float = 15.0
    """Wall seconds that the sandbox may take before that."""
    max_cpu_s: int = 5
    """Processor seconds of the tree, and of each process by the kernel's own count."""
    max_memory_bytes: int = 256 * MIB
    """Resident memory of the tree; a page that two processes share counts twice."""
    max_address_bytes: int = 256 * MIB
    """Address space of each process: an allocation beyond it fails at once."""
    max_processes: int = 16
    """Processes and threads of the tree."""
    max_scratch_bytes: int = 16 * MIB
    """The scratch folder, which lies in memory."""
    max_scratch_files: int = 2000
    """Files and folders in it: each costs the kernel memory, however short."""
    max_descriptors: int = 64
    """Open files of each process."""
    max_output_bytes: int = 8192
    """Standard output and error together; more ends the program."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramReply:
    """What a program did, as far as anybody outside can see."""

    output: str
    """Standard output and error as they came, at most `max_output_bytes`; what is no UTF-8 is replaced."""
    exit_status: int | None
    """0 for success, 128 and the signal's number for a death by signal; None where it was stopped."""
    stopped: str | None = None
    """The limit that it was stopped for."""


class ProgramRunner(Protocol):
    """Where programs run."""

    def run(self, code: str, files: Mapping[str, bytes]) -> ProgramReply:
        """Runs one program beside fresh copies of files; never raises for what the program is."""
        ...
