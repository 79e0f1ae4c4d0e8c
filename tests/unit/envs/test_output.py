"""The allowance of a worker's output, on a clock of the test's. Whole workers are in test_keeper.py."""

import os
import re
from pathlib import Path

from segue.envs.output import BURST_BYTES, BYTES_PER_S, OutputRelay

NOTE = re.compile(rb"\n\[env worker: (\d+) bytes of output left out\]\n")


class Clock:
    """Seconds that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def relay_to(path: Path, clock: Clock) -> OutputRelay:
    return OutputRelay(os.open(path, os.O_WRONLY | os.O_CREAT), clock)


def test_what_is_little_passes_as_it_is(tmp_path: Path) -> None:
    clock = Clock()
    relay = relay_to(tmp_path / "log", clock)
    for second in range(1000):
        clock.now = float(second)
        relay.take(b"x" * BYTES_PER_S)
    relay.close()
    assert (tmp_path / "log").read_bytes() == b"x" * BYTES_PER_S * 1000


def test_a_flood_is_bounded_and_every_byte_is_passed_on_or_counted(tmp_path: Path) -> None:
    clock = Clock()
    relay = relay_to(tmp_path / "log", clock)
    num_written = 0
    for tenth in range(10_000):
        clock.now = tenth / 10
        relay.take(b"y" * 65536)
        num_written += 65536
    relay.close()
    text = (tmp_path / "log").read_bytes()
    notes = [int(count) for count in NOTE.findall(text)]
    num_passed = len(NOTE.sub(b"", text))
    # 999.9 seconds
    assert num_passed <= BURST_BYTES + BYTES_PER_S * 999.9
    assert num_passed + sum(notes) == num_written
    # heard again each time a quarter of the allowance has come back: 64 KiB at 4 KiB/s
    assert len(notes) == 1 + 999 // 16


def test_a_reader_that_does_not_read_holds_nobody_up_and_hears_what_it_missed() -> None:
    reading, writing = os.pipe()
    clock = Clock()
    relay = OutputRelay(writing, clock)
    relay.take(b"z" * BURST_BYTES)
    # a pipe holds 64 KiB
    assert os.read(reading, 2 * BURST_BYTES) == b"z" * 65536
    clock.now = BURST_BYTES / BYTES_PER_S
    relay.take(b"again")
    assert os.read(reading, 1000) == b"\n[env worker: %d bytes of output left out]\nagain" % (BURST_BYTES - 65536)
    os.close(reading)
    relay.take(b"to nobody")
    relay.close()
    os.close(writing)
