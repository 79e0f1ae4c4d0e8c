"""Whether a process sees the run folder that the controller sees: on a cluster that is several machines.

The controller writes a token of its launch into the folder's lock; each actor looks for it before anything else. A
folder of the same path that another disk holds, or a copy of it, has none or an older one.
"""

import fcntl
import os
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from segue.actors.errors import RunError
from segue.conf.errors import ConfigError

LOCK_NAME = ".lock"
_TOKEN_BYTES = 16
_LOOK_EVERY_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderMark:
    """What an actor looks for."""

    folder: Path
    token: str
    patience_s: float = 5.0
    """A network file system may show a file's earlier content for so long."""

    def look(self) -> None:
        """Hold the folder that this process sees against the controller's.

        Raises:
            RunError: it is another one, or none.
        """
        deadline = time.monotonic() + self.patience_s
        while (found := _token(self.folder)) != self.token:
            if time.monotonic() >= deadline:
                seen = "no such run folder" if found is None else "another folder of this path"
                raise RunError(
                    f"run.dir must be on a file system that every node sees, got {self.folder}, where this node has "
                    f"{seen}; give one on a shared file system, or keep the actors to the nodes that see it "
                    "(cluster.rollout_resources, cluster.learner_resources)"
                )
            time.sleep(_LOOK_EVERY_S)


def take_lock(lock: IO[str] | int, folder: Path) -> None:
    """Keep every other run out of a folder for as long as this process has its lock open.

    Raises:
        RunError: another process has it.
        ConfigError: the file system has no locks.
    """
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise RunError(f"{folder} must be free, got another process at work in it; wait for it or end it") from error
    except OSError as error:
        raise ConfigError(
            f"run.dir must be on a file system that can lock files, got {folder}: {error}; mount it with locks "
            "(flock on Lustre, a lock service on NFS), or give another"
        ) from error


def mark_folder(lock: IO[str]) -> None:
    """Write a new token into the lock that this process holds.

    Raises:
        OSError: the disk has no room.
    """
    lock.truncate(0)
    lock.write(secrets.token_hex(_TOKEN_BYTES))
    lock.flush()
    # other machines see what is on the disk
    os.fsync(lock.fileno())


def read_mark(folder: Path) -> FolderMark | None:
    """The mark of a run folder; None for one that no other process has to see."""
    token = _token(folder)
    return FolderMark(folder=folder, token=token) if token else None


def _token(folder: Path) -> str | None:
    try:
        return (folder / LOCK_NAME).read_text()
    except OSError:
        return None
