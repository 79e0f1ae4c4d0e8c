"""Checkpoints appear whole, are found newest first, and are pruned to the last few and the best."""

from pathlib import Path

import pytest

from segue.actors.checkpoint_store import LEARNER_NAME, CheckpointStore
from segue.actors.replacement import finish_replacements


def make_store(tmp_path: Path, keep_last: int = 2) -> CheckpointStore:
    return CheckpointStore(tmp_path / "checkpoints", keep_last=keep_last)


def save(store: CheckpointStore, step: int) -> None:
    store.save(step, {"step": step}, lambda folder: (folder / "rank-0.bin").write_bytes(b"weights %d" % step) and None)


def test_the_newest_whole_checkpoint_is_found(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    assert store.load_newest() == (0, {}, [])
    save(store, 3)
    save(store, 12)
    assert store.load_newest() == (12, {"step": 12}, [])
    assert (store.path(12) / LEARNER_NAME / "rank-0.bin").read_bytes() == b"weights 12"


@pytest.mark.parametrize("harm", ["change", "delete", "add", "no manifest"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_taken(tmp_path: Path, harm: str) -> None:
    store = make_store(tmp_path)
    save(store, 1)
    save(store, 2)
    learner = store.path(2) / LEARNER_NAME
    if harm == "change":
        (learner / "rank-0.bin").write_bytes(b"weights X")
    elif harm == "delete":
        (learner / "rank-0.bin").unlink()
    elif harm == "add":
        (learner / "rank-1.bin").write_bytes(b"foreign")
    else:
        (store.path(2) / "manifest.json").unlink()
    step, state, faults = store.load_newest()
    assert (step, state) == (1, {"step": 1})
    named = {
        "change": "learner/rank-0.bin missing, foreign or damaged",
        "delete": "learner/rank-0.bin missing, foreign or damaged",
        "add": "learner/rank-1.bin missing, foreign or damaged",
        "no manifest": "no readable manifest (FileNotFoundError)",
    }
    assert faults == [f"step-00000002: {named[harm]}"]


def test_a_checkpoint_that_was_not_finished_is_no_checkpoint(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    save(store, 1)

    def fail(folder: Path) -> None:
        (folder / "rank-0.bin").write_bytes(b"half")
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        store.save(2, {"step": 2}, fail)
    assert store.steps() == [1]
    store.remove_after(1)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000001"]


def test_the_last_few_and_the_best_are_kept(tmp_path: Path) -> None:
    store = make_store(tmp_path, keep_last=2)
    for step in (10, 20, 30, 40):
        save(store, step)
    # a restore takes one of the last two, so group files older than 30 are not needed for the best
    assert store.prune(best=10) == 30
    assert store.steps() == [10, 30, 40]
    assert store.prune(best=40) == 30
    assert store.steps() == [30, 40]


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    save(store, 5)
    store.save(5, {"step": 5, "note": "again"}, lambda folder: None)
    assert store.load_newest() == (5, {"step": 5, "note": "again"}, [])


@pytest.mark.parametrize("num_renames", [0, 1])
def test_a_kill_while_a_step_is_saved_again_leaves_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_renames: int
) -> None:
    class Killed(BaseException):
        """Nothing that would still be done happens."""

    store = make_store(tmp_path)
    save(store, 5)
    rename, done = Path.rename, []

    def rename_or_die(path: Path, target: Path) -> Path:
        if len(done) == num_renames:
            raise Killed
        done.append(target)
        return rename(path, target)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Path, "rename", rename_or_die)
        store.save(5, {"step": 5, "note": "again"}, lambda folder: None)
    finish_replacements(tmp_path / "checkpoints")
    assert store.load_newest() == (5, {"step": 5}, [])


def test_newer_checkpoints_are_removed_where_the_run_goes_on_from_an_older_one(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    for step in (1, 2, 3):
        save(store, step)
    store.remove_after(1)
    assert store.steps() == [1]
