"""Checkpoints appear whole, are found newest first, and are pruned to the last few and the best."""

import hashlib
import json
import shutil
from dataclasses import replace
from functools import reduce
from pathlib import Path

import pytest
from actor_cases import make_group, write_group

from segue.actors.buffer import Buffer
from segue.actors.checkpoint_store import LEARNER_NAME, CheckpointStore
from segue.actors.errors import RunError
from segue.actors.replacement import finish_replacements
from segue.conf.load import config_to_yaml, load_config


def make_store(tmp_path: Path, keep_last: int = 2) -> CheckpointStore:
    return CheckpointStore(tmp_path / "checkpoints", keep_last=keep_last)


def write_weights(folder: Path) -> None:
    (folder / "rank-0.bin").write_bytes(b"weights")


def save(store: CheckpointStore, step: int) -> None:
    store.save(step, {"step": step}, lambda folder: (folder / "rank-0.bin").write_bytes(b"weights %d" % step) and None)


@pytest.mark.parametrize(
    "odd", ["\udcff", reduce(lambda inner, _: [inner], range(250), [])], ids=["half a pair", "deep"]
)
def test_what_an_environment_tells_of_an_episode_may_be_anything_that_json_holds(tmp_path: Path, odd: object) -> None:
    store = make_store(tmp_path)
    buffer = Buffer(tmp_path, max_uses=1)
    record = write_group(tmp_path, make_group(0))
    episode = replace(record.episodes[0], info={"cause": odd})
    buffer.add(replace(record, episodes=(episode, *record.episodes[1:])))
    store.save(1, {"step": 1, "buffer": buffer.state()}, write_weights)
    step, state, damaged = store.load_newest()
    assert (step, damaged) == (1, [])
    assert state["buffer"]["entries"][0]["record"]["episodes"][0]["info"] == {"cause": odd}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[]", "Input should be an object"),
        ("null", "Input should be an object"),
        ("{", "Invalid JSON: EOF while parsing an object at line 1 column 1"),
        ("\xff", "Invalid JSON: expected value at line 1 column 1"),
        ("[" * 100_000, "Invalid JSON: recursion limit exceeded at line 1 column 202"),
        ('{"step": "2"}', "step: Input should be a valid integer"),
        ('{"tasks": []}', "tasks: Input should be an object"),
        ('{"tasks": {"unfinished": [3, null]}}', "tasks.unfinished.1: Input should be a valid integer"),
        ('{"best": [0.5]}', "best.1: Field required"),
        ('{"totals": {"wall_s": {}}}', "totals.wall_s: Input should be a valid number"),
        ('{"totals": {"outcomes": {"success": 1.5}}}', "totals.outcomes.success: Input should be a valid integer"),
        ('{"buffer": {"entries": [{"uses": [1]}]}}', "buffer.entries.0.record: Field required"),
        ('{"stages": {"regimes": [3]}}', "stages.regimes.0: Input should be an object"),
        ('{"more": 1}', "more: Unexpected keyword argument"),
    ],
)
def test_a_controllers_state_that_a_manifest_names_as_it_is_must_be_one(tmp_path: Path, text: str, reason: str) -> None:
    store = make_store(tmp_path)
    save(store, 1)
    save(store, 2)
    path, manifest = (store.path(2) / name for name in ("controller.json", "manifest.json"))
    data = text.encode("latin-1")
    path.write_bytes(data)
    entries = json.loads(manifest.read_text())
    entries[path.name] = {"size_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    manifest.write_text(json.dumps(entries))
    fault = f"step-00000002: controller.json has another form, though the manifest names it so ({reason})"
    assert store.load_newest() == (1, {"step": 1}, [fault])


def test_the_newest_whole_checkpoint_is_found(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    assert store.load_newest() == (0, {}, [])
    save(store, 3)
    save(store, 12)
    assert store.load_newest() == (12, {"step": 12}, [])
    assert (store.path(12) / LEARNER_NAME / "rank-0.bin").read_bytes() == b"weights 12"


@pytest.mark.parametrize(
    ("harm", "fault"),
    [
        ("change", "learner/rank-0.bin missing or damaged"),
        ("delete", "learner/rank-0.bin missing or damaged"),
        ("no manifest", "no readable manifest (FileNotFoundError)"),
        ("[]", "no readable manifest (no table of files)"),
        ("{}", "no readable manifest (no table of files)"),
        ("{", "no readable manifest (JSONDecodeError)"),
        ("\xff", "no readable manifest (UnicodeDecodeError)"),
        ("[" * 100_000, "no readable manifest (RecursionError)"),
        ('{"controller.json": null}', "controller.json missing or damaged"),
        ("no learner", "no readable manifest (no file of the learner)"),
        ('{"controller.json": {}, "a\\u0000b": {}}', "a\0b, controller.json missing or damaged"),
        ('{"controller.json": {}, "%s": {}}' % ("x" * 300), f"controller.json, {'x' * 300} missing or damaged"),
    ],
)
def test_a_damaged_checkpoint_is_named_set_aside_and_the_one_before_is_taken(
    tmp_path: Path, harm: str, fault: str
) -> None:
    store = make_store(tmp_path)
    save(store, 1)
    save(store, 2)
    learner = store.path(2) / LEARNER_NAME
    if harm == "change":
        (learner / "rank-0.bin").write_bytes(b"weights X")
    elif harm == "delete":
        (learner / "rank-0.bin").unlink()
    elif harm == "no learner":
        manifest = store.path(2) / "manifest.json"
        entries = json.loads(manifest.read_text())
        manifest.write_text(json.dumps({"controller.json": entries["controller.json"]}))
    elif harm == "no manifest":
        (store.path(2) / "manifest.json").unlink()
    else:
        (store.path(2) / "manifest.json").write_bytes(harm.encode("latin-1"))
    assert store.load_newest() == (1, {"step": 1}, [f"step-00000002: {fault}"])
    left = sorted(path.name for path in store.path(2).rglob("*"))
    store.set_aside_after(1)
    assert store.steps() == [1]
    # nothing of it is deleted: a person may mend it
    assert sorted(path.name for path in (tmp_path / "checkpoints" / "damaged-step-00000002").rglob("*")) == left
    save(store, 2)
    store.set_aside_after(1)
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["damaged-step-00000002", "damaged-step-00000002-2", "step-00000001"]


def test_a_run_whose_checkpoints_are_all_damaged_does_not_begin_again(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    for step in (1, 2):
        save(store, step)
        (store.path(step) / LEARNER_NAME / "rank-0.bin").unlink()
    message = r"must be whole, got step-00000002: learner/rank-0\.bin missing or damaged; step-00000001: .*step 0$"
    with pytest.raises(RunError, match=message):
        store.load_newest()
    assert store.steps() == [1, 2]


def test_what_the_manifest_does_not_name_and_folders_of_other_names_are_no_damage(tmp_path: Path) -> None:
    store = make_store(tmp_path, keep_last=1)
    save(store, 5)
    (store.path(5) / ".DS_Store").write_bytes(b"foreign")
    foreign = [tmp_path / "checkpoints" / name for name in ("step-5-backup", "step-", "step-7", "notes")]
    for path in foreign:
        path.mkdir()
    (tmp_path / "checkpoints" / "step-00000009").write_text("a file")
    assert store.load_newest() == (5, {"step": 5}, [])
    store.set_aside_after(5)
    assert store.prune(best=None) == 5
    assert all(path.is_dir() for path in foreign)


def test_a_checkpoint_that_was_not_finished_is_no_checkpoint(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    save(store, 1)

    def fail(folder: Path) -> None:
        (folder / "rank-0.bin").write_bytes(b"half")
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        store.save(2, {"step": 2}, fail)
    # nor does its part take the room that was too little
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000001"]


def test_what_is_pruned_is_gone_before_its_files_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make_store(tmp_path, keep_last=1)
    save(store, 1)
    save(store, 2)
    seen = []
    monkeypatch.setattr(shutil, "rmtree", lambda folder: seen.append((folder.exists(), store.steps())))
    store.prune(best=None)
    assert seen == [(True, [2])]
    monkeypatch.undo()
    # a kill in between leaves nothing behind
    store.set_aside_after(2)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == [store.path(2).name]


def test_a_run_folder_that_was_deleted_does_not_come_back(tmp_path: Path) -> None:
    store = make_store(tmp_path / "run")
    with pytest.raises(FileNotFoundError):
        save(store, 1)
    assert not (tmp_path / "run").exists()


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
    store.save(5, {"step": 5, "evaluated_step": 5}, write_weights)
    assert store.load_newest() == (5, {"step": 5, "evaluated_step": 5}, [])


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
        store.save(5, {"step": 5, "evaluated_step": 5}, write_weights)
    finish_replacements(tmp_path / "checkpoints")
    assert store.load_newest() == (5, {"step": 5}, [])


def test_a_half_written_checkpoint_of_a_killed_run_is_deleted(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    save(store, 1)
    (tmp_path / "checkpoints" / ".partial-00000002").mkdir()
    store.set_aside_after(1)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000001"]


def store_config(folder: Path, *overrides: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text(config_to_yaml(load_config(overrides)))


def test_a_whole_checkpoint_of_another_run_is_named_and_set_aside(tmp_path: Path) -> None:
    other, own = tmp_path / "other", tmp_path / "own"
    store_config(other, "seed=1", "model.hidden_size=64", "train.steps=9", "learner.optimizer.lr=1.0")
    store_config(own, "train.steps=5")
    save(make_store(other), 7)
    store = make_store(own)
    save(store, 3)
    assert (store.path(3) / "config.yaml").read_bytes() == (own / "config.yaml").read_bytes()
    shutil.copytree(make_store(other).path(7), store.path(7))
    fault = "step-00000007: of another run (seed: 1 there, 0 here; model.hidden_size: 64 there, 96 here)"
    assert store.load_newest() == (3, {"step": 3}, [fault])
    store.set_aside_after(3)
    names = sorted(path.name for path in (own / "checkpoints").iterdir())
    assert names == ["damaged-step-00000007", "step-00000003"]


def test_a_checkpoint_of_the_run_before_its_steps_were_raised_is_its_own(tmp_path: Path) -> None:
    store_config(tmp_path, "train.steps=5")
    store = make_store(tmp_path)
    save(store, 5)
    store_config(tmp_path, "train.steps=9", "cluster.threads=2")
    assert store.load_newest() == (5, {"step": 5}, [])
