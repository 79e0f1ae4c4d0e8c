"""Where a task's queries run: in this process (our own SQL), or in the query process (a model's)."""

import itertools
import sqlite3
from typing import Protocol

from segue.envs.sql.query import QueryLimits, QueryReply, open_database, run_query


class QueryExecutor(Protocol):
    """Holds databases and runs queries on them."""

    def open(self, database: bytes) -> int:
        """Takes a database; returns the handle that names it."""
        ...

    def run(self, handle: int, sql: str) -> QueryReply:
        """Runs one query; never raises for what the query is."""
        ...

    def close(self, handle: int) -> None:
        """Forgets a database."""
        ...


class LocalExecutor:
    """Runs queries in this process, with the same authorizer and limits but nothing to kill.

    For demonstrations, whose SQL we wrote, and for tests; a model's SQL belongs in the query process.
    """

    def __init__(self, limits: QueryLimits) -> None:
        self._limits = limits
        self._connections: dict[int, sqlite3.Connection] = {}
        self._handles = itertools.count()

    def open(self, database: bytes) -> int:
        """Opens a hardened connection at once."""
        handle = next(self._handles)
        self._connections[handle] = open_database(database, self._limits)
        return handle

    def run(self, handle: int, sql: str) -> QueryReply:
        """Runs one query on its connection."""
        return run_query(self._connections[handle], sql, self._limits)

    def close(self, handle: int) -> None:
        """Closes the connection."""
        self._connections.pop(handle).close()
