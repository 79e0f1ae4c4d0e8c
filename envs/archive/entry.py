"""Entries: the sentences of an archive, what they speak of, and how many tokens they are."""

import random
import re
from dataclasses import dataclass

from segue.envs.archive.vocabulary import EVENTS, NAMES, NUMBERS, RELATIONS

MAX_NUMBER = 99
ENTRY_TOKENS = 7
"""Of an entry with its line's end, about."""
# topics of one archive: (integers, relations, events)
_NUM_TOPICS = (6, 3, 2)
# with so many subjects a key comes up about twice in an archive, whatever its length
_ENTRIES_PER_SUBJECT = 2 * sum(_NUM_TOPICS)
_MIN_SUBJECTS = 8
_TOKEN = re.compile(r"[a-z]+|[0-9]|[^a-z0-9]+")


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A sentence."""

    topic: str
    subject: str
    value: str

    @property
    def key(self) -> tuple[str, str]:
        """What the entry speaks of; a later one of the same key replaces it, or adds to it where it is an event."""
        return self.topic, self.subject

    @property
    def text(self) -> str:
        """As a line of a page: words side by side, so that a short convolution reaches from the value to its key."""
        return f"{self.subject} {self.topic} {self.value}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Register:
    """What the entries of one archive may speak of; subjects are made from their number, never listed."""

    numbers: tuple[str, ...]
    relations: tuple[str, ...]
    events: tuple[str, ...]
    names: tuple[str, ...]
    num_subjects: int

    def subject(self, index: int) -> str:
        """Name of one of the subjects; beyond the first names a number tells them apart: `clio 12`."""
        number, place = divmod(index, len(self.names))
        return f"{self.names[place]} {number}" if number else self.names[place]

    def subjects(self, rng: random.Random, count: int) -> list[str]:
        """So many different subjects."""
        return [self.subject(index) for index in rng.sample(range(self.num_subjects), count)]

    def value(self, rng: random.Random, topic: str) -> str:
        """What an entry may say of a topic."""
        return str(rng.randint(1, MAX_NUMBER)) if topic in self.numbers else self.subjects(rng, 1)[0]

    def entry(self, rng: random.Random) -> Entry:
        """Any entry, every key equally likely."""
        topic = rng.choice((*self.numbers, *self.relations, *self.events))
        return Entry(topic=topic, subject=self.subjects(rng, 1)[0], value=self.value(rng, topic))


def draw_register(rng: random.Random, length_tokens: int) -> Register:
    """The register of an archive of this length."""
    numbers, relations, events = (
        tuple(rng.sample(words, count)) for words, count in zip((NUMBERS, RELATIONS, EVENTS), _NUM_TOPICS, strict=True)
    )
    num_subjects = max(_MIN_SUBJECTS, length_tokens // (ENTRY_TOKENS * _ENTRIES_PER_SUBJECT))
    names = tuple(rng.sample(NAMES, len(NAMES)))
    return Register(numbers=numbers, relations=relations, events=events, names=names, num_subjects=num_subjects)


def count_tokens(text: str) -> int:
    """Tokens of a page without its question: words, digits, and runs of other signs.

    Exact for the shipped vocabulary, which holds every word of an entry and cuts numbers into digits:
    tests/unit/rollout/test_long_horizon_tokens.py.
    """
    return len(_TOKEN.findall(text))
