"""Questions over an archive: a class of question is a builder that draws one, with the entries that decide it.

An answer is concluded from entries that its giver has in mind. A slip is the conclusion of somebody who did not read
well: from the entry of another subject, from one that a later entry replaced, one hop too few, one event too few or
too many.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from segue.envs.archive.entry import Entry, Register
from segue.envs.archive.vocabulary import PHRASES

MAX_UPDATES = 4
MAX_EVENTS = 5


@dataclass(frozen=True, slots=True)
class Conclusion:
    """An answer, and where it comes from."""

    answer: str
    quotes: tuple[Entry, ...]
    """Entries that it follows from, in the order in which it does."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """A question that the archive ends with."""

    kind: str
    """Question class, as metrics name it."""
    text: str
    right: Conclusion
    slips: tuple[Conclusion, ...]
    """What a fallible demonstrator concludes; at least one."""
    decisive: tuple[Entry, ...]
    """What the truth follows from, in the order in which the archive has it."""
    decoys: tuple[Entry, ...] = ()
    """Entries that a slip follows from; they stand anywhere."""

    @property
    def truth(self) -> str:
        """The right answer."""
        return self.right.answer


def recall(rng: random.Random, register: Register) -> Question:
    """What the only entry of a key says."""
    topic = rng.choice((*register.numbers, *register.relations))
    subject, other = register.subjects(rng, 2)
    truth, slip = _different(rng, register, topic, 2)
    entry, decoy = Entry(topic=topic, subject=subject, value=truth), Entry(topic=topic, subject=other, value=slip)
    return Question(
        kind="recall", text=recall_question(rng, entry),
        right=Conclusion(truth, (entry,)), slips=(Conclusion(slip, (decoy,)),), decisive=(entry,), decoys=(decoy,),
    )  # fmt: skip


def latest(rng: random.Random, register: Register) -> Question:
    """What the last of several entries of a key says."""
    topic = rng.choice((*register.numbers, *register.relations))
    (subject,) = register.subjects(rng, 1)
    values = _different(rng, register, topic, rng.randint(2, MAX_UPDATES))
    entries = tuple(Entry(topic=topic, subject=subject, value=value) for value in values)
    *slips, right = (Conclusion(value, entries[: index + 1]) for index, value in enumerate(values))
    text = _words(rng, "latest", topic=topic, subject=subject)
    return Question(kind="latest", text=text, right=right, slips=tuple(slips), decisive=entries)


def count(rng: random.Random, register: Register) -> Question:
    """How many events there were."""
    topic = rng.choice(register.events)
    number = rng.randint(1, MAX_EVENTS)
    subject, *others = register.subjects(rng, 1 + number)
    entries = tuple(Entry(topic=topic, subject=subject, value=other) for other in others)
    return Question(
        kind="count", text=_words(rng, "count", topic=topic, subject=subject),
        right=Conclusion(str(number), entries),
        slips=(Conclusion(str(number - 1), entries[:-1]), Conclusion(str(number + 1), entries)), decisive=entries,
    )  # fmt: skip


def two_hop(rng: random.Random, register: Register) -> Question:
    """An integer of the subject that another entry names; either entry may come first."""
    topic, relation = rng.choice(register.numbers), rng.choice(register.relations)
    subject, other = register.subjects(rng, 2)
    truth, slip = _different(rng, register, topic, 2)
    hop, entry = Entry(topic=relation, subject=subject, value=other), Entry(topic=topic, subject=other, value=truth)
    decoy = Entry(topic=topic, subject=subject, value=slip)
    decisive = [hop, entry]
    rng.shuffle(decisive)
    return Question(
        kind="two_hop", text=_words(rng, "two_hop", topic=topic, relation=relation, subject=subject),
        right=Conclusion(truth, (hop, entry)), slips=(Conclusion(slip, (decoy,)), Conclusion(other, (hop,))),
        decisive=tuple(decisive), decoys=(decoy,),
    )  # fmt: skip


KINDS: dict[str, Callable[[random.Random, Register], Question]] = {
    build.__name__: build for build in (recall, latest, count, two_hop)
}
"""Question class to its builder."""


def recall_question(rng: random.Random, entry: Entry) -> str:
    """Asks for what an entry says."""
    return _words(rng, "recall", topic=entry.topic, subject=entry.subject)


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
