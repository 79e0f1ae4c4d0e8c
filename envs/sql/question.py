"""Questions over a database: a class of question is a builder that draws one, with its query and its likely slips.

A slip is a wrong query that a hasty analyst would write: another column of the same table, or a forgotten filter.
Slips keep the information that the question holds (the words that decide MAX or MIN, the entity's name in most
queries), so that a model which imitates them still learns to read the question.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

from segue.envs.sql.database import Shape, Table


class Phrasing(Enum):
    """Which wordings a question may use."""

    training = "training"
    held_out = "held_out"


@dataclass(frozen=True, kw_only=True, slots=True)
class Query:
    """A SELECT statement in parts."""

    select: str
    source: str
    where: str = ""
    tail: str = ""

    def sql(self) -> str:
        """The statement's text."""
        where = f" WHERE {self.where}" if self.where else ""
        tail = f" {self.tail}" if self.tail else ""
        return f"SELECT {self.select} FROM {self.source}{where}{tail}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """A question whose answer is the single cell that its query returns."""

    kind: str
    """Question class, as metrics name it."""
    text: str
    query: Query
    slips: tuple[Query, ...]
    """Wrong queries of a fallible demonstrator; at least one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Draw:
    """What a builder draws from."""

    rng: random.Random
    tables: tuple[Table, ...]
    phrasing: Phrasing

    def table(self) -> Table:
        """One of the tables."""
        return self.rng.choice(self.tables)

    def numbers(self, table: Table) -> tuple[str, str]:
        """Two integer columns of a table: the one asked for, and one to mistake it for."""
        asked, other = self.rng.sample(table.numbers, 2)
        return asked, other

    def filter(self, table: Table) -> tuple[str, str]:
        """A word column of a table and a word that occurs in it."""
        column = self.rng.choice(table.texts)
        return column, str(self.rng.choice(table.values(column)))

    def words(self, kind: str, **names: str | int) -> str:
        """One wording of a question class, filled in."""
        training, held_out = PHRASES[kind]
        return self.rng.choice(training if self.phrasing is Phrasing.training else held_out).format(**names)


