"""Standard streams that are closed, and signs that a terminal's encoding lacks."""

import io
import subprocess
import sys

import pytest

from segue.actors.cli.standard_streams import mend_standard_streams

OPENED = """
import os
for number in {closed}:
    os.close(number)
from segue.actors.cli.standard_streams import mend_standard_streams
mend_standard_streams()
targets = [os.path.realpath(f"/proc/self/fd/{{number}}") for number in {closed}]
os.write(7, str(targets + [os.open("/", os.O_RDONLY) > 2]).encode())
"""


def test_a_stream_that_is_closed_is_open_on_nothing_so_that_no_file_takes_its_place() -> None:
    code = "import os; os.dup2(1, 7)" + OPENED.format(closed=[0, 1, 2])
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == str(["/dev/null"] * 3 + [True])


def test_signs_that_the_encoding_lacks_end_no_command(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", plain)
    mend_standard_streams()
    print("a – b")
    plain.flush()
    assert plain.buffer.getvalue() == b"a ? b\n"  # type: ignore[attr-defined]
