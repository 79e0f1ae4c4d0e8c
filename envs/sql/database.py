"""The database of a task: tables as Python rows, and the same as the bytes of a SQLite file."""

import random
import sqlite3
from dataclasses import dataclass

from segue.envs.sql.vocabulary import Vocabulary

Cell = int | str

MAX_NUMBER = 99
_PAGE_BYTES = 512


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """How large a level's databases are."""

    num_tables: int
    num_names: int
    """Names of an entity pool that occur; fewer are easier to learn to copy."""
    min_rows: int
    max_rows: int
    num_numbers: int
    """Integer columns a table."""
    num_texts: int
    """Word columns a table."""
    has_event_table: bool = False
    """The last table's rows refer to rows of the first."""
    max_event_rows: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """A table: its first column is the key."""

    name: str
    key: str
    numbers: tuple[str, ...]
    texts: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    """Cells in the order of `columns`."""
    reference: str | None = None
    """Column of an event table that holds a key of the table of that name."""

    @property
    def columns(self) -> tuple[str, ...]:
        """All column names, the key first."""
        reference = () if self.reference is None else (self.reference,)
        return (self.key, *reference, *self.numbers, *self.texts)

    def values(self, column: str) -> list[Cell]:
        """One column's cells, in the order of the rows."""
        index = self.columns.index(column)
        return [row[index] for row in self.rows]

    def schema(self) -> str:
        """As the task shows it: `car(model,stock,age,season)`."""
        return f"{self.name}({','.join(self.columns)})"

    def create_statement(self) -> str:
        """The table's definition in SQL."""
        key_type = "TEXT" if self.reference is None else "INTEGER"
        types = {column: "INTEGER" if column in self.numbers else "TEXT" for column in self.columns[1:]}
        columns = ", ".join(f"{column} {kind} NOT NULL" for column, kind in types.items())
        return f"CREATE TABLE {self.name}({self.key} {key_type} PRIMARY KEY, {columns})"


def draw_tables(rng: random.Random, vocabulary: Vocabulary, shape: Shape) -> tuple[Table, ...]:
    """Draws a task's tables.

    Within a column of integers all values differ, so that the largest and the smallest row are unique; a column of
    words holds at least two of them, so that a filter always leaves something out.
    """
    num_entities = shape.num_tables - shape.has_event_table
    names = rng.sample(sorted(vocabulary.entities), num_entities)
    tables = [_draw_entity(rng, vocabulary, shape, name) for name in names]
    if shape.has_event_table:
        tables.append(_draw_event(rng, vocabulary, shape, tables[0]))
    return tuple(tables)


def build(tables: tuple[Table, ...]) -> sqlite3.Connection:
    """A trusted in-memory database of the tables; `serialize` gives its bytes."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.execute(f"PRAGMA page_size={_PAGE_BYTES}")
    connection.execute("BEGIN")
    for table in tables:
        connection.execute(table.create_statement())
        places = ",".join("?" * len(table.columns))
        connection.executemany(f"INSERT INTO {table.name} VALUES ({places})", table.rows)
    connection.execute("COMMIT")
    return connection


def _draw_entity(rng: random.Random, vocabulary: Vocabulary, shape: Shape, name: str) -> Table:
    key, pool = vocabulary.entities[name]
    num_rows = rng.randint(shape.min_rows, shape.max_rows)
    numbers = tuple(rng.sample(vocabulary.numbers, shape.num_numbers))
    texts = tuple(rng.sample(sorted(vocabulary.texts), shape.num_texts))
    keys = rng.sample(pool[: shape.num_names], num_rows)
    columns = [keys, *_draw_cells(rng, vocabulary, numbers, texts, num_rows)]
    return Table(name=name, key=key, numbers=numbers, texts=texts, rows=tuple(zip(*columns, strict=True)))


def _draw_event(rng: random.Random, vocabulary: Vocabulary, shape: Shape, parent: Table) -> Table:
    num_rows = rng.randint(shape.max_rows, shape.max_event_rows)
    free_numbers = [column for column in vocabulary.numbers if column not in parent.numbers]
    free_texts = [column for column in sorted(vocabulary.texts) if column not in parent.texts]
    numbers = tuple(rng.sample(free_numbers, shape.num_numbers))
    texts = tuple(rng.sample(free_texts, 1))
    references = [rng.choice(parent.rows)[0] for _ in range(num_rows)]
    columns = [range(1, num_rows + 1), references, *_draw_cells(rng, vocabulary, numbers, texts, num_rows)]
    return Table(
        name=rng.choice(vocabulary.events), key="id", numbers=numbers, texts=texts,
        rows=tuple(zip(*columns, strict=True)), reference=parent.name,
    )  # fmt: skip


def _draw_cells(
    rng: random.Random, vocabulary: Vocabulary, numbers: tuple[str, ...], texts: tuple[str, ...], num_rows: int
) -> list[list[Cell]]:
    columns: list[list[Cell]] = [list(rng.sample(range(1, MAX_NUMBER + 1), num_rows)) for _ in numbers]
    for column in texts:
        words = vocabulary.texts[column]
        cells: list[Cell] = [rng.choice(words) for _ in range(num_rows)]
        cells[:2] = rng.sample(words, 2)
        columns.append(cells)
    return columns
