"""Runs SQL that a model wrote: a connection that can only read its own tables, and bounded replies.

Used inside the query process (`query_process.py`), which starts with it: it imports the standard library alone.
"""

import functools
import math
import sqlite3
import time
from dataclasses import dataclass

# functions that are deterministic, read nothing but their arguments and take no longer than these are large: printf and
# format are missing, which spend seconds on a width given in ten characters
ALLOWED_FUNCTIONS = frozenset((
    "abs", "avg", "ceil", "ceiling", "char", "coalesce", "count", "cume_dist", "dense_rank", "first_value",
    "floor", "glob", "group_concat", "ifnull", "iif", "instr", "lag", "last_value", "lead", "length",
    "like", "lower", "ltrim", "max", "min", "mod", "nth_value", "ntile", "nullif", "percent_rank",
    "rank", "replace", "round", "row_number", "rtrim", "sign", "sqrt", "substr", "substring", "sum", "total",
    "trim", "trunc", "typeof", "unicode", "upper",
))  # fmt: skip
_SCHEMA_TABLES = frozenset({"sqlite_master", "sqlite_schema"})
_STEPS_BETWEEN_CHECKS = 1_000


@dataclass(frozen=True, kw_only=True, slots=True)
class QueryLimits:
    """Bounds of one query and of its reply."""

    timeout_s: float = 5.0
    """Wall seconds after which SQLite is interrupted; the query process is killed at twice as many."""
    max_steps: int = 5_000_000
    """Instructions of SQLite's machine; unlike the deadline, the same on a slow machine."""
    max_sql_chars: int = 4096
    max_cell_bytes: int = 4096
    """Longest string or blob that SQLite may make; the cost of one instruction, such as `instr`, grows with it."""
    max_heap_bytes: int = 128 * 2**20
    """Memory of SQLite in the whole query process."""
    max_rows: int = 10
    """Rows shown."""
    max_cell_chars: int = 60
    """Characters shown of a cell."""
    max_error_chars: int = 200
    """Characters shown of an error, which may quote the query."""


@dataclass(frozen=True, kw_only=True, slots=True)
class QueryReply:
    """Rows as text, or why there are none."""

    rows: tuple[tuple[str, ...], ...] = ()
    has_more: bool = False
    """Rows were left out."""
    error: str | None = None


def open_database(data: bytes, limits: QueryLimits) -> sqlite3.Connection:
    """A hardened connection to a copy of a database in memory."""
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    connection.deserialize(data)
    connection.execute("PRAGMA temp_store=MEMORY")
    tables = frozenset(row[0] for row in connection.execute("SELECT name FROM sqlite_schema WHERE type='table'"))
    connection.setlimit(sqlite3.SQLITE_LIMIT_SQL_LENGTH, limits.max_sql_chars)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, limits.max_cell_bytes)
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    connection.setlimit(sqlite3.SQLITE_LIMIT_EXPR_DEPTH, 50)
    connection.setlimit(sqlite3.SQLITE_LIMIT_COMPOUND_SELECT, 10)
    connection.setlimit(sqlite3.SQLITE_LIMIT_COLUMN, 50)
    connection.setlimit(sqlite3.SQLITE_LIMIT_FUNCTION_ARG, 20)
    connection.setlimit(sqlite3.SQLITE_LIMIT_VDBE_OP, 25_000)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 100)
    connection.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 0)
    connection.setlimit(sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH, 0)
    connection.setlimit(sqlite3.SQLITE_LIMIT_WORKER_THREADS, 0)
    connection.set_authorizer(_Authorizer(tables | _SCHEMA_TABLES))
    return connection


def limit_heap(limits: QueryLimits) -> None:
    """Bounds the memory of every database in this process, for good."""
    connection = sqlite3.connect(":memory:")
    connection.execute(f"PRAGMA hard_heap_limit={limits.max_heap_bytes}")
    connection.close()


def run_query(connection: sqlite3.Connection, sql: str, limits: QueryLimits) -> QueryReply:
    """Runs one statement; SQLite's own complaints are the reply's `error`."""
    budget = _Budget(limits)
    connection.set_progress_handler(budget.is_spent, _STEPS_BETWEEN_CHECKS)
    cursor = connection.cursor()
    try:
        cursor.execute(sql)
        raw_rows = cursor.fetchmany(limits.max_rows + 1)
    except (sqlite3.Error, sqlite3.Warning, UnicodeEncodeError, OverflowError) as error:
        return QueryReply(error=_cut(budget.reason or str(error), limits.max_error_chars))
    except MemoryError:
        return QueryReply(error="out of memory")
    finally:
        # what stays open in the cursor keeps memory and the last statement alive
        cursor.close()
    rows = tuple(
        tuple(_cut(render_cell(cell), limits.max_cell_chars) for cell in row) for row in raw_rows[: limits.max_rows]
    )
    return QueryReply(rows=rows, has_more=len(raw_rows) > limits.max_rows)


def render_cell(value: int | float | str | bytes | None) -> str:
    """A cell as text: the rule by which answers are compared.

    Integers in full; reals with at most four decimals and no trailing zeros; text as it is; NULL; blobs as x'..'.

    Example:
        >>> [render_cell(v) for v in (57, 12.5, 12.0, 1 / 3, None, b"a")]
        ['57', '12.5', '12', '0.3333', 'NULL', "x'61'"]
    """
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    if isinstance(value, float) and math.isfinite(value):
        # adding zero turns -0.0 into 0.0
        return f"{round(value, 4) + 0.0:.4f}".rstrip("0").rstrip(".")
    return str(value)


class _Authorizer:
    """Allows SELECT on the database's own tables and the listed functions; denies every other action."""

    def __init__(self, tables: frozenset[str]) -> None:
        self._tables = frozenset(table.lower() for table in tables)
        self._modules = _virtual_table_modules()

    def __call__(self, action: int, first: str | None, second: str | None, *_: str | None) -> int:
        if action == sqlite3.SQLITE_SELECT:
            is_allowed = True
        elif action == sqlite3.SQLITE_READ:
            is_allowed = self._may_read((first or "").lower(), second or "")
        elif action == sqlite3.SQLITE_FUNCTION:
            is_allowed = (second or "").lower() in ALLOWED_FUNCTIONS
        else:
            is_allowed = False
        return sqlite3.SQLITE_OK if is_allowed else sqlite3.SQLITE_DENY

    def _may_read(self, table: str, column: str) -> bool:
        if table in self._tables:
            return True
        # `SELECT COUNT(*) FROM x` reports no column; x may be a common table expression, but no virtual table
        return column == "" and table not in self._modules and not table.startswith("pragma_")


@functools.cache
def _virtual_table_modules() -> frozenset[str]:
    """Virtual tables of this build of SQLite, which exist in every database without being created."""
    connection = sqlite3.connect(":memory:")
    try:
        return frozenset(row[0].lower() for row in connection.execute("PRAGMA module_list"))
    finally:
        connection.close()


class _Budget:
    """Counts instructions and seconds of one query."""

    def __init__(self, limits: QueryLimits) -> None:
        self.reason: str | None = None
        self._limits = limits
        self._num_steps = 0
        self._deadline = time.monotonic() + limits.timeout_s

    def is_spent(self) -> bool:
        """True stops the query."""
        self._num_steps += _STEPS_BETWEEN_CHECKS
        if self._num_steps >= self._limits.max_steps:
            self.reason = f"query needs more than {self._limits.max_steps} steps"
        elif time.monotonic() >= self._deadline:
            self.reason = f"query took longer than {self._limits.timeout_s:g} s"
        return self.reason is not None


def _cut(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else f"{text[:max_chars]}…"
