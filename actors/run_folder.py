"""The folder of a run: what lies where in it, and who may write to it.

config.yaml      resolved configuration; composes to itself
run.json         each launch: command line, versions, hardware, commit, steps that it began at and went back to
metrics.jsonl    one JSON object a line: every metric of every step and evaluation
summary.json     before and after, costs, failures; written when the run ends, last of all
curves.png       what metrics.jsonl says, drawn
recall.png       recall by distance, where a curriculum measures it
events/          metrics.jsonl for TensorBoard, where it is among run.loggers
wandb/, mlflow/  likewise: the run's id at these loggers, and what is not sent
groups/          the buffer: one file a finished group
sessions/        journals of unfinished episodes
held_out/        what a curriculum measures itself on; made anew by each launch
text/            plain text, tokenised once
trajectories/    played evaluations: one file for each mode and rollout actor
checkpoints/     last ones and the best, and damaged ones
export/          the trained model, as another implementation reads it
"""

import json
import os
import shutil
import time
from pathlib import Path
from typing import IO, Any

from segue.actors.errors import RunError
from segue.actors.replacement import finish_replacements
from segue.actors.shared_folder import LOCK_NAME, mark_folder, take_lock
from segue.conf.errors import ConfigError
from segue.conf.load import STORED_NAME, config_to_yaml
from segue.conf.schema import SegueConfig

EXPORT_NAME = "export"
SESSIONS_NAME = "sessions"
TEXT_NAME = "text"


