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
