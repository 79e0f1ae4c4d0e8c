"""Journals: what is kept of unfinished episodes, so that a kill costs an episode the turns since its last part.

    <folder>/<task id>.<place in the group>/part-000001.safetensors, part-000002.safetensors, ...

A part is written at the end of a turn, whole or not at all, and never changed. It holds what is new since the part
before, n tokens of which the turns sampled m:

    token_ids [n]                               the stream
    logprobs policy_incarnation policy_step [m] of the sampled tokens, as in `Completion`
    snapshot [b] uint8                          the environment's, where it makes them and has moved on
    header                                      turns, calls (see `EpisodeRecord`); attempt, info, seconds used, digest

The digest covers the part, the parts before it and the task. One that is missing, damaged, or written after another
beginning ends what can be read.
"""

import contextlib
import json
import logging
import shutil
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import numpy as np
from numpy.typing import NDArray

from segue.envs.episode_record import EpisodeRecord
from segue.rollout.engine.base import Completion, FinishReason
from segue.rollout.episode import PlayedTurn, SavedEpisode, TaskSpec
from segue.rollout.trajectory_file import TrajectoryFileError, opened, read_arrays, sync_folder, write_arrays

logger = logging.getLogger(__name__)

FORMAT = "segue-journal/1"

_SAMPLED = ("logprobs", "policy_incarnation", "policy_step")
_SNAPSHOT = "snapshot"


@dataclass(frozen=True, slots=True, kw_only=True)
class _End:
    """How far the parts go."""

    digest: str
    num_parts: int = 0
    num_tokens: int = 0
    num_turns: int = 0
    num_snapshot_steps: int | None = None
    """None without a snapshot."""
    num_calls: int = 0
    """Since the snapshot, or since the beginning."""

    @staticmethod
    def of(saved: SavedEpisode, *, num_parts: int, digest: str) -> "_End":
        """After the part that ends here."""
        environment = saved.environment
        return _End(
            digest=digest,
            num_parts=num_parts,
            num_tokens=len(saved.token_ids),
            num_turns=len(saved.turns),
            num_snapshot_steps=None if environment.snapshot is None else environment.num_snapshot_steps,
            num_calls=len(environment.calls),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Part:
    header: dict[str, Any]
    arrays: dict[str, NDArray[Any]]


class Journal:
    """The journal of one place in a task's group, whichever attempt plays it.

    Args:
        folder: of the run's journals; made with the first part.
        task: whose journal of another seed, or of other options, is not read.
        index: place in the group.
    Invariants:
        Wherever it is killed or damaged, what can be read is the episode at the end of one of its turns:
        tests/unit/rollout/test_journal.py.
    """

    def __init__(self, folder: Path, task: TaskSpec, index: int) -> None:
        self._folder = folder / f"{quote(task.id, safe='')}.{index}"
        self._beginning = _End(digest=_to_text([task.id, index, task.seed, task.options]))
        self._end = self._beginning

    @property
    def num_tokens(self) -> int:
        """Tokens in the parts that were read or written."""
        return self._end.num_tokens

    @property
    def has_begun(self) -> bool:
        """Whether there may be something to read."""
        return self._folder.is_dir()

    def write(self, saved: SavedEpisode) -> None:
        """Add a part: what is new since the last one that was read or written.

        Raises:
            OSError: the disk is full, or cannot be written.
        """
        end, environment = self._end, saved.environment
        turns = saved.turns[end.num_turns :]
        arrays = {name: np.concatenate([getattr(turn.completion, name) for turn in turns]) for name in _SAMPLED}
        arrays["token_ids"] = saved.token_ids[end.num_tokens :]
        num_known_calls = end.num_calls
        if environment.snapshot is not None and environment.num_snapshot_steps != end.num_snapshot_steps:
            arrays[_SNAPSHOT] = np.frombuffer(environment.snapshot, np.uint8)
            num_known_calls = 0
        header = {
            "format": FORMAT,
            "attempt": saved.attempt,
            "used_s": saved.used_s,
            "info": saved.info,
            "turns": [_turn_header(turn) for turn in turns],
            "calls": environment.calls[num_known_calls:],
            "num_snapshot_steps": environment.num_snapshot_steps,
        }
        digest = _digest(end.digest, header, arrays)
        self._make_folder()
        write_arrays(self._path(end.num_parts + 1), arrays, {**header, "digest": digest})
        self._end = _End.of(saved, num_parts=end.num_parts + 1, digest=digest)

    def load(self) -> SavedEpisode | None:
        """The episode as far as the parts go; None where nothing can be read. Parts are written from there on."""
        self._end = self._beginning
        parts = list(self._read_parts())
        if not parts:
            return None
        last = parts[-1].header
        token_ids = _join(parts, "token_ids")
        saved = SavedEpisode(
            attempt=last["attempt"],
            token_ids=token_ids,
            turns=_turns(parts, token_ids),
            info=last["info"],
            used_s=last["used_s"],
            environment=_environment(parts),
        )
        self._end = _End.of(saved, num_parts=len(parts), digest=last["digest"])
        return saved

    def delete(self) -> None:
        """Forget the episode, which begins anew."""
        shutil.rmtree(self._folder)
        self._end = self._beginning

    def _read_parts(self) -> Iterator[_Part]:
        digest, number = self._beginning.digest, 1
        while (path := self._path(number)).exists():
            try:
                with opened(path, FORMAT) as (header, file):
                    part = _Part(header=header, arrays=read_arrays(file, ""))
            except TrajectoryFileError as error:
                logger.warning("a journal ends before its part %d: %s", number, error)
                return
            content = {name: value for name, value in header.items() if name != "digest"}
            digest = _digest(digest, content, part.arrays)
            if digest != header.get("digest"):
                logger.warning("a journal ends before %s, which is damaged or follows another beginning", path)
                return
            yield part
            number += 1

    def _path(self, number: int) -> Path:
        return self._folder / f"part-{number:06d}.safetensors"

    def _make_folder(self) -> None:
        if not self.has_begun:
            # not the run's own folder, should it be deleted
            self._folder.parent.mkdir(exist_ok=True)
            self._folder.mkdir(exist_ok=True)
            for parent in (self._folder.parent, self._folder.parent.parent):
                sync_folder(parent)


def delete_journals(folder: Path, task_id: str) -> None:
    """Delete the journals of a task; to be called when its group's file stands, or when it is given up.

    Args:
        folder: of the run's journals; may be missing.
    """
    _delete(path for path, of_task in _journals(folder) if of_task == task_id)


def delete_other_journals(folder: Path, task_ids: Container[str]) -> None:
    """Delete the journals of all tasks but these; nobody may be playing one of the others.

    Args:
        folder: of the run's journals; may be missing.
    """
    _delete(path for path, of_task in _journals(folder) if of_task not in task_ids)


def _delete(journals: Iterable[Path]) -> None:
    for path in journals:
        # another process may be at the same: one that was called off, or lost, at this very point
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)


