"""The query process: `python -I -m segue.envs.sql.query_process <descriptor>`.

Holds the databases of one env worker's episodes, runs the model's SQL on them one query at a time, and can do nothing
else: no new file or socket, no further process, bounded memory and processor time. It starts with an empty environment
and imports the standard library alone. `executor.ProcessExecutor` is its other side:

    limits ->            <- {} when ready
    {op: run, handle, sql}, database attached where this process has not seen it ->    <- QueryReply
    {op: close, handle} ->
"""

import os
import resource
import socket
import sqlite3
import sys
from dataclasses import asdict
from typing import BinaryIO, cast

from segue.envs.frames import Frame, encode_frame, read_frame
from segue.envs.process import die_with_parent
from segue.envs.sql.query import QueryLimits, limit_heap, open_database, run_query

_ADDRESS_SPACE_BYTES = 1024 * 2**20


def main() -> None:
    """Answers frames until the worker closes its side."""
    die_with_parent()
    os.chdir("/")
    connection = socket.socket(fileno=int(sys.argv[1]))
    stream = cast(BinaryIO, connection.makefile("rwb"))
    first = read_frame(stream)
    if first is None:
        return
    limits = QueryLimits(**first.header)
    limit_heap(limits)
    _restrict(connection.fileno())
    stream.write(encode_frame({}))
    stream.flush()
    databases: dict[int, sqlite3.Connection] = {}
    while (frame := read_frame(stream)) is not None:
        if frame.header["op"] == "close":
            databases.pop(frame.header["handle"]).close()
        else:
            stream.write(_run(frame, databases, limits))
            stream.flush()


def _run(frame: Frame, databases: dict[int, sqlite3.Connection], limits: QueryLimits) -> bytes:
    handle = frame.header["handle"]
    if frame.attachments:
        databases[handle] = open_database(frame.attachments[0], limits)
    _allow_cpu_seconds(2.0 * limits.timeout_s)
    return encode_frame(asdict(run_query(databases[handle], frame.header["sql"], limits)))


def _restrict(last_descriptor: int) -> None:
    """Takes away, for good, what running a query does not need."""
    # descriptors that are open stay usable; opening anything further fails
    _limit(resource.RLIMIT_NOFILE, last_descriptor + 1)
    _limit(resource.RLIMIT_AS, _ADDRESS_SPACE_BYTES)
    _limit(resource.RLIMIT_FSIZE, 0)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_NPROC, 0)


def _limit(what: int, value: int) -> None:
    resource.setrlimit(what, (value, value))


def _allow_cpu_seconds(seconds: float) -> None:
    """Lets this process use so many more seconds of processor time; past them the kernel kills it."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(usage.ru_utime + usage.ru_stime + seconds) + 1, hard))


if __name__ == "__main__":
    main()
