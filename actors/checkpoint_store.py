"""Checkpoints of a run: folders that appear whole, with a manifest of digests; the last few and the best are kept.

checkpoints/step-00000025/
    manifest.json     file name to size and SHA-256, of every other file
    controller.json   step, task cursor, ledger of the buffer, lineage, best score
    learner/          each rank's weights and optimiser state
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from segue.actors.replacement import replace_folder
from segue.actors.run_folder import write_json

CONTROLLER_NAME = "controller.json"
LEARNER_NAME = "learner"
_MANIFEST_NAME = "manifest.json"
_PREFIX = "step-"
_PARTIAL_PREFIX = ".partial-"


class CheckpointStore:
    """Saves, finds and prunes the checkpoints of one run."""

    def __init__(self, folder: Path, *, keep_last: int) -> None:
        self._folder = folder
        self._keep_last = keep_last
        folder.mkdir(parents=True, exist_ok=True)

    def path(self, step: int) -> Path:
        """Folder of a step's checkpoint."""
        return self._folder / f"{_PREFIX}{step:08d}"

    def steps(self) -> list[int]:
        """Steps that have a checkpoint, oldest first."""
        return sorted(int(path.name.removeprefix(_PREFIX)) for path in self._folder.glob(_PREFIX + "*"))

    def save(self, step: int, controller_state: dict[str, Any], write_learner: Callable[[Path], None]) -> None:
        """Write a checkpoint; it appears whole or not at all, and until then an earlier one of the step stays.

        Args:
            write_learner: called once with an empty folder for the learner ranks' files.
        """
        partial = self._folder / f"{_PARTIAL_PREFIX}{step:08d}"
        shutil.rmtree(partial, ignore_errors=True)
        (partial / LEARNER_NAME).mkdir(parents=True)
        write_learner(partial / LEARNER_NAME)
        write_json(partial / CONTROLLER_NAME, controller_state)
        write_json(partial / _MANIFEST_NAME, _digests(partial))
        replace_folder(partial, self.path(step))

    def load_newest(self) -> tuple[int, dict[str, Any], list[str]]:
        """The newest whole checkpoint.

        Returns:
            Its step, the controller's state, and what is wrong with each newer one; step 0 and an empty state
            where there is none.
        """
        faults: list[str] = []
        for step in reversed(self.steps()):
            fault = self.fault(step)
            if fault is None:
                return step, json.loads((self.path(step) / CONTROLLER_NAME).read_text()), faults
            faults.append(fault)
        return 0, {}, faults

    def prune(self, *, best: int | None) -> int:
        """Delete all but the last `keep_last` and the best.

        Returns:
            The oldest of the last `keep_last`: group files stay for these.
        """
        steps = self.steps()
        kept = set(steps[-self._keep_last :])
        if best is not None and best in steps:
            kept.add(best)
        for step in steps:
            if step not in kept:
                shutil.rmtree(self.path(step))
        # the best may be far back and holds no group files: a restore that falls back to it, because the newer ones
        # are damaged, has the tasks of the groups that are gone played again
        return min(steps[-self._keep_last :], default=0)

    def remove_after(self, step: int) -> None:
        """Delete checkpoints that are newer, and half-written ones: the run goes on from `step`."""
        for newer in [path for path in self._folder.glob(_PARTIAL_PREFIX + "*")]:
            shutil.rmtree(newer)
        for other in self.steps():
            if other > step:
                shutil.rmtree(self.path(other))

    def fault(self, step: int) -> str | None:
        """What is wrong with a step's checkpoint, or None."""
        folder = self.path(step)
        try:
            wanted = json.loads((folder / _MANIFEST_NAME).read_text())
        except (OSError, json.JSONDecodeError) as error:
            return f"{folder.name}: no readable manifest ({type(error).__name__})"
        found = _digests(folder)
        wrong = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
        return f"{folder.name}: {', '.join(wrong)} missing, foreign or damaged" if wrong else None


def _digests(folder: Path) -> dict[str, dict[str, Any]]:
    entries: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != _MANIFEST_NAME:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                os.fsync(file.fileno())
            entries[str(path.relative_to(folder))] = {"size_bytes": path.stat().st_size, "sha256": digest}
    return entries
