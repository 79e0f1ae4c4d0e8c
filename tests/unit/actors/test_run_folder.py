"""The run folder: one process at a time, one command, files that appear whole."""

import json
from pathlib import Path

import pytest

from segue.actors.errors import RunError
from segue.actors.run_folder import RunFolder, new_folder, write_json
from segue.conf.errors import ConfigError
from segue.conf.load import load_config, load_stored_config
from segue.conf.schema import SegueConfig


def test_a_folder_stores_the_configuration_and_takes_one_process_at_a_time(tmp_path: Path) -> None:
    config = load_config(["train.steps=3"])
    first, second = RunFolder(tmp_path / "run"), RunFolder(tmp_path / "run")
    first.open(config, "train")
    with pytest.raises(RunError, match="got another process at work in it"):
        second.open(config, "train")
    first.close()
    second.open(config, "train")
    assert load_stored_config(tmp_path / "run") == config
    second.close()


def test_a_folder_of_another_command_is_refused(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.add_launch({"command": "pretrain"})
    with pytest.raises(ConfigError, match=r"run\.dir must hold a run of segue train, got one of segue pretrain"):
        folder.open(SegueConfig(), "train")
    folder.close()


def test_launches_are_kept_in_order(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.read_launches() == []
    folder.add_launch({"command": "train", "restored_step": 0})
    folder.add_launch({"command": "train", "restored_step": 5})
    assert [launch["restored_step"] for launch in folder.read_launches()] == [0, 5]


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
        (None, 0, 5, 5, False),  # killed before the summary
    ],
)
def test_a_run_is_finished_where_the_summary_of_its_last_step_says_so(
    tmp_path: Path, status: str | None, steps: int, step: int, num_steps: int, is_finished: bool
) -> None:
    folder = RunFolder(tmp_path)
    if status is not None:
        write_json(folder.summary, {"status": status, "steps": steps})
    assert folder.is_finished(step, num_steps) is is_finished


def test_opening_a_folder_mends_what_a_kill_left_of_a_checkpoints_replacement(tmp_path: Path) -> None:
    old = tmp_path / "checkpoints" / ".old-step-00000005"
    old.mkdir(parents=True)
    folder = RunFolder(tmp_path)
    folder.open(load_config([]), "train")
    folder.close()
    assert [path.name for path in folder.checkpoints.iterdir()] == ["step-00000005"]
