"""Problems: a class of problem is a builder that draws one, with a program that solves it and its likely slips.

A slip is a wrong program that somebody in a hurry would write: a line left out, another column, a step too few. The
truth is worked out here, never by a program in the sandbox.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from segue.envs.python.vocabulary import COLUMNS, FILE_NAMES, PHRASES, WORDS, Phrasing

MAX_NUMBER = 99


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """What is asked."""

    kind: str
    """Problem class, as metrics name it."""
    text: str
    truth: str
    """The answer as text."""
    program: str
    """Prints the truth."""
    slips: tuple[str, ...]
    """Wrong programs of a fallible demonstrator; at least one."""
    files: dict[str, bytes] = field(default_factory=dict)
    """Name to content of what lies in the scratch folder."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Draw:
    """What a builder draws from."""

    rng: random.Random
    num_lines: int
    """Lines of a file, words of a text and steps of a process."""
    phrasing: Phrasing

    def words(self, kind: str, **names: str | int) -> str:
        """One wording of a problem class, filled in."""
        training, held_out = PHRASES[kind]
        return self.rng.choice(training if self.phrasing is Phrasing.training else held_out).format(**names)

    def numbers(self) -> list[int]:
        """Integers of which one is larger than all others, so that it is unique."""
        numbers = [self.rng.randint(1, MAX_NUMBER - 1) for _ in range(self.num_lines)]
        numbers[self.rng.randrange(self.num_lines)] = MAX_NUMBER + self.rng.randint(1, MAX_NUMBER)
        return numbers

    def file_name(self, ending: str) -> str:
        """A name for a file."""
        return f"{self.rng.choice(FILE_NAMES)}.{ending}"


def _aggregate(draw: Draw, kind: str, function: Callable[[list[int]], int], expression: str, slip: str) -> Problem:
    """One number from a file of numbers, one a line; in the expressions `n` is their list."""
    name, numbers = draw.file_name("txt"), draw.numbers()
    program = f"n=[int(x) for x in open('{name}')]\nprint({{}})"
    return Problem(
        kind=kind, text=draw.words(kind, file=name), truth=str(function(numbers)),
        program=program.format(expression), slips=(program.format(slip),), files={name: _lines(numbers)},
    )  # fmt: skip


def total(draw: Draw) -> Problem:
    """The sum of a file's numbers."""
    return _aggregate(draw, "total", sum, "sum(n)", "sum(n[1:])")


def highest(draw: Draw) -> Problem:
    """The largest of a file's numbers."""
    return _aggregate(draw, "highest", max, "max(n)", "n[-1]")


def spread(draw: Draw) -> Problem:
    """The largest less the smallest of a file's numbers."""
    return _aggregate(draw, "spread", lambda n: max(n) - min(n), "max(n)-min(n)", "max(n)")


