"""Groups as files: one safetensors file, whose metadata holds one JSON header. No pickle.

A trajectory's arrays stand under their field's name, behind `<index>.`. The JSON header holds every other
field, and what a plan needs of the arrays, so that it is made without reading them. A file appears under its name whole
or not at all, and its digest travels beside its path. Where that went with a process, the header's own digest of all
that it holds, arrays included, tells whether the file is what was written.
"""

import functools
import hashlib
import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from segue.rollout.stored_group import StoredGroup, TrajectoryFileError, TrajectorySummary
from segue.rollout.trajectory import (
    Group,
    Outcome,
    PolicyVersion,
    Source,
    Trajectory,
    Turn,
    validate,
    validate_group,
)

FORMAT = "segue-group/3"
SUFFIX = ".safetensors"

_ARRAYS = ("token_ids", "trainable", "behaviour_logprob", "policy_incarnation", "policy_step", "expert_ids")
_COUNTED = ("num_tokens", "trainable_by_version")
_METADATA_KEY = "segue"
_DIGEST = "sha256"


def file_name(group_id: str) -> str:
    """Name of a group's file."""
    return group_id + SUFFIX


def save_group(path: Path, group: Group) -> str:
    """Write a group; an existing file is replaced in one step.

    Returns:
        The file's SHA-256 digest in hexadecimal.
    Raises:
        ValueError: a trajectory breaks a promise of its fields or does not belong to the group.
        OSError: there is no room, or no folder; nothing stands under the name that did not before.
    """
    validate_group(group)
    arrays: dict[str, NDArray[Any]] = {}
    for i, trajectory in enumerate(group.trajectories):
        arrays |= _arrays(trajectory, f"{i}.")
    header = {
        "format": FORMAT,
        "task_id": group.task_id,
        "group_id": group.group_id,
        "first_version": [group.first_version.incarnation, group.first_version.step],
        "last_version": [group.last_version.incarnation, group.last_version.step],
        "made_by": group.made_by,
        "trajectories": [_header(trajectory) for trajectory in group.trajectories],
    }
    return write_arrays(path, arrays, {**header, _DIGEST: _content_digest(header, arrays)})


def load_group(path: Path, *, digest: str | None = None) -> Group:
    """Read what `save_group` wrote.

    Args:
        digest: the SHA-256 that the file must have; None where nobody knows it: then by the digest inside.
    Raises:
        TrajectoryFileError: missing, cut short, foreign, of another digest, or broken inside.
    """
    header, arrays = _read(path, digest)
    try:
        group = Group(
            task_id=header["task_id"],
            group_id=header["group_id"],
            trajectories=tuple(_trajectory(h, arrays, f"{i}.") for i, h in enumerate(header["trajectories"])),
            first_version=PolicyVersion(*header["first_version"]),
            last_version=PolicyVersion(*header["last_version"]),
            made_by=header["made_by"],
        )
        validate_group(group)
    except (KeyError, TypeError, ValueError) as error:
        raise _broken(path, error) from error
    return group


def open_group(path: Path, *, digest: str) -> StoredGroup:
    """Read the header of what `save_group` wrote; trajectories are read when they are loaded.

    Args:
        digest: the SHA-256 that the file must have, looked at before the first trajectory is loaded.
    Raises:
        TrajectoryFileError: missing, cut short or foreign; when loading also of another digest, or broken inside.
    """
    check_digest = functools.cache(lambda: _check_digest(path, digest))
    with opened(path, FORMAT) as (header, _):
        pass
    try:
        members = tuple(_summary(member) for member in header["trajectories"])
        group_id = header["group_id"]
    except (KeyError, TypeError, ValueError) as error:
        raise _broken(path, error) from error

    def load(index: int) -> Trajectory:
        check_digest()
        prefix = f"{index}."
        with opened(path, FORMAT) as (_, file):
            arrays = read_arrays(file, prefix)
        try:
            trajectory = _trajectory(header["trajectories"][index], arrays, prefix)
            validate(trajectory)
        except (KeyError, TypeError, ValueError) as error:
            raise _broken(path, error) from error
        if TrajectorySummary.of(trajectory) != members[index]:
            raise TrajectoryFileError(path, f"must hold what its header says of trajectory {index}")
        return trajectory

    return StoredGroup(group_id=group_id, members=members, load=load)


def _arrays(trajectory: Trajectory, prefix: str) -> dict[str, NDArray[Any]]:
    arrays = {name: getattr(trajectory, name) for name in _ARRAYS if getattr(trajectory, name) is not None}
    # safetensors writes the memory behind an array as it lies, strides ignored
    return {prefix + name: np.ascontiguousarray(array) for name, array in arrays.items()}


