"""What a soak sees of a run folder while the run is at work: group files and checkpoints, before they are deleted."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from soak_faults import Injected

GROUPS, CHECKPOINTS, METRICS, SUMMARY, LAUNCHES = "groups", "checkpoints", "metrics.jsonl", "summary.json", "run.json"
SUFFIX = ".safetensors"
_NUM_NEWEST = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What a checkpoint says."""

    time: float
    """When it was written, `time.time()`."""
    step: int
    state: dict[str, Any]
    """Of its `controller.json`."""

    @property
    def entries(self) -> list[dict[str, Any]]:
        """The buffer's ledger."""
        return self.state["buffer"]["entries"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """The command ended."""

    time: float
    code: int
    reason: str = ""
    """What the command said last."""


@dataclass(slots=True, kw_only=True)
class Sightings:
    """Everything that does not stand in the run folder at the end."""

    groups: set[str] = field(default_factory=set)
    """Ids of groups whose file was seen."""
    checkpoints: list[Checkpoint] = field(default_factory=list)
    injected: list[Injected] = field(default_factory=list)
    exits: list[Exit] = field(default_factory=list)
    left_behind: list[str] = field(default_factory=list)
    """Processes that outlived their launch."""


class Watcher:
    """Looks into a run folder again and again."""

    def __init__(self, folder: Path, sightings: Sightings) -> None:
        self._folder = folder
        self._sightings = sightings
        self._read: set[tuple[int, int]] = set()
        self._metrics_read = 0
        self._num_steps = 0

    def look(self) -> None:
        """Note what has appeared."""
        self._sightings.groups.update(path.stem for path in self._group_files())
        for path in sorted((self._folder / CHECKPOINTS).glob("step-*/controller.json")):
            self._read_checkpoint(path)

    def ready(self) -> list[Path]:
        """Files of the newest groups that no checkpoint says have trained or were dropped: most have not yet."""
        done = {
            entry["record"]["group_id"]
            for checkpoint in self._sightings.checkpoints[-1:]
            for entry in checkpoint.entries
            if entry["uses"] or entry["dropped"] is not None
        }
        return [path for path in sorted(self._group_files()) if path.stem not in done][-_NUM_NEWEST:]

    def count_steps(self) -> int:
        """Steps recorded so far, the undone ones included."""
        path = self._folder / METRICS
        if path.is_file():
            with path.open("rb") as file:
                file.seek(self._metrics_read)
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._metrics_read += len(whole)
            self._num_steps += whole.count(b'"kind": "step"')
        return self._num_steps

    def num_launches(self) -> int:
        """Launches that the folder knows of."""
        return len(read_json(self._folder / LAUNCHES, list))

    def has_told_end(self) -> bool:
        """Whether the last launch that the folder knows of has written its summary."""
        return len(read_json(self._folder / SUMMARY, dict).get("launches", ())) == self.num_launches()

    def _group_files(self) -> list[Path]:
        return list((self._folder / GROUPS).glob(f"[!.]*{SUFFIX}"))

    def _read_checkpoint(self, path: Path) -> None:
        try:
            status = path.stat()
            # one of the same step may be written again
            key = (status.st_ino, status.st_mtime_ns)
            if key in self._read:
                return
            state = json.loads(path.read_text())
        except (FileNotFoundError, ValueError):
            # pruned, or replaced, under our eyes
            return
        self._read.add(key)
        self._sightings.checkpoints.append(Checkpoint(time=status.st_mtime, step=state["step"], state=state))


def read_json(path: Path, otherwise: Callable[[], Any]) -> Any:
    """A JSON file, or an empty value where there is none that is whole."""
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return otherwise()


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Whole lines of `metrics.jsonl`; one that was cut short is left out."""
    lines = []
    for text in path.read_bytes().split(b"\n"):
        try:
            lines.append(json.loads(text))
        except ValueError:
            continue
    return lines
