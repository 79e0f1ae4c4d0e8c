"""CPU seconds of the process tree, against work of a known kind; the dead are remembered."""

import subprocess
import sys
import time

from segue.actors.process_meter import ProcessMeter

BURN = "import time\nwhile time.process_time() < {seconds}: pass\nprint('done', flush=True)\n{then}"


def burn(seconds: float, then: str = "input()") -> subprocess.Popen:
    code = BURN.format(seconds=seconds, then=then)
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"done\n"
    return process


def test_a_childs_seconds_and_memory_count_and_stay_after_its_death() -> None:
    meter = ProcessMeter()
    before = meter.read()
    child = burn(0.4)
    during = meter.read()
    assert during.num_processes == before.num_processes + 1
    assert during.cpu_s - before.cpu_s >= 0.3
    assert during.peak_memory_bytes >= during.memory_bytes > 0
    child.communicate(b"\n")
    after = meter.read()
    assert after.num_processes == before.num_processes
    assert after.cpu_s >= during.cpu_s
    assert after.peak_memory_bytes >= during.peak_memory_bytes


def test_a_reading_is_reused_while_it_is_fresh() -> None:
    meter = ProcessMeter()
    first = meter.read()
    start = time.process_time()
    while time.process_time() - start < 0.05:
        pass
    assert meter.read_if_due() is first
    assert meter.read().cpu_s > first.cpu_s
