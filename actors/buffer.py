"""Finished groups between rollout and learner: files in a folder, and a ledger of what became of each.

A group is a file that a rollout actor renamed into the folder; its record (a few hundred bytes) travels. The ledger is
written with each checkpoint, so that what a step consumed is committed exactly when the checkpoint contains the step.

Promises (each a test in tests/unit/actors/test_buffer.py):
    - `ready` lists groups in the order of their tasks, whatever the order in which they finished.
    - A group is handed out at most `max_uses` times on the restored line, uncommitted uses included.
    - After `restore`, uses since the checkpoint are undone and their groups are ready again; files that finished
      after the checkpoint are found, of each task the one of the latest incarnation; half-written ones are removed.
    - A file that is no group of this run's tasks is left alone; one of a task that is done with is removed.
    - A dropped group is never handed out, and the ledger says why.
    - A file is deleted only when its group is done with and the oldest kept checkpoint contains that.
"""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from segue.actors.group_record import GroupRecord, make_record, record_from_json, record_to_json
from segue.rollout.trajectory_file import SUFFIX, TrajectoryFileError, file_name, load_group


class DropReason(Enum):
    """Why a finished group never trained (again)."""

    stale = "stale"
    """Every token is older than the bound, or one is and `on_exceed` says drop."""
    lost_version = "lost_version"
    """Every token was sampled by steps that a restore undid."""
    damaged = "damaged"
    """The file is missing, cut short or of another digest."""
    empty = "empty"
    """No member has a token to train: all ended in infrastructure failures."""
    given_up = "given_up"
    """There is none: actors were lost over its task again and again, the last one with nothing beside it."""
    superseded = "superseded"
    """A restore found it beside another group of its task, which trains instead."""


@dataclass(slots=True, kw_only=True)
class _Entry:
    record: GroupRecord
    uses: list[int] = field(default_factory=list)
    """Steps that trained on it."""
    dropped: DropReason | None = None
    dropped_at: int = 0

    def last_step(self) -> int:
        return self.dropped_at if self.dropped is not None else max(self.uses)


@dataclass(slots=True, kw_only=True)
class Findings:
    """Files that a restore could not take up, by name."""

    damaged: dict[str, int | None]
    """With the number of the task that the ledger has for it, None where it has none."""
    superseded: list[str] = field(default_factory=list)
    """Removed, since their tasks have another group."""