# question class: (wordings of training, wordings that training never uses)
PHRASES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "lookup_number": (
        ("{column} of {name} in {table}?", "what {column} has {name} in {table}?"),
        ("tell me how much {column} the {table} {name} shows", "give {name} ({table}): {column}"),
    ),
    "lookup_text": (
        ("{column} of {name} in {table}?", "what {column} has {name} in {table}?"),
        ("tell me which {column} the {table} {name} shows", "give {name} ({table}): {column}"),
    ),
    "filtered_count": (
        ("how many {table} with {column} {value}?", "count {table} with {column} {value}"),
        ("number of {table} rows whose {column} equals {value}", "{column} {value} occurs in {table} how often"),
    ),
    "max": (
        ("highest {column} in {table}?", "what is the highest {column} in {table}?"),
        ("name the biggest {column} found among {table}", "{table}: {column} at its peak"),
    ),
    "min": (
        ("lowest {column} in {table}?", "what is the lowest {column} in {table}?"),
        ("name the smallest {column} found among {table}", "{table}: {column} at its bottom"),
    ),
    "sum": (
        ("total {column} in {table}?", "what is the total {column} in {table}?"),
        ("add up every {column} found among {table}", "{table}: all {column} together"),
    ),
    "argmax": (
        ("which {key} in {table} has the highest {column}?", "{key} of {table} with the highest {column}?"),
        ("who leads {table} by {column}", "{table}: {key} of the biggest {column}"),
    ),
    "argmin": (
        ("which {key} in {table} has the lowest {column}?", "{key} of {table} with the lowest {column}?"),
        ("who trails {table} by {column}", "{table}: {key} of the smallest {column}"),
    ),
    "filtered_sum": (
        ("total {number} in {table} with {column} {value}?", "what is the total {number} of {column} {value} {table}?"),
        ("add up every {number} among {table} whose {column} equals {value}", "{table} {value}: all {number} together"),
    ),
    "filtered_max": (
        ("highest {number} in {table} with {column} {value}?", "what is the highest {number} of {column} {value} {table}?"),  # noqa: E501
        ("name the biggest {number} among {table} whose {column} equals {value}", "{table} {value}: {number} at its peak"),  # noqa: E501
    ),
    "count_above": (
        ("how many {table} with {column} above {value}?", "count {table} with {column} above {value}"),
        ("number of {table} rows whose {column} exceeds {value}", "{table} over {value} {column}: how often"),
    ),
    "group_top": (
        ("which {column} in {table} has the highest total {number}?", "{column} of {table} with the highest total {number}?"),  # noqa: E501
        ("{table}: {column} that adds up to most {number}", "who leads {table} by {number}, each {column} added up"),
    ),
    "join_sum": (
        ("total {number} of {child} whose {table} has {column} {value}?", "total {number} in {child} for {table} with {column} {value}?"),  # noqa: E501
        ("add up every {child} {number} that a {value} {table} got", "{child} of {column} {value} {table}: all {number} together"),  # noqa: E501
    ),
    "join_count": (
        ("how many {child} whose {table} has {column} {value}?", "count {child} for {table} with {column} {value}"),
        ("number of {child} rows that a {value} {table} got", "{child} of {column} {value} {table}: how often"),
    ),
    "join_max": (
        ("highest {number} of {child} whose {table} has {column} {value}?", "highest {number} in {child} for {table} with {column} {value}?"),  # noqa: E501
        ("name the biggest {child} {number} that a {value} {table} got", "{child} of {column} {value} {table}: {number} at its peak"),  # noqa: E501
    ),
    "join_average": (
        ("average {number} of {child} whose {table} has {column} {value}?", "average {number} in {child} for {table} with {column} {value}?"),  # noqa: E501
        ("mean {child} {number} that a {value} {table} got", "{child} of {column} {value} {table}: typical {number}"),
    ),
    "join_lookup": (
        ("{column} of the {table} of {child} {id}?", "what {column} has the {table} of {child} {id}?"),
        ("tell me which {column} the {table} behind {child} {id} shows", "give {child} {id}: {column} of its {table}"),
    ),
    "join_top": (
        ("which {column} of {table} has the highest total {number} in {child}?", "{column} of {table} with the highest total {number} in {child}?"),  # noqa: E501
        ("{child}: {column} of the {table} that adds up to most {number}", "who leads {child} by {number}, each {table} {column} added up"),  # noqa: E501
    ),
}  # fmt: skip


def _lookup(draw: Draw, kind: str, column_of: Callable[[Table], tuple[str, str]]) -> Question:
    table = draw.table()
    column, other = column_of(table)
    name = str(draw.rng.choice(table.rows)[0])
    query = Query(select=column, source=table.name, where=f"{table.key}='{name}'")
    text = draw.words(kind, column=column, name=name, table=table.name)
    return Question(kind=kind, text=text, query=query, slips=(replace(query, select=other), replace(query, where="")))


def lookup_number(draw: Draw) -> Question:
    """An integer of a named row."""
    return _lookup(draw, "lookup_number", draw.numbers)


def lookup_text(draw: Draw) -> Question:
    """A word of a named row."""
    return _lookup(draw, "lookup_text", lambda table: (draw.rng.choice(table.texts), draw.rng.choice(table.numbers)))


def filtered_count(draw: Draw) -> Question:
    """Rows that hold a word."""
    table = draw.table()
    column, value = draw.filter(table)
    query = Query(select="COUNT(*)", source=table.name, where=f"{column}='{value}'")
    text = draw.words("filtered_count", table=table.name, column=column, value=value)
    return Question(kind="filtered_count", text=text, query=query, slips=(replace(query, where=""),))


def _aggregate(draw: Draw, kind: str, function: str) -> Question:
    table = draw.table()
    column, other = draw.numbers(table)
    query = Query(select=f"{function}({column})", source=table.name)
    text = draw.words(kind, column=column, table=table.name)
    return Question(kind=kind, text=text, query=query, slips=(replace(query, select=f"{function}({other})"),))


def maximum(draw: Draw) -> Question:
    """The largest integer of a column."""
    return _aggregate(draw, "max", "MAX")


