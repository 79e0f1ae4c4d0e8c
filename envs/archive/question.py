"""Questions over an archive: a class of question is a builder that draws one, with the entries that decide it.

A slip is a wrong answer of somebody who did not read well: the entry of another subject, a value that a later entry
replaced, one hop too few, one event too few or too many.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from segue.envs.archive.entry import Entry, Register
from segue.envs.archive.vocabulary import PHRASES

MAX_UPDATES = 4
MAX_EVENTS = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """A question that the archive ends with."""

    kind: str
    """Question class, as metrics name it."""
    text: str
    truth: str
    slips: tuple[str, ...]
    """Wrong answers of a fallible demonstrator; at least one."""
    decisive: tuple[Entry, ...]
    """What the truth follows from, in the order in which the archive has it."""
    decoys: tuple[Entry, ...] = ()
    """Entries that a slip follows from; they stand anywhere."""


def recall(rng: random.Random, register: Register) -> Question:
    """What the only entry of a key says."""
    topic = rng.choice((*register.numbers, *register.relations))
    subject, other = register.subjects(rng, 2)
    truth, slip = _different(rng, register, topic, 2)
    return Question(
        kind="recall", text=_words(rng, "recall", topic=topic, subject=subject), truth=truth, slips=(slip,),
        decisive=(Entry(topic=topic, subject=subject, value=truth),),
        decoys=(Entry(topic=topic, subject=other, value=slip),),
    )  # fmt: skip


def latest(rng: random.Random, register: Register) -> Question:
    """What the last of several entries of a key says."""
    topic = rng.choice((*register.numbers, *register.relations))
    (subject,) = register.subjects(rng, 1)
    *earlier, truth = _different(rng, register, topic, rng.randint(2, MAX_UPDATES))
    return Question(
        kind="latest", text=_words(rng, "latest", topic=topic, subject=subject), truth=truth, slips=tuple(earlier),
        decisive=tuple(Entry(topic=topic, subject=subject, value=value) for value in (*earlier, truth)),
    )  # fmt: skip


def count(rng: random.Random, register: Register) -> Question:
    """How many events there were."""
    topic = rng.choice(register.events)
    number = rng.randint(1, MAX_EVENTS)
    subject, *others = register.subjects(rng, 1 + number)
    return Question(
        kind="count", text=_words(rng, "count", topic=topic, subject=subject), truth=str(number),
        slips=(str(number - 1), str(number + 1)),
        decisive=tuple(Entry(topic=topic, subject=subject, value=other) for other in others),
    )  # fmt: skip


def two_hop(rng: random.Random, register: Register) -> Question:
    """An integer of the subject that another entry names; either entry may come first."""
    topic, relation = rng.choice(register.numbers), rng.choice(register.relations)
    subject, other = register.subjects(rng, 2)
    truth, slip = _different(rng, register, topic, 2)
    decisive = [
        Entry(topic=relation, subject=subject, value=other),
        Entry(topic=topic, subject=other, value=truth),
    ]
    rng.shuffle(decisive)
    return Question(
        kind="two_hop", text=_words(rng, "two_hop", topic=topic, relation=relation, subject=subject), truth=truth,
        slips=(slip, other), decisive=tuple(decisive), decoys=(Entry(topic=topic, subject=subject, value=slip),),
    )  # fmt: skip


KINDS: dict[str, Callable[[random.Random, Register], Question]] = {
    build.__name__: build for build in (recall, latest, count, two_hop)
}
"""Question class to its builder."""


def draw_question(rng: random.Random, register: Register, classes: Sequence[str]) -> Question:
    """Draws one of the classes, all equally likely, then a question of it."""
    return KINDS[rng.choice(classes)](rng, register)


def _different(rng: random.Random, register: Register, topic: str, number: int) -> list[str]:
    """So many different values of a topic."""
    values: dict[str, None] = {}
    while len(values) < number:
        values[register.value(rng, topic)] = None
    return list(values)


def _words(rng: random.Random, kind: str, **names: str) -> str:
    """One wording of a question class, filled in."""
    return rng.choice(PHRASES[kind]).format(**names)
