"""A seed becomes a task: a problem, drawn until it is one of its split."""

import hashlib
import random
from collections.abc import Sequence
from enum import Enum
from typing import Any

from segue.envs.python.problem import HELD_OUT_KINDS, TRAINING_KINDS, Draw, Problem
from segue.envs.python.vocabulary import Phrasing


class Split(Enum):
    """Which part of the endless tasks; no two splits share a task, whatever the seeds."""

    train = "train"
    heldout_seeds = "heldout_seeds"
    """The classes and wordings of training, other problems."""
    heldout_phrasings = "heldout_phrasings"
    """Wordings that training never shows."""
    heldout_kinds = "heldout_kinds"
    """Classes that training never shows."""


# level: (fewest, most) lines of a file
LEVELS = {1: (5, 9), 2: (100, 200)}
# one problem in so many belongs to `heldout_seeds`, by its content
_HELD_OUT_SHARE = 8


# class of problem to its builder
_TRAINING = {build.__name__: build for build in TRAINING_KINDS}
TRAINING_CLASSES = tuple(_TRAINING)


def make_problem(seed: int, level: int, split: Split, classes: Sequence[str]) -> Problem:
    """The problem of a seed; `heldout_kinds` has classes of its own.

    Raises:
        ValueError: there is no such level, or no such class.
    """
    check_level(level)
    check_classes(classes)
    rng = random.Random(f"{split.value}:{level}:{seed}")
    phrasing = Phrasing.held_out if split is Split.heldout_phrasings else Phrasing.training
    builders = HELD_OUT_KINDS if split is Split.heldout_kinds else [_TRAINING[name] for name in classes]
    build = rng.choice(builders)
    while True:
        problem = build(Draw(rng=rng, num_lines=rng.randint(*LEVELS[level]), phrasing=phrasing))
        if split not in (Split.train, Split.heldout_seeds) or _is_held_out(problem) == (split is Split.heldout_seeds):
            return problem


def check_level(level: int) -> None:
    """Refuses what is no level.

    Raises:
        ValueError: there is no such level.
    """
    if level not in LEVELS:
        raise ValueError(f"level must be one of {', '.join(map(str, LEVELS))}, got {level!r}")


def check_classes(classes: Any) -> tuple[str, ...]:
    """Classes of training's problems.

    Raises:
        ValueError: they are no list of some that there are.
    """
    is_list = isinstance(classes, (list, tuple)) and bool(classes)
    if not is_list or not all(isinstance(name, str) and name in _TRAINING for name in classes):
        raise ValueError(f"classes must be a list of some of {', '.join(TRAINING_CLASSES)}, got {classes!r}")
    return tuple(classes)


def _is_held_out(problem: Problem) -> bool:
    """Decided by what is asked about which files, so that no seed of training can draw it."""
    digest = hashlib.sha256(problem.text.encode())
    for name, content in sorted(problem.files.items()):
        digest.update(b"\0" + name.encode() + b"\0" + content)
    return digest.digest()[0] % _HELD_OUT_SHARE == 0
