"""The folder of a run: what lies where in it, and who may write to it.

config.yaml      resolved configuration; composes to itself
run.json         each launch: command line, versions, hardware, commit, incarnation
metrics.jsonl    one JSON object a line: every metric of every step and evaluation
summary.json     before and after, costs, failures; written when the run ends, last of all
curves.png       what metrics.jsonl says, drawn
events/          the same for TensorBoard
groups/          the buffer: one file a finished group
trajectories/    played evaluations: one file for each mode and rollout actor
checkpoints/     last ones and the best
export/          the trained model, as another implementation reads it
"""

import fcntl
import json
import os
import time
from pathlib import Path
from typing import IO, Any

from segue.actors.errors import RunError
from segue.actors.replacement import finish_replacements
from segue.conf.errors import ConfigError
from segue.conf.load import STORED_NAME, config_to_yaml
from segue.conf.schema import SegueConfig

EXPORT_NAME = "export"


class RunFolder:
    """Paths of one run and the lock that keeps a second process out."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / STORED_NAME
        self.launches = path / "run.json"
        self.metrics = path / "metrics.jsonl"
        self.summary = path / "summary.json"
        self.curves = path / "curves.png"
        self.events = path / "events"
        self.groups = path / "groups"
        self.trajectories = path / "trajectories"
        self.checkpoints = path / "checkpoints"
        self.export = path / EXPORT_NAME
        self._lock: IO[str] | None = None

    def open(self, config: SegueConfig, command: str) -> None:
        """Take the folder for this process: create it, or take up the run that it holds.

        Raises:
            ConfigError: it holds a run of another command.
            RunError: another process is at work in it.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = (self.path / ".lock").open("a")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.close()
            raise RunError(
                f"{self.path} must be free, got another process at work in it; wait for it or end it"
            ) from error
        earlier = self.read_launches()
        if earlier and earlier[0]["command"] != command:
            raise ConfigError(f"run.dir must hold a run of segue {command}, got one of segue {earlier[0]['command']}")
        for folder in (self.events, self.groups, self.trajectories, self.checkpoints):
            folder.mkdir(exist_ok=True)
        for folder in (self.path, self.checkpoints):
            finish_replacements(folder)
        write_atomic(self.config, config_to_yaml(config))

    def close(self) -> None:
        """Let another process take the folder."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def read_launches(self) -> list[dict[str, Any]]:
        """What each launch of this run recorded, oldest first."""
        return json.loads(self.launches.read_text()) if self.launches.is_file() else []

    def is_finished(self, step: int, num_steps: int) -> bool:
        """True where the run whose newest checkpoint is of `step` has all its steps and has ended well.

        The summary tells, being written last: a run that was killed in its final evaluation or its export goes on.
        """
        if step < num_steps or not self.summary.is_file():
            return False
        summary = json.loads(self.summary.read_text())
        return (summary["status"], summary["steps"]) == ("finished", step)

    def add_launch(self, facts: dict[str, Any]) -> None:
        """Record this launch."""
        write_json(self.launches, [*self.read_launches(), facts])


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
