"""Checkpoints of a run: folders that appear whole, with a manifest of digests; the last few and the best are kept.

checkpoints/step-00000025/
    config.yaml       the run's configuration: a checkpoint of another run is told by it
    manifest.json     file name to size and SHA-256, of every other file; what it does not name is nobody's
    controller.json   step, task cursor, ledger of the buffer, lineage, best score
    learner/          each rank's weights and optimiser state
checkpoints/damaged-step-00000050/
                      one that failed its check, set aside; to be looked at or deleted by hand
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from segue.actors.controller_state import misfit
from segue.actors.errors import RunError
from segue.actors.faults import Fault
from segue.actors.replacement import replace_folder
from segue.actors.run_folder import write_json
from segue.conf.errors import ConfigError
from segue.conf.flatten import flatten
from segue.conf.load import STORED_NAME, load_stored_config

CONTROLLER_NAME = "controller.json"
LEARNER_NAME = "learner"
_MANIFEST_NAME = "manifest.json"
_NAME = re.compile(r"step-([0-9]{8,})")
_PARTIAL_PREFIX = ".partial-"
_DAMAGED_PREFIX = "damaged-"
# keys, or whole sections, that tell one run from another: weights and tasks of the one mean nothing to the other
_IDENTITY = ("seed", "model", "tokenizer", "env.id")


class CheckpointStore:
    """Saves, finds and prunes the checkpoints of one run."""

    def __init__(self, folder: Path, *, keep_last: int) -> None:
        self._folder = folder
        self._config = folder.parent / STORED_NAME
        self._keep_last = keep_last

    def path(self, step: int) -> Path:
        """Folder of a step's checkpoint."""
        return self._folder / f"step-{step:08d}"

    def steps(self) -> list[int]:
        """Steps that have a checkpoint, oldest first; folders of other names are nobody's."""
        names = (_NAME.fullmatch(path.name) for path in self._folder.glob("step-*") if path.is_dir())
        return sorted(int(name.group(1)) for name in names if name is not None)

    def save(self, step: int, controller_state: dict[str, Any], write_learner: Callable[[Path], None]) -> None:
        """Write a checkpoint; it appears whole or not at all, and until then an earlier one of the step stays.

        Args:
            write_learner: called once with an empty folder for the learner ranks' files.
        """
        partial = self._partial(step)
        shutil.rmtree(partial, ignore_errors=True)
        try:
            # a run folder that was deleted is not to come back as half of one
            self._folder.mkdir(exist_ok=True)
            partial.mkdir()
            (partial / LEARNER_NAME).mkdir()
            write_learner(partial / LEARNER_NAME)
            write_json(partial / CONTROLLER_NAME, controller_state)
            if self._config.is_file():
                shutil.copy(self._config, partial / STORED_NAME)
            write_json(partial / _MANIFEST_NAME, _digests(partial))
        except Exception:
            # the disk may be full
            shutil.rmtree(partial, ignore_errors=True)
            raise
        replace_folder(partial, self.path(step))

    def load_newest(self) -> tuple[int, dict[str, Any], list[str]]:
        """The newest whole checkpoint.

        Returns:
            Its step, the controller's state, and what is wrong with each newer one; step 0 and an empty state
            where there is none.
        Raises:
            RunError: there are checkpoints and none is whole.
        """
        faults: list[str] = []
        for step in reversed(self.steps()):
            fault = self.fault(step)
            if fault is None:
                return step, json.loads((self.path(step) / CONTROLLER_NAME).read_text()), faults
            faults.append(fault)
        if faults:
            raise RunError(
                f"one checkpoint in {self._folder} must be whole, got {'; '.join(faults)}; put back what is missing, "
                "or move these folders away to begin at step 0"
            )
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
                # gone at once for whoever reads it
                doomed = self._partial(step)
                self.path(step).rename(doomed)
                shutil.rmtree(doomed)
        # the best may be far back and holds no group files: a restore that falls back to it, because the newer ones
        # are damaged, has the tasks of the groups that are gone played again
        return min(steps[-self._keep_last :], default=0)

    def set_aside_after(self, step: int) -> None:
        """Rename checkpoints that are newer than the newest whole one, and delete half-written ones."""
        for partial in list(self._folder.glob(_PARTIAL_PREFIX + "*")):
            shutil.rmtree(partial)
        for other in self.steps():
            if other > step:
                self._set_aside(self.path(other))

    def fault(self, step: int) -> str | None:
        """What is wrong with a step's checkpoint, or None."""
        folder = self.path(step)
        try:
            wanted = json.loads((folder / _MANIFEST_NAME).read_text())
        except (OSError, ValueError, RecursionError) as error:
            return f"{folder.name}: no readable manifest ({type(error).__name__})"
        if not isinstance(wanted, dict) or CONTROLLER_NAME not in wanted:
            return f"{folder.name}: no readable manifest (no table of files)"
        wrong = sorted(name for name, entry in wanted.items() if entry is None or _entry(folder / name) != entry)
        if wrong:
            return f"{folder.name}: {', '.join(wrong)} missing or damaged"
        if not any(name.startswith(f"{LEARNER_NAME}/") for name in wanted):
            return f"{folder.name}: no readable manifest (no file of the learner)"
        fault = misfit((folder / CONTROLLER_NAME).read_bytes())
        if fault is not None:
            return f"{folder.name}: {CONTROLLER_NAME} has another form, though the manifest names it so ({fault})"
        if STORED_NAME not in wanted or not self._config.is_file():
            return None
        try:
            different = _differences(folder, self._config.parent)
        except ConfigError as error:
            return f"{folder.name}: {error}"
        return f"{folder.name}: of another run ({'; '.join(different)})" if different else None

    def _partial(self, step: int) -> Path:
        """Where a step's checkpoint lies before it is whole, and while it is deleted; `set_aside_after` clears it."""
        return self._folder / f"{_PARTIAL_PREFIX}{step:08d}"

    def _set_aside(self, path: Path) -> None:
        stem = _DAMAGED_PREFIX + path.name
        names = [stem, *(f"{stem}-{number}" for number in range(2, 1000))]
        path.rename(next(target for target in map(self._folder.joinpath, names) if not target.exists()))


def checkpoint_fault(what: str) -> Fault:
    """A checkpoint that `load_newest` passed over, and `set_aside_after` sets aside."""
    return Fault(who="checkpoint", what=what, done="set aside; an older one is taken")


def _differences(checkpoint: Path, run_folder: Path) -> list[str]:
    """What makes a checkpoint another run's."""
    there, here = (flatten(load_stored_config(folder)) for folder in (checkpoint, run_folder))
    keys = [key for key in there if any(key == name or key.startswith(f"{name}.") for name in _IDENTITY)]
    return [f"{key}: {there[key]} there, {here[key]} here" for key in keys if there[key] != here[key]]


def _digests(folder: Path) -> dict[str, dict[str, Any] | None]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): _entry(path) for path in files}


def _entry(path: Path) -> dict[str, Any] | None:
    """Size and digest of a file that is then on the disk; None where there is no file, by a name that may be none."""
    if not os.path.isfile(path):
        return None
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        os.fsync(file.fileno())
    return {"size_bytes": path.stat().st_size, "sha256": digest}