def _header(trajectory: Trajectory) -> dict[str, Any]:
    return {
        "num_tokens": trajectory.num_tokens,
        "trainable_by_version": [[v.incarnation, v.step, count] for v, count in trajectory.trainable_by_version],
        "source": trajectory.source.value,
        "turns": [{f.name: getattr(turn, f.name) for f in fields(Turn)} for turn in trajectory.turns],
        "outcome_terms": trajectory.outcome_terms,
        "outcome": trajectory.outcome.value,
        "task_id": trajectory.task_id,
        "group_id": trajectory.group_id,
        "index": trajectory.index,
        "attempt": trajectory.attempt,
        "seed": trajectory.seed,
        "info": trajectory.info,
    }


def _trajectory(header: dict[str, Any], arrays: dict[str, NDArray[Any]], prefix: str) -> Trajectory:
    members: dict[str, Any] = {name: value for name, value in header.items() if name not in _COUNTED}
    members["source"] = Source(header["source"])
    members["outcome"] = Outcome(header["outcome"])
    members["turns"] = tuple(Turn(**turn) for turn in header["turns"])
    members |= {name: arrays[prefix + name] for name in _ARRAYS if prefix + name in arrays}
    return Trajectory(**members)


def _summary(header: dict[str, Any]) -> TrajectorySummary:
    return TrajectorySummary(
        num_tokens=header["num_tokens"],
        trainable_by_version=tuple((PolicyVersion(i, s), count) for i, s, count in header["trainable_by_version"]),
        turn_rewards=tuple(sum(turn["reward_terms"].values()) for turn in header["turns"]),
        outcome_reward=sum(header["outcome_terms"].values()),
        outcome=Outcome(header["outcome"]),
        source=Source(header["source"]),
    )


def write_arrays(path: Path, arrays: dict[str, NDArray[Any]], header: dict[str, Any]) -> str:
    """Write a file of arrays under a JSON header, whole or not at all, and durably.

    Args:
        header: names its `format`; NaN is refused.
    Returns:
        The file's SHA-256 digest in hexadecimal.
    """
    # one key only: safetensors writes several in an arbitrary order, and equal groups should have equal digests
    # escaped to ASCII: an environment's text may hold lone surrogates, which UTF-8 cannot say
    metadata = {_METADATA_KEY: json.dumps(header, allow_nan=False, separators=(",", ":"))}
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        save_file(arrays, temporary, metadata=metadata)
        with temporary.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            os.fsync(file.fileno())
        temporary.replace(path)
    except SafetensorError as error:
        raise OSError(f"{path} could not be written: {error}") from error
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)
    return digest


def sync_folder(folder: Path) -> None:
    """Make names in a folder durable: a new one is so only once its folder is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read(path: Path, digest: str | None) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    if digest is not None:
        _check_digest(path, digest)
    with opened(path, FORMAT) as (header, file):
        arrays = read_arrays(file, "")
    if digest is None:
        wanted, found = header.pop(_DIGEST, None), _content_digest(header, arrays)
        if found != wanted:
            raise TrajectoryFileError(path, f"must have content of SHA-256 {wanted}, got {found}")
    return header, arrays


def _content_digest(header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> str:
    """SHA-256 of what a file holds, in hexadecimal."""
    digest = hashlib.sha256(json.dumps(header, separators=(",", ":")).encode())
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype.str} {arrays[name].shape}".encode())
        digest.update(arrays[name].data)
    return digest.hexdigest()


@contextmanager
def opened(path: Path, wanted: str) -> Iterator[tuple[dict[str, Any], Any]]:
    """Header and open file of what `write_arrays` wrote; none of its arrays is read.

    Args:
        wanted: the format that it must have.
    Raises:
        TrajectoryFileError: missing, cut short or of another format, also where that shows in the reading only.
    """
    try:
        with safe_open(path, framework="np") as file:
            header = json.loads((file.metadata() or {}).get(_METADATA_KEY, "{}"))
            if header.get("format") != wanted:
                raise TrajectoryFileError(path, f"must be a {wanted} file, got {header.get('format', 'a foreign one')}")
            yield header, file
    except (OSError, SafetensorError, json.JSONDecodeError) as error:
        raise _broken(path, error) from error


def read_arrays(file: Any, prefix: str) -> dict[str, NDArray[Any]]:
    """The arrays of an open file whose names begin so."""
    return {name: file.get_tensor(name) for name in file.keys() if name.startswith(prefix)}  # noqa: SIM118 (not a dict)


def _check_digest(path: Path, wanted: str) -> None:
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise _broken(path, error) from error
    if found != wanted:
        raise TrajectoryFileError(path, f"must have SHA-256 {wanted}, got {found}")


def _broken(path: Path, error: Exception) -> TrajectoryFileError:
    return TrajectoryFileError(path, f"must be a whole file: {type(error).__name__}: {error}")