def minimum(draw: Draw) -> Question:
    """The smallest integer of a column."""
    return _aggregate(draw, "min", "MIN")


def total(draw: Draw) -> Question:
    """The sum of a column."""
    return _aggregate(draw, "sum", "SUM")


def _extreme_row(draw: Draw, kind: str, direction: str) -> Question:
    table = draw.table()
    column, other = draw.numbers(table)
    query = Query(select=table.key, source=table.name, tail=f"ORDER BY {column}{direction} LIMIT 1")
    text = draw.words(kind, key=table.key, table=table.name, column=column)
    slip = replace(query, tail=f"ORDER BY {other}{direction} LIMIT 1")
    return Question(kind=kind, text=text, query=query, slips=(slip,))


def argmax(draw: Draw) -> Question:
    """The key of the row with the largest integer."""
    return _extreme_row(draw, "argmax", " DESC")


def argmin(draw: Draw) -> Question:
    """The key of the row with the smallest integer."""
    return _extreme_row(draw, "argmin", "")


def _filtered_aggregate(draw: Draw, kind: str, function: str) -> Question:
    table = draw.table()
    number, other = draw.numbers(table)
    column, value = draw.filter(table)
    query = Query(select=f"{function}({number})", source=table.name, where=f"{column}='{value}'")
    text = draw.words(kind, number=number, table=table.name, column=column, value=value)
    slips = (replace(query, select=f"{function}({other})"), replace(query, where=""))
    return Question(kind=kind, text=text, query=query, slips=slips)


def filtered_sum(draw: Draw) -> Question:
    """The sum over rows that hold a word."""
    return _filtered_aggregate(draw, "filtered_sum", "SUM")


def filtered_max(draw: Draw) -> Question:
    """The largest integer among rows that hold a word."""
    return _filtered_aggregate(draw, "filtered_max", "MAX")


def count_above(draw: Draw) -> Question:
    """Rows whose integer is above a bound that at least one row passes."""
    table = draw.table()
    column, other = draw.numbers(table)
    bound = int(draw.rng.choice(table.values(column))) - 1
    query = Query(select="COUNT(*)", source=table.name, where=f"{column}>{bound}")
    text = draw.words("count_above", table=table.name, column=column, value=bound)
    slips = (replace(query, where=f"{other}>{bound}"), replace(query, where=""))
    return Question(kind="count_above", text=text, query=query, slips=slips)


def _has_one_top(groups: list[str], numbers: list[int]) -> bool:
    totals: dict[str, int] = {}
    for group, number in zip(groups, numbers, strict=True):
        totals[group] = totals.get(group, 0) + number
    return list(totals.values()).count(max(totals.values())) == 1


def group_top(draw: Draw) -> Question | None:
    """The word whose rows have the largest sum; None where two words share it."""
    table = draw.table()
    number, other = draw.numbers(table)
    column = draw.rng.choice(table.texts)
    if not _has_one_top([str(v) for v in table.values(column)], [int(v) for v in table.values(number)]):
        return None
    query = Query(select=column, source=table.name, tail=f"GROUP BY {column} ORDER BY SUM({number}) DESC LIMIT 1")
    text = draw.words("group_top", table=table.name, column=column, number=number)
    slip = replace(query, tail=f"GROUP BY {column} ORDER BY SUM({other}) DESC LIMIT 1")
    return Question(kind="group_top", text=text, query=query, slips=(slip,))


def _joined(draw: Draw) -> tuple[Table, Table, str]:
    """The event table, the table that it refers to, and both joined."""
    parent, child = draw.tables[0], draw.tables[-1]
    return child, parent, f"{child.name} JOIN {parent.name} ON {child.name}.{parent.name}={parent.name}.{parent.key}"


def _join_filter(draw: Draw, child: Table, parent: Table) -> tuple[str, str]:
    """A word column of the parent, and a word of a row that an event refers to."""
    column = draw.rng.choice(parent.texts)
    key = draw.rng.choice(child.values(parent.name))
    return column, str(parent.values(column)[parent.values(parent.key).index(key)])


