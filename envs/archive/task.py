"""A seed becomes a task: what the archive is asked, where the deciding entries stand, and any page of it.

The archive is never held whole: a page is drawn from (split, seed, page), and what the question needs is a handful of
entries whatever the length.
"""

import random
from dataclasses import dataclass
from enum import Enum

from segue.envs.archive.entry import Entry, Register, count_tokens, draw_register
from segue.envs.archive.question import Question, draw_question
from segue.envs.archive.shape import Shape


class Split(Enum):
    """Which part of the endless tasks; no two splits share a task, whatever the seeds."""

    train = "train"
    heldout_seeds = "heldout_seeds"
    """The words and wordings of training, other archives and questions."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacedEntry:
    """An entry that the question needs, or that misleads, and its place."""

    position: float
    """Share of the archive that lies before it."""
    entry: Entry
    is_decisive: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class ArchiveTask:
    """What an episode is about."""

    origin: str
    """Names split and seed; every page's randomness follows from it."""
    shape: Shape
    register: Register
    question: Question
    placed: tuple[PlacedEntry, ...]
    """In the order of their positions; no other entry speaks of their keys."""

    @property
    def decisive_pages(self) -> tuple[int, ...]:
        """Numbers, from 0, of the pages that hold decisive entries; ascending."""
        return tuple(sorted({self.page_of(placed) for placed in self.placed if placed.is_decisive}))

    def page_of(self, placed: PlacedEntry) -> int:
        """Number, from 0, of the page that holds an entry."""
        return min(int(placed.position * self.shape.num_pages), self.shape.num_pages - 1)

    def page(self, number: int) -> str:
        """The text of one page, by its number from 0: a line that counts it, then its entries."""
        num_pages = self.shape.num_pages
        header = f"{number + 1} of {num_pages}"
        own = [placed for placed in self.placed if self.page_of(placed) == number]
        room = self.shape.page_tokens - count_tokens(f"{header}\n")
        room -= sum(count_tokens(f"{placed.entry.text}\n") for placed in own)
        others = self._draw_lines(random.Random(f"{self.origin}:page {number}"), room)
        # by place on the page; of equal places the one that stands first here stays first
        lines = [(placed.position * num_pages - number, placed.entry.text) for placed in own]
        lines += [((index + 0.5) / len(others), line) for index, line in enumerate(others)]
        lines.sort(key=lambda line: line[0])
        return "\n".join([header, *(text for _, text in lines)])

    def _draw_lines(self, rng: random.Random, room: int) -> list[str]:
        """Entries of other keys that fill so many tokens."""
        kept = {placed.entry.key for placed in self.placed}
        lines: list[str] = []
        while True:
            entry = self.register.entry(rng)
            if entry.key in kept:
                continue
            room -= count_tokens(f"{entry.text}\n")
            if room < 0:
                return lines
            lines.append(entry.text)


def make_task(seed: int, shape: Shape, split: Split) -> ArchiveTask:
    """The task of a seed."""
    origin = f"{split.value}:{seed}"
    rng = random.Random(f"{origin}:question")
    register = draw_register(rng, shape.length_tokens)
    question = draw_question(rng, register, shape.classes)
    positions = sorted(rng.uniform(*shape.fact_region) for _ in question.decisive)
    placed = [
        PlacedEntry(position=position, entry=entry, is_decisive=True)
        for position, entry in zip(positions, question.decisive, strict=True)
    ]
    placed += [PlacedEntry(position=rng.random(), entry=entry, is_decisive=False) for entry in question.decoys]
    placed.sort(key=lambda one: one.position)
    return ArchiveTask(origin=origin, shape=shape, register=register, question=question, placed=tuple(placed))
