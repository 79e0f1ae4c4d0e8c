"""The run folder: one process at a time, one command, files that appear whole."""

import json
import shutil
from pathlib import Path

import pytest

from segue.actors.errors import RunError
from segue.actors.run_folder import RunFolder, new_folder, write_json
from segue.conf.errors import ConfigError
from segue.conf.load import load_config, load_stored_config
from segue.conf.schema import SegueConfig

LAUNCH = {"command": "train", "restored_steps": [0]}


def test_a_folder_stores_the_configuration_and_takes_one_process_at_a_time(tmp_path: Path) -> None:
    config = load_config(["train.steps=3"])
    first, second = RunFolder(tmp_path / "run"), RunFolder(tmp_path / "run")
    first.open("train")
    first.begin(config, LAUNCH)
    with pytest.raises(RunError, match="got another process at work in it"):
        second.open("train")
    first.close()
    second.open("train")
    assert load_stored_config(tmp_path / "run") == config
    second.close()


def test_a_folder_that_was_deleted_can_be_closed(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.open("train")
    folder.begin(load_config([]), LAUNCH)
    shutil.rmtree(folder.path)
    folder.close()
    assert not folder.path.exists()


def test_a_folder_of_another_command_is_refused(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.begin(SegueConfig(), {**LAUNCH, "command": "pretrain"})
    with pytest.raises(ConfigError, match=r"run\.dir must hold a run of segue train, got one of segue pretrain"):
        folder.open("train")
    folder.close()


@pytest.mark.parametrize("harm", ["gone", "folder"])
@pytest.mark.parametrize("name", ["config.yaml", "run.json"])
def test_a_run_with_results_goes_on_with_what_they_were_made_with_or_not_at_all(
    tmp_path: Path, name: str, harm: str
) -> None:
    folder = RunFolder(tmp_path)
    folder.begin(SegueConfig(), LAUNCH)
    (folder.checkpoints / "step-00000001").mkdir()
    (tmp_path / name).unlink()
    if harm == "folder":
        (tmp_path / name).mkdir()
    with pytest.raises(ConfigError, match=rf"^run\.dir must hold {name} beside the results of its run, got {tmp_path}"):
        folder.open("train")
    folder.close()
    assert (folder.checkpoints / "step-00000001").is_dir()


@pytest.mark.parametrize("name", ["config.json", ".git", "checkpoints"])
def test_a_folder_of_something_else_is_refused_and_left_as_it_is(tmp_path: Path, name: str) -> None:
    (tmp_path / name / ".old-model").mkdir(parents=True)
    folder = RunFolder(tmp_path)
    with pytest.raises(
        ConfigError, match=rf"^run\.dir must be the folder of a run.* got {tmp_path}, which holds {name}$"
    ):
        folder.open("train")
    folder.close()
    assert [str(path.relative_to(tmp_path)) for path in sorted(tmp_path.rglob("*"))] == [name, f"{name}/.old-model"]


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for path in (file, file / "below"):
        with pytest.raises(ConfigError, match=rf"^run\.dir must be a folder that can be written, got {path}: "):
            RunFolder(path).open("train")


def test_a_run_that_never_began_leaves_its_folder_free_for_other_values(tmp_path: Path) -> None:
    new, given = RunFolder(tmp_path / "new"), RunFolder(tmp_path / "given")
    given.path.mkdir()
    for folder in (new, given):
        folder.open("train")
        folder.close()
    assert not new.path.exists()
    # one that was there stays, and may be taken
    given.open("pretrain")
    given.close()
    assert not given.config.exists()


def test_text_is_the_runs_when_it_begins_and_nobodys_where_it_never_does(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    # what a killed launch left is not foreign, and not taken
    folder.text_draft.mkdir(parents=True)
    folder.open("pretrain")
    assert not folder.text_draft.exists()
    folder.text_draft.mkdir()
    folder.close()
    assert not folder.text_draft.exists()
    folder.open("pretrain")
    folder.text_draft.mkdir()
    (folder.text_draft / "tokens.bin").write_text("it")
    folder.begin(SegueConfig(), {**LAUNCH, "command": "pretrain"})
    assert (folder.text / "tokens.bin").is_file() and not folder.text_draft.exists()
    folder.close()


@pytest.mark.parametrize(
    "result", [None, "checkpoints/step-00000001", "groups/train-0000000.0.safetensors", "metrics.jsonl"]
)
def test_a_run_that_ended_before_its_first_result_may_be_given_another_configuration(
    tmp_path: Path, result: str | None
) -> None:
    folder = RunFolder(tmp_path)
    folder.open("train")
    folder.begin(SegueConfig(), LAUNCH)
    # of the files that the configuration names
    folder.text.mkdir()
    if result is not None:
        (tmp_path / result).write_text("it")
    assert folder.forget_beginning() is (result is None)
    assert folder.text.exists() is (result is not None)
    assert folder.config.is_file() is (result is not None)
    folder.close()
    again = RunFolder(tmp_path)
    again.open("train")
    assert again.read_launches() == [LAUNCH]
    again.close()


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "7", "[7]", "{}", "\xff", "[" * 100_000),
        '[{"command": "train"}]',
        '[{"command": 5, "restored_steps": [0]}]',
        '[{"command": "train", "restored_steps": 3}]',
        '[{"command": "train", "restored_steps": ["0"]}]',
        '[{"command": "train", "restored_steps": [1e300]}]',
        '[{"command": "train", "restored_steps": [-1]}]',
    ],
)
def test_a_damaged_list_of_launches_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_bytes(text.encode("latin-1"))
    folder = RunFolder(tmp_path)
    with pytest.raises(ConfigError, match=rf"^{tmp_path}/run\.json must list the run's launches, got a damaged file"):
        folder.open("train")
    folder.close()