def middle(draw: Draw) -> Problem:
    """The median of a file's numbers, whose count is odd."""
    draw = Draw(rng=draw.rng, num_lines=draw.num_lines | 1, phrasing=draw.phrasing)
    return _aggregate(draw, "middle", lambda n: sorted(n)[len(n) // 2], "sorted(n)[len(n)//2]", "n[len(n)//2]")


def count_above(draw: Draw) -> Problem:
    """How many of a file's numbers exceed one."""
    name, numbers, value = draw.file_name("txt"), draw.numbers(), draw.rng.randint(20, 80)
    program = f"print(sum(int(x)>{value} for x in open('{name}')))"
    return Problem(
        kind="count_above", text=draw.words("count_above", file=name, value=value),
        truth=str(sum(number > value for number in numbers)), program=program,
        slips=(program.replace(">", "<"),), files={name: _lines(numbers)},
    )  # fmt: skip


def count_word(draw: Draw) -> Problem:
    """How often a word stands in a file of words, one a line."""
    name, word = draw.file_name("txt"), draw.rng.choice(WORDS)
    pool = [word, *draw.rng.sample([other for other in WORDS if other != word], 3)]
    words = [word, *(draw.rng.choice(pool) for _ in range(draw.num_lines - 1))]
    draw.rng.shuffle(words)
    program = f"print(open('{name}').read().split().count('{word}'))"
    return Problem(
        kind="count_word", text=draw.words("count_word", file=name, word=word), truth=str(words.count(word)),
        program=program, slips=(f"print(len(open('{name}').read().split()))",), files={name: _lines(words)},
    )  # fmt: skip


def _transform(draw: Draw, kind: str, transform: Callable[[str], str], expression: str, slip: str) -> Problem:
    """A text made from the text in the question; in the expressions `s` is the one asked about."""
    text = " ".join(draw.rng.choice(WORDS) for _ in range(min(draw.num_lines, 4)))
    program = f"s='{text}'\nprint({{}})"
    return Problem(
        kind=kind, text=draw.words(kind, text=text), truth=transform(text),
        program=program.format(expression), slips=(program.format(slip),),
    )  # fmt: skip


def reverse(draw: Draw) -> Problem:
    """A text from its end to its beginning."""
    return _transform(draw, "reverse", lambda s: s[::-1], "s[::-1]", "s")


def reorder(draw: Draw) -> Problem:
    """A text's words in the order of the alphabet."""
    return _transform(draw, "reorder", lambda s: " ".join(sorted(s.split())), "' '.join(sorted(s.split()))", "s")


def initials(draw: Draw) -> Problem:
    """The first letters of a text's words."""
    return _transform(draw, "initials", lambda s: "".join(w[0] for w in s.split()), "''.join(w[0] for w in s.split())", "s[0]")  # noqa: E501  # fmt: skip


def simulate(draw: Draw) -> Problem:
    """A number after so many rounds of multiplying, adding and taking the rest."""
    rng = draw.rng
    start, factor, term = rng.randint(1, 9), rng.randint(2, 9), rng.randint(1, 9)
    modulus, rounds = rng.randint(50, MAX_NUMBER), draw.num_lines
    value = start
    for _ in range(rounds):
        value = (value * factor + term) % modulus
    names = {"start": start, "factor": factor, "term": term, "modulus": modulus}
    program = f"x={start}\nfor _ in range({{}}): x=(x*{factor}+{term})%{modulus}\nprint(x)"
    return Problem(
        kind="simulate", text=draw.words("simulate", **names, rounds=rounds), truth=str(value),
        program=program.format(rounds), slips=(program.format(rounds - 1),),
    )  # fmt: skip


def _table(draw: Draw) -> tuple[str, list[tuple[str, str, int, int]], tuple[str, str], dict[str, bytes]]:
    """A table of names, words and two columns of numbers: its file's name, rows, the number columns, the files."""
    rng = draw.rng
    name, (first, second) = draw.file_name("csv"), rng.sample(COLUMNS, 2)
    pool = rng.sample(WORDS, 3)
    groups = [*pool[:2], *(rng.choice(pool) for _ in range(draw.num_lines - 2))]
    rows = [
        (f"r{i}", group, number, other)
        for i, (group, number, other) in enumerate(zip(groups, draw.numbers(), draw.numbers(), strict=True))
    ]
    lines = [f"id,kind,{first},{second}", *(",".join(map(str, row)) for row in rows)]
    return name, rows, (first, second), {name: _lines(lines)}


def table_total(draw: Draw) -> Problem:
    """The sum of a column over the rows of one kind."""
    name, rows, (column, other), files = _table(draw)
    group = rows[draw.rng.randrange(2)][1]
    program = f"import csv\nprint(sum(int(x['{{}}']) for x in csv.DictReader(open('{name}')){{}}))"
    condition = f" if x['kind']=='{group}'"
    return Problem(
        kind="table_total", text=draw.words("table_total", file=name, column=column, group=group),
        truth=str(sum(row[2] for row in rows if row[1] == group)), program=program.format(column, condition),
        slips=(program.format(other, condition), program.format(column, "")), files=files,
    )  # fmt: skip


def table_top(draw: Draw) -> Problem:
    """The row in which a column is largest."""
    name, rows, (column, other), files = _table(draw)
    program = f"import csv\nprint(max(csv.DictReader(open('{name}')),key=lambda x:int(x['{{}}']))['id'])"
    return Problem(
        kind="table_top", text=draw.words("table_top", file=name, column=column),
        truth=max(rows, key=lambda row: row[2])[0], program=program.format(column), slips=(program.format(other),),
        files=files,
    )  # fmt: skip


def _lines(values: list[str] | list[int]) -> bytes:
    return "".join(f"{value}\n" for value in values).encode()


TRAINING_KINDS = (
    total, highest, count_above, count_word, reverse, reorder, simulate, table_total,
)  # fmt: skip
HELD_OUT_KINDS = (spread, middle, initials, table_top)
