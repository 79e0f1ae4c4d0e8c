"""Where a task's queries run: in the query process."""

import contextlib
import itertools
import logging
import socket
import subprocess
from dataclasses import asdict
from typing import BinaryIO, Protocol, cast

from segue.envs.errors import InfrastructureFailure
from segue.envs.frames import Frame, FrameError, encode_frame, read_frame
from segue.envs.process import kill, start_module
from segue.envs.sql.query import QueryLimits, QueryReply

logger = logging.getLogger(__name__)


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


class ProcessExecutor:
    """Runs queries in one long-lived query process, which is killed and replaced when a query breaks out of its limits.

    The process is started by the first query and holds a copy of each open database; a replacement is given a
    database again when the next query names it.
    """

    def __init__(self, limits: QueryLimits, *, start_timeout_s: float) -> None:
        self._limits = limits
        self._start_timeout_s = start_timeout_s
        self._databases: dict[int, bytes] = {}
        self._handles = itertools.count()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._stream: BinaryIO | None = None
        self._loaded: set[int] = set()

    def open(self, database: bytes) -> int:
        """Remembers a database; the first query takes it to the process."""
        handle = next(self._handles)
        self._databases[handle] = database
        return handle

    def run(self, handle: int, sql: str) -> QueryReply:
        """Runs one query; a process that dies or says nothing in time is an error of the query.

        Raises:
            InfrastructureFailure: there is no process, and none could be started.
        """
        if self._process is not None and self._process.poll() is not None:
            # it was killed between two queries: no fault of this one
            self.stop()
        if self._process is None:
            try:
                self.start()
            except (OSError, FrameError) as error:
                raise InfrastructureFailure(f"the query process could not be replaced: {error}") from error
        attachments = () if handle in self._loaded else (self._databases[handle],)
        self._loaded.add(handle)
        try:
            frame = self._exchange(encode_frame({"op": "run", "handle": handle, "sql": sql}, attachments))
        except (OSError, FrameError) as error:
            status = self.stop()
            logger.warning("query process replaced (exit status %s, %s) after: %.200r", status, error, sql)
            return QueryReply(error="query stopped: it went beyond its limits of time or memory")
        rows = tuple(tuple(row) for row in frame.header["rows"])
        return QueryReply(rows=rows, has_more=frame.header["has_more"], error=frame.header["error"])

    def close(self, handle: int) -> None:
        """Forgets a database here and in the process."""
        del self._databases[handle]
        if handle in self._loaded:
            self._loaded.remove(handle)
            # a dead process has forgotten it already; the next query notices
            with contextlib.suppress(OSError):
                self._write(encode_frame({"op": "close", "handle": handle}))

    def start(self) -> None:
        """Starts the query process.

        Raises:
            OSError, FrameError: it did not start in time.
        """
        self._process, self._socket = start_module("segue.envs.sql.query_process", flags=("-I",), environment={})
        self._stream = cast(BinaryIO, self._socket.makefile("rwb"))
        self._socket.settimeout(self._start_timeout_s)
        try:
            self._exchange(encode_frame(asdict(self._limits)))
        except (OSError, FrameError):
            self.stop()
            raise
        # twice the time after which SQLite should have stopped by itself
        self._socket.settimeout(2.0 * self._limits.timeout_s)

    def stop(self) -> int | None:
        """Kills the query process, if there is one; returns its exit status."""
        if self._process is None or self._stream is None or self._socket is None:
            return None
        status = kill(self._process)
        self._socket.close()
        # what was not sent is of no interest any more
        with contextlib.suppress(OSError):
            self._stream.close()
        self._process = self._socket = self._stream = None
        self._loaded.clear()
        return status

    def _exchange(self, request: bytes) -> Frame:
        assert self._stream is not None
        self._write(request)
        reply = read_frame(self._stream)
        if reply is None:
            raise ConnectionResetError("the query process closed its side")
        return reply

    def _write(self, request: bytes) -> None:
        assert self._stream is not None
        self._stream.write(request)
        self._stream.flush()
