"""The end of a run whose disk is full; whole runs are in tests/e2e/test_train.py."""

from pathlib import Path

import pytest

from segue.actors.errors import RunError
from segue.actors.recorder import Recorder
from segue.actors.run import _write_end


def test_a_summary_that_cannot_be_written_hides_no_error_and_is_one_where_there_was_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "summary.json"
    said: list[str] = []
    _write_end(path, {"status": "failed: learner-0 failed"}, Recorder(None), said.append)
    assert len(said) == 1 and said[0].startswith(f"{path} could not be written: ")
    with pytest.raises(RunError, match=f"^{path} must be on a disk with room"):
        _write_end(path, {"status": "finished"}, Recorder(None), said.append)
