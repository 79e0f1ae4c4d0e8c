"""A folder in another's place: at every moment one of the two stands whole, under its name or beside it."""

import shutil
from pathlib import Path

from segue.rollout.trajectory_file import sync_folder

_OLD_PREFIX = ".old-"


def replace_folder(new: Path, target: Path) -> None:
    """Put a whole folder under a name beside it, in the place of what is there.

    Invariants:
        Wherever it is killed, `finish_replacements` leaves the old folder or the new one whole under the name:
        tests/unit/actors/test_replacement.py.
    """
    old = target.with_name(_OLD_PREFIX + target.name)
    if target.exists():
        target.rename(old)
    new.rename(target)
    sync_folder(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def finish_replacements(folder: Path) -> None:
    """Mend what a kill left of `replace_folder` among a folder's own; to be called before anything is replaced."""
    for old in folder.glob(_OLD_PREFIX + "*"):
        target = old.with_name(old.name.removeprefix(_OLD_PREFIX))
        if target.exists():
            shutil.rmtree(old)
        else:
            old.rename(target)