def _join_aggregate(draw: Draw, kind: str, function: str) -> Question:
    child, parent, source = _joined(draw)
    number, other = draw.numbers(child)
    column, value = _join_filter(draw, child, parent)
    query = Query(select=f"{function}({number})", source=source, where=f"{column}='{value}'")
    text = draw.words(kind, number=number, child=child.name, table=parent.name, column=column, value=value)
    slips = (replace(query, select=f"{function}({other})"), replace(query, where=""))
    return Question(kind=kind, text=text, query=query, slips=slips)


def join_sum(draw: Draw) -> Question:
    """The sum over events of entities that hold a word."""
    return _join_aggregate(draw, "join_sum", "SUM")


def join_max(draw: Draw) -> Question:
    """The largest integer over events of entities that hold a word."""
    return _join_aggregate(draw, "join_max", "MAX")


def join_average(draw: Draw) -> Question:
    """The mean over events of entities that hold a word."""
    return _join_aggregate(draw, "join_average", "AVG")


def join_count(draw: Draw) -> Question:
    """Events of entities that hold a word."""
    child, parent, source = _joined(draw)
    column, value = _join_filter(draw, child, parent)
    query = Query(select="COUNT(*)", source=source, where=f"{column}='{value}'")
    text = draw.words("join_count", child=child.name, table=parent.name, column=column, value=value)
    return Question(kind="join_count", text=text, query=query, slips=(replace(query, where=""),))


def join_lookup(draw: Draw) -> Question:
    """A word of the entity that an event refers to."""
    child, parent, source = _joined(draw)
    column = draw.rng.choice(parent.texts)
    number = draw.rng.choice(parent.numbers)
    row_id = int(draw.rng.choice(child.rows)[0])
    query = Query(select=column, source=source, where=f"id={row_id}")
    text = draw.words("join_lookup", column=column, table=parent.name, child=child.name, id=row_id)
    slips = (replace(query, select=number), replace(query, where=""))
    return Question(kind="join_lookup", text=text, query=query, slips=slips)


def join_top(draw: Draw) -> Question | None:
    """The entities' word whose events have the largest sum; None where two words share it."""
    child, parent, source = _joined(draw)
    number, other = draw.numbers(child)
    column = draw.rng.choice(parent.texts)
    word_of = dict(zip(parent.values(parent.key), parent.values(column), strict=True))
    groups = [str(word_of[key]) for key in child.values(parent.name)]
    if not _has_one_top(groups, [int(v) for v in child.values(number)]):
        return None
    query = Query(select=column, source=source, tail=f"GROUP BY {column} ORDER BY SUM({number}) DESC LIMIT 1")
    text = draw.words("join_top", column=column, table=parent.name, child=child.name, number=number)
    slip = replace(query, tail=f"GROUP BY {column} ORDER BY SUM({other}) DESC LIMIT 1")
    return Question(kind="join_top", text=text, query=query, slips=(slip,))


@dataclass(frozen=True, kw_only=True, slots=True)
class Level:
    """A difficulty: the size of its databases and the classes of its questions, all equally likely."""

    shape: Shape
    builders: tuple[Callable[[Draw], Question | None], ...]


LEVELS: dict[int, Level] = {
    1: Level(
        shape=Shape(num_tables=2, num_names=5, min_rows=4, max_rows=5, num_numbers=2, num_texts=1),
        builders=(lookup_number, lookup_text, filtered_count, maximum, minimum, total),
    ),
    2: Level(
        shape=Shape(num_tables=3, num_names=8, min_rows=5, max_rows=8, num_numbers=3, num_texts=1),
        builders=(argmax, argmin, filtered_sum, filtered_max, count_above, group_top),
    ),
    3: Level(
        shape=Shape(
            num_tables=3, num_names=10, min_rows=5, max_rows=8, num_numbers=2, num_texts=2,
            has_event_table=True, max_event_rows=12,
        ),
        builders=(join_sum, join_count, join_max, join_average, join_lookup, join_top),
    ),
}  # fmt: skip


def draw_question(draw: Draw, level: Level) -> Question:
    """Draws a class, then a question of it that has one answer."""
    builder = draw.rng.choice(level.builders)
    while (question := builder(draw)) is None:
        pass
    return question
