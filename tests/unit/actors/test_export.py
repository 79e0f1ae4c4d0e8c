"""An export reads a checkpoint of a run that may go on."""

import json
import shutil
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from segue.actors import export
from segue.actors.checkpoint_store import LEARNER_NAME, CheckpointStore
from segue.actors.errors import RunError
from segue.conf.errors import ConfigError
from segue.conf.load import load_config

CONFIG = load_config(["experiment=smoke"])


def make_run(folder: Path, *steps: int) -> CheckpointStore:
    store = CheckpointStore(folder / "checkpoints", keep_last=9)
    for step in steps:
        store.save(step, {"step": step}, lambda learner: (learner / "rank-0.bin").write_bytes(b"weights") and None)
    launch = {"command": "train", "incarnation": 0, "restored_steps": [0]}
    (folder / "run.json").write_text(json.dumps([launch]))
    return store


def test_a_run_without_a_checkpoint_says_so(tmp_path: Path) -> None:
    make_run(tmp_path)
    with pytest.raises(ConfigError, match=r"got .* without one; see train\.checkpoint_every"):
        export.export_run(CONFIG, tmp_path, tmp_path / "out", step=None)


@pytest.mark.parametrize("is_deleted", [True, False])
def test_a_checkpoint_that_its_run_deletes_meanwhile_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_deleted: bool
) -> None:
    store = make_run(tmp_path, 2, 4)

    class Ranks:
        def __init__(self, *_: object) -> None: ...

        def start(self, **_: object) -> None: ...

        def ask(self, method: str, path: Path, *, what: str) -> None:
            assert (method, path) == ("load", store.path(4) / LEARNER_NAME)
            if is_deleted:
                shutil.rmtree(store.path(4))
            raise RunError("learner-0 failed: facts.json")

    @contextmanager
    def fleet(*_: object):
        yield SimpleNamespace(config=CONFIG, start=lambda: None)

    monkeypatch.setattr(export, "LearnerRanks", Ranks)
    monkeypatch.setattr(export, "supervised", fleet)
    error, text = (ConfigError, "got step 4, which the run has deleted") if is_deleted else (RunError, "facts.json")
    with pytest.raises(error, match=text):
        export.export_run(CONFIG, tmp_path, tmp_path / "out", step=None)


def test_a_checkpoint_that_its_run_deletes_as_it_is_checked_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_run(tmp_path, 4)

    def misfit(_: bytes) -> str:
        shutil.rmtree(store.path(4))
        return "cut"

    monkeypatch.setattr("segue.actors.checkpoint_store.misfit", misfit)
    with pytest.raises(ConfigError, match="got step 4, which the run has deleted meanwhile"):
        export.export_run(CONFIG, tmp_path, tmp_path / "out", step=None)
