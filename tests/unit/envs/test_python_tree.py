"""What the watch reads of a process; whole trees are in tests/system/test_python_tricks.py."""

from pathlib import Path

from segue.envs.python.tree import _read_memory

STATUS = b"""Name:\t\xff) R 1\\nVmRSS: 0
Umask:\t0022
VmPeak:\t  999999 kB
VmHWM:\t    999999 kB
VmRSS:\t      9216 kB
VmPTE:\t        84 kB
VmSwap:\t       400 kB
HugetlbPages:\t      2048 kB
Threads:\t2
"""


def test_memory_is_all_that_a_process_keeps_wherever_it_lies(tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_bytes(STATUS)
    # resident, its page tables, swapped out and huge, and not the largest of earlier
    assert _read_memory(str(status)) == (9216 + 84 + 400 + 2048) * 1024
    assert _read_memory(str(tmp_path / "ended")) == 0
