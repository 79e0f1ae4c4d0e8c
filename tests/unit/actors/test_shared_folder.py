"""The mark of a run folder: who sees the folder that the controller sees is told from who does not.

Not covered: network file systems themselves.
"""

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from segue.actors.errors import RunError
from segue.actors.learner_actor import LearnerActor
from segue.actors.rollout_actor import RolloutActor
from segue.actors.run_folder import RunFolder
from segue.actors.shared_folder import FolderMark, read_mark, take_lock
from segue.conf.errors import ConfigError
from segue.conf.schema import SegueConfig

REFUSED = r"^run\.dir must be on a file system that every node sees, got {}, where this node has {}; give one on a "


def opened(path: Path) -> RunFolder:
    folder = RunFolder(path)
    folder.open("train")
    return folder


def mark_of(path: Path) -> FolderMark:
    mark = read_mark(path)
    assert mark is not None
    return mark


def elsewhere(mark: FolderMark, folder: Path) -> FolderMark:
    """The mark as another node would look for it, where the path is another folder; it does not wait."""
    return FolderMark(folder=folder, token=mark.token, patience_s=0.0)


def test_who_sees_the_folder_finds_its_mark(tmp_path: Path) -> None:
    folder = opened(tmp_path / "run")
    mark_of(tmp_path / "run").look()
    folder.close()


def test_who_has_no_such_folder_is_told_what_to_do(tmp_path: Path) -> None:
    folder = opened(tmp_path / "run")
    with pytest.raises(RunError, match=REFUSED.format(tmp_path / "other", "no such run folder")):
        elsewhere(mark_of(tmp_path / "run"), tmp_path / "other").look()
    folder.close()


def test_a_copy_of_the_folder_from_an_earlier_launch_is_another_one(tmp_path: Path) -> None:
    # one that was there before stays when its launch has not begun
    (tmp_path / "run").mkdir()
    opened(tmp_path / "run").close()
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    folder = opened(tmp_path / "run")
    mark = mark_of(tmp_path / "run")
    with pytest.raises(RunError, match=REFUSED.format(tmp_path / "copy", "another folder of this path")):
        elsewhere(mark, tmp_path / "copy").look()
    folder.close()


def test_a_folder_without_a_run_has_no_mark(tmp_path: Path) -> None:
    assert read_mark(tmp_path) is None


def test_a_file_system_without_locks_is_told_from_a_folder_that_is_taken(tmp_path: Path) -> None:
    # a descriptor that the system refuses to lock, as a file system without locks would any
    descriptor = os.open(tmp_path, os.O_PATH)
    with pytest.raises(ConfigError, match=r"^run\.dir must be on a file system that can lock files, got "):
        take_lock(descriptor, tmp_path)
    os.close(descriptor)


def test_actors_look_before_anything_else(tmp_path: Path) -> None:
    mark = FolderMark(folder=tmp_path, token="of another folder", patience_s=0.0)
    config = SegueConfig()
    rollout = RolloutActor(config, name="rollout-0", run_folder=tmp_path, mark=mark)
    with pytest.raises(RunError, match=r"^run\.dir must be"):
        asyncio.run(rollout.start(None))
    with pytest.raises(RunError, match=r"^run\.dir must be"):
        LearnerActor(config, rank=0, mark=mark).start(("127.0.0.1", 1), config.learner.optimizer, None)