def _journals(folder: Path) -> list[tuple[Path, str]]:
    """Folders of journals, and their tasks' ids."""
    found = []
    for path in folder.iterdir() if folder.is_dir() else ():
        name, _, index = path.name.rpartition(".")
        if index.isdecimal():
            found.append((path, unquote(name)))
    return found


def _digest(before: str, header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> str:
    digest = blake2b(before.encode(), digest_size=16)
    digest.update(_to_text(header).encode())
    for name in sorted(arrays):
        digest.update(np.ascontiguousarray(arrays[name]).data)
    return digest.hexdigest()


def _to_text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _turn_header(turn: PlayedTurn) -> dict[str, Any]:
    return {
        "start": turn.start,
        "num_tokens": len(turn.completion.token_ids),
        "reward_terms": turn.reward_terms,
        "num_calls": turn.num_calls,
    }


def _turns(parts: Sequence[_Part], token_ids: NDArray[Any]) -> list[PlayedTurn]:
    sampled = {name: _join(parts, name) for name in _SAMPLED}
    turns = []
    after = 0
    for header in (header for part in parts for header in part.header["turns"]):
        start, before = header["start"], after
        after += header["num_tokens"]
        completion = Completion(
            token_ids=token_ids[start : start + header["num_tokens"]],
            # no other is followed by an observation
            finish_reason=FinishReason.stop,
            **{name: values[before:after] for name, values in sampled.items()},
        )
        turns.append(
            PlayedTurn(
                start=start,
                completion=completion,
                reward_terms=header["reward_terms"],
                num_calls=header["num_calls"],
            )
        )
    return turns


def _environment(parts: Sequence[_Part]) -> EpisodeRecord:
    snapshot: bytes | None = None
    calls: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for part in parts:
        if _SNAPSHOT in part.arrays:
            snapshot = part.arrays[_SNAPSHOT].tobytes()
            calls.clear()
        calls += [(request, outcome) for request, outcome in part.header["calls"]]
    return EpisodeRecord(
        snapshot=snapshot, num_snapshot_steps=parts[-1].header["num_snapshot_steps"], calls=tuple(calls)
    )


def _join(parts: Sequence[_Part], name: str) -> NDArray[Any]:
    return np.concatenate([part.arrays[name] for part in parts])