class Buffer:
    """Holds finished groups for the learner; the module's docstring states what it promises."""

    def __init__(self, folder: Path, *, max_uses: int) -> None:
        self._folder = folder
        self._max_uses = max_uses
        self._entries: dict[str, _Entry] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, record: GroupRecord) -> None:
        """A group's file is in the folder."""
        known = self._entries.get(record.group_id)
        # a damaged one's task may be played again under its name, and a run go back to when it was whole
        assert known is None or known.dropped is DropReason.damaged, f"group {record.group_id} finished twice"
        self._entries[record.group_id] = _Entry(record=record)

    def ready(self) -> list[GroupRecord]:
        """Groups that can still train, in the order of their tasks."""
        entries = [entry for entry in self._entries.values() if self._is_ready(entry)]
        return [entry.record for entry in sorted(entries, key=lambda entry: entry.record.number)]

    def take(self, records: Iterable[GroupRecord], *, step: int) -> None:
        """Hand ready groups out to the learner step that turns `step - 1` into `step`."""
        for record in records:
            entry = self._entries[record.group_id]
            assert self._is_ready(entry), f"group {record.group_id} is not ready"
            entry.uses.append(step)

    def give_back(self, records: Iterable[GroupRecord], *, step: int) -> None:
        """The step that groups were handed out to was not taken."""
        for record in records:
            self._entries[record.group_id].uses.remove(step)

    def find(self, group_id: str, number: int) -> GroupRecord | None:
        """The record of a group whose file stands whole though nobody told of it; None where there is none."""
        path = self._folder / file_name(group_id)
        try:
            return _read_record(path, number) if path.is_file() else None
        except TrajectoryFileError:
            return None

    def drop(self, group_id: str, reason: DropReason, *, step: int) -> None:
        """Never hand the group out again."""
        entry = self._entries[group_id]
        entry.dropped = reason
        entry.dropped_at = step

    def discard(self, group_id: str) -> None:
        """Forget a group whose file is damaged: its task's next group has its name."""
        entry = self._entries.pop(group_id)
        (self._folder / entry.record.file).unlink(missing_ok=True)

    def numbers(self) -> list[int]:
        """Numbers of the tasks whose groups are ready or have trained."""
        return [entry.record.number for entry in self._entries.values() if entry.dropped is None]

    def uses(self, group_id: str) -> tuple[int, ...]:
        """Steps that trained on a group."""
        return tuple(self._entries[group_id].uses)

    def state(self) -> dict[str, Any]:
        """The ledger as JSON values; written with a checkpoint it commits every use so far."""
        return {
            "entries": [
                {
                    "record": record_to_json(entry.record),
                    "uses": list(entry.uses),
                    "dropped": None if entry.dropped is None else entry.dropped.value,
                    "dropped_at": entry.dropped_at,
                }
                for entry in self._entries.values()
            ]
        }

    def restore(
        self, state: dict[str, Any], number_of: Callable[[str], int | None], is_open: Callable[[int], bool]
    ) -> Findings:
        """Return to a checkpoint's ledger and take up files that finished since.

        Args:
            state: of `state()`; empty for the start of a run.
            number_of: task id to its number in the stream; None for an id whose files are left alone: of no task, or of
                one that is played still.
            is_open: whether a task's group was still to come when the checkpoint was made.
        """
        self._entries = {}
        for item in state.get("entries", ()):
            record = record_from_json(item["record"])
            self._entries[record.group_id] = _Entry(
                record=record,
                uses=list(item["uses"]),
                dropped=None if item["dropped"] is None else DropReason(item["dropped"]),
                dropped_at=item["dropped_at"],
            )
        self._delete_half_written(number_of)
        damaged = self._drop_damaged()
        lost = set(damaged.values())
        findings = Findings(damaged=dict(damaged))
        self._take_up_new(number_of, lambda number: is_open(number) or number in lost, findings)
        return findings

    def collect(self, oldest_kept_step: int) -> None:
        """Delete files whose group is done with, where the oldest kept checkpoint contains that."""
        for group_id, entry in list(self._entries.items()):
            if not self._is_ready(entry) and entry.last_step() <= oldest_kept_step:
                (self._folder / entry.record.file).unlink(missing_ok=True)
                del self._entries[group_id]

    def _is_ready(self, entry: _Entry) -> bool:
        return entry.dropped is None and len(entry.uses) < self._max_uses

    def _delete_half_written(self, number_of: Callable[[str], int | None]) -> None:
        for partial in self._folder.glob(f".*{SUFFIX}.*.tmp"):
            group_id = partial.name[1:].partition(SUFFIX)[0]
            if number_of(group_id.rpartition(".")[0]) is not None:
                # one whose writer was called off may be gone by itself
                partial.unlink(missing_ok=True)

    def _drop_damaged(self) -> dict[str, int]:
        damaged: dict[str, int] = {}
        for entry in self._entries.values():
            if self._is_ready(entry):
                path = self._folder / entry.record.file
                try:
                    load_group(path, digest=entry.record.digest)
                except TrajectoryFileError:
                    entry.dropped = DropReason.damaged
                    damaged[path.name] = entry.record.number
        return damaged

    def _take_up_new(
        self, number_of: Callable[[str], int | None], is_open: Callable[[int], bool], findings: Findings
    ) -> None:
        known = set(self.numbers())
        for path, task_id in self._new_files():
            number = number_of(task_id)
            if number is None:
                continue
            if number in known or not is_open(number):
                # else it would train as well, once the ledger has forgotten the other
                path.unlink()
                findings.superseded.append(path.name)
                continue
            try:
                record = _read_record(path, number)
            except TrajectoryFileError:
                path.unlink()
                findings.damaged[path.name] = None
                continue
            known.add(number)
            self.add(record)

    def _new_files(self) -> list[tuple[Path, str]]:
        """Files that the ledger does not have and whose name is a group's, latest incarnations first, and task ids."""
        found: list[tuple[int, Path, str]] = []
        for path in self._folder.glob("*" + SUFFIX):
            group_id = path.stem
            task_id, _, incarnation = group_id.rpartition(".")
            if group_id not in self._entries and incarnation.isdecimal() and path.is_file():
                found.append((int(incarnation), path, task_id))
        return [(path, task_id) for _, path, task_id in sorted(found, reverse=True)]


def _read_record(path: Path, number: int) -> GroupRecord:
    """The record of a file that alone tells its digest: what was recorded of it went with a process."""
    group = load_group(path)
    if group.group_id != path.stem:
        # another's under this name: of its task there would be two
        raise TrajectoryFileError(path, f"must hold group {path.stem}, got {group.group_id}")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return make_record(group, number=number, digest=digest, rollout_s=0.0)