@pytest.mark.parametrize("text", ["", "[7]", '{"launches": 3}', '{"launches": null}', "[" * 100_000, "\xff"])
def test_a_summary_that_tells_nothing_is_one_of_a_killed_run(tmp_path: Path, text: str) -> None:
    folder = RunFolder(tmp_path)
    folder.begin(SegueConfig(), LAUNCH)
    write_json(folder.summary, {"launches": [LAUNCH]})
    assert not folder.was_killed()
    folder.summary.write_bytes(text.encode("latin-1"))
    assert folder.was_killed()
    assert not folder.is_finished(5, 5)


def test_launches_are_kept_in_order(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.read_launches() == []
    folder.begin(SegueConfig(), LAUNCH)
    folder.begin(SegueConfig(), {**LAUNCH, "restored_steps": [5]})
    assert [launch["restored_steps"] for launch in folder.read_launches()] == [[0], [5]]


def test_a_json_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    write_json(path, {"a": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, {"a": float("inf")})
    assert json.loads(path.read_text()) == {"a": 1}


def test_new_folders_do_not_collide(tmp_path: Path) -> None:
    first = new_folder(tmp_path, "train")
    first.mkdir(parents=True)
    second = new_folder(tmp_path, "train")
    assert first.parent == second.parent == tmp_path / "runs"
    assert first != second and first.name.endswith("_train")


@pytest.mark.parametrize(
    ("status", "steps", "step", "num_steps", "is_finished"),
    [
        ("finished", 5, 5, 5, True),
        ("finished", 5, 5, 6, False),  # train.steps was raised
        ("finished", 5, 6, 6, False),  # raised, and killed in the final evaluation or the export
        ("interrupted", 5, 5, 5, False),
        ("damaged", 5, 5, 5, False),
        (None, 0, 5, 5, False),  # killed before the summary
    ],
)
def test_a_run_is_finished_where_the_summary_of_its_last_step_says_so(
    tmp_path: Path, status: str | None, steps: int, step: int, num_steps: int, is_finished: bool
) -> None:
    folder = RunFolder(tmp_path)
    if status is not None:
        write_json(folder.summary, 7 if status == "damaged" else {"status": status, "steps": steps})
    assert folder.is_finished(step, num_steps) is is_finished


def test_opening_a_folder_mends_what_a_kill_left_of_a_checkpoints_replacement(tmp_path: Path) -> None:
    old = tmp_path / "checkpoints" / ".old-step-00000005"
    old.mkdir(parents=True)
    folder = RunFolder(tmp_path)
    folder.begin(SegueConfig(), LAUNCH)
    folder.open("train")
    folder.close()
    assert [path.name for path in folder.checkpoints.iterdir()] == ["step-00000005"]


def test_a_beginning_that_a_full_disk_ends_leaves_a_folder_of_this_run(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.open("train")
    # a file where a folder has to be
    folder.groups.write_text("")
    with pytest.raises(FileExistsError):
        folder.begin(SegueConfig(), LAUNCH)
    assert folder.forget_beginning()
    folder.close()
    folder.groups.unlink()
    again = RunFolder(tmp_path / "run")
    again.open("train")
    again.begin(SegueConfig(), LAUNCH)
    assert len(again.read_launches()) == 2
    again.close()