class RunFolder:
    """Paths of one run and the lock that keeps a second process out."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / STORED_NAME
        self.launches = path / "run.json"
        self.metrics = path / "metrics.jsonl"
        self.summary = path / "summary.json"
        self.curves = path / "curves.png"
        self.recall = path / "recall.png"
        self.events = path / "events"
        self.wandb = path / "wandb"
        self.mlflow = path / "mlflow"
        self.groups = path / "groups"
        self.sessions = path / SESSIONS_NAME
        self.held_out = path / "held_out"
        self.text = path / TEXT_NAME
        # before the run has begun
        self.text_draft = path / f".{TEXT_NAME}.tmp"
        self.trajectories = path / "trajectories"
        self.checkpoints = path / "checkpoints"
        self.export = path / EXPORT_NAME
        self._lock: IO[str] | None = None
        self._is_new = False

    def open(self, command: str) -> None:
        """Take the folder for this process: a new one, an empty one, or one that holds a run.

        Raises:
            ConfigError: it holds something else, part of a run, a run of another command, or cannot be written.
            RunError: another process is at work in it.
        """
        try:
            self._refuse_foreign()
            self._is_new = not self.path.exists()
            self.path.mkdir(parents=True, exist_ok=True)
            lock = (self.path / LOCK_NAME).open("a")
        except OSError as error:
            raise ConfigError(f"run.dir must be a folder that can be written, got {self.path}: {error}") from error
        try:
            take_lock(lock, self.path)
        except (ConfigError, RunError):
            lock.close()
            raise
        self._lock = lock
        self._refuse_incomplete()
        try:
            mark_folder(lock)
        except OSError as error:
            raise ConfigError(f"run.dir must be a folder that can be written, got {self.path}: {error}") from error
        earlier = self.read_launches()
        if earlier and earlier[0]["command"] != command:
            raise ConfigError(f"run.dir must hold a run of segue {command}, got one of segue {earlier[0]['command']}")
        for folder in (self.path, self.checkpoints):
            finish_replacements(folder)
        # of a launch that was killed: other files, or another tokenizer, may be given
        shutil.rmtree(self.text_draft, ignore_errors=True)

    def begin(self, config: SegueConfig, facts: dict[str, Any]) -> None:
        """A launch has begun: from here on the run's configuration stays, and this launch is one of its own.

        Args:
            facts: of the launch, recorded.
        """
        # first what says whose the folder is: a full disk may end this at any point
        write_json(self.launches, [*self.read_launches(), facts])
        write_atomic(self.config, config_to_yaml(config))
        for folder in (self.events, self.groups, self.trajectories, self.checkpoints):
            folder.mkdir(exist_ok=True)
        if self.text_draft.is_dir():
            shutil.rmtree(self.text, ignore_errors=True)
            self.text_draft.rename(self.text)

    def note_restore(self, step: int) -> None:
        """The present launch went back to a checkpoint's step."""
        *earlier, launch = self.read_launches()
        launch = {**launch, "restored_steps": [*launch["restored_steps"], step]}
        write_json(self.launches, [*earlier, launch])

    def forget_beginning(self) -> bool:
        """Let the configuration of a run that has nothing to go on with be given anew.

        Returns:
            Whether it is so: there is no checkpoint, no group, no journal and no metric.
        """
        if self._has_results():
            return False
        self.config.unlink(missing_ok=True)
        # other files, or another tokenizer, may be given
        shutil.rmtree(self.text, ignore_errors=True)
        return True

    def close(self) -> None:
        """Let another process take the folder; one that was made for a run that never began goes."""
        if self._lock is None:
            return
        shutil.rmtree(self.text_draft, ignore_errors=True)
        if self._is_new and self.path.is_dir() and [path.name for path in self.path.iterdir()] == [LOCK_NAME]:
            (self.path / LOCK_NAME).unlink()
            self.path.rmdir()
        self._lock.close()
        self._lock = None

    def read_launches(self) -> list[dict[str, Any]]:
        """What each launch of this run recorded, oldest first.

        Raises:
            ConfigError: the file is damaged.
        """
        if not self.launches.is_file():
            return []
        try:
            launches = json.loads(self.launches.read_text())
            if isinstance(launches, list) and all(map(_is_launch, launches)):
                return launches
        except (ValueError, RecursionError):
            pass
        raise ConfigError(f"{self.launches} must list the run's launches, got a damaged file; put a whole one back")

    def was_killed(self) -> bool:
        """True where the launch before began and wrote no summary at its end."""
        earlier = self.read_launches()
        if not earlier:
            return False
        try:
            return len(json.loads(self.summary.read_text())["launches"]) < len(earlier)
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return True

    def is_finished(self, step: int, num_steps: int) -> bool:
        """True where the run whose newest checkpoint is of `step` has all its steps and has ended well.

        The summary tells, being written last: a run that was killed in its final evaluation or its export goes on.
        """
        if step < num_steps or not self.summary.is_file():
            return False
        try:
            summary = json.loads(self.summary.read_text())
            return (summary["status"], summary["steps"]) == ("finished", step)
        except (ValueError, TypeError, KeyError, RecursionError):
            # damaged: it is written anew
            return False

    def _has_results(self) -> bool:
        folders = [folder for folder in (self.checkpoints, self.groups, self.sessions) if folder.is_dir()]
        has_metrics = self.metrics.is_file() and self.metrics.stat().st_size > 0
        return has_metrics or any(any(folder.iterdir()) for folder in folders)

    def _refuse_incomplete(self) -> None:
        """Results mean nothing without what they were made with, and are nobody's to delete."""
        lost = [path for path in (self.config, self.launches) if not path.is_file()]
        if lost and self._has_results():
            remedy = "; every checkpoint holds a copy of it" if self.config in lost else ""
            raise ConfigError(
                f"run.dir must hold {' and '.join(path.name for path in lost)} beside the results of its run, got "
                f"{self.path} without; put it back{remedy}, or start another run with run.dir=<new folder>"
            )

    def _refuse_foreign(self) -> None:
        """A run deletes and replaces files: it must not do so among those of somebody else."""
        if self.config.is_file() or self.launches.is_file() or not self.path.is_dir():
            return
        foreign = sorted(
            {path.name for path in self.path.iterdir()} - {LOCK_NAME, f".{STORED_NAME}.tmp", self.text_draft.name}
        )
        if foreign:
            raise ConfigError(
                f"run.dir must be the folder of a run, an empty or a new one, got {self.path}, which holds {foreign[0]}"
            )


def _is_launch(value: Any) -> bool:
    """True for what `begin` records of a launch, as far as anything is read from it."""
    if not isinstance(value, dict) or not isinstance(value.get("command"), str):
        return False
    steps = value.get("restored_steps")
    return isinstance(steps, list) and all(type(step) is int and step >= 0 for step in steps)


def new_folder(launch_folder: Path, command: str) -> Path:
    """A path under `runs/` that does not exist, named by date, time and command."""
    stem = f"{time.strftime('%Y-%m-%d_%H-%M-%S')}_{command}"
    names = [stem, *(f"{stem}_{i}" for i in range(2, 100))]
    return next(path for path in (launch_folder / "runs" / name for name in names) if not path.exists())


def write_json(path: Path, value: Any) -> None:
    """Write JSON, whole or not at all; NaN is refused."""
    write_atomic(path, json.dumps(value, indent=2, allow_nan=False, sort_keys=False) + "\n")


def write_atomic(path: Path, text: str) -> None:
    """Write a text file, whole or not at all."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        # the disk may be full
        temporary.unlink(missing_ok=True)
        raise
