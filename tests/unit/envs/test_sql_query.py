"""What a model's SQL may do, on the hardened connection itself and through the query process."""

import os
import resource
import signal
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from env_cases import LocalExecutor

from segue.envs.errors import InfrastructureFailure
from segue.envs.sql.executor import ProcessExecutor
from segue.envs.sql.query import QueryLimits, QueryReply, open_database, render_cell, run_query

SCRIPT = """
CREATE TABLE car(model TEXT PRIMARY KEY, stock INTEGER, price REAL);
INSERT INTO car VALUES ('clio', 37, 1.5), ('golf', 12, NULL), ('polo', 5, 3.0);
"""
LIMITS = QueryLimits(timeout_s=1.0)
STOPPED = "query stopped: it went beyond its limits of time or memory"


def make_database() -> bytes:
    connection = sqlite3.connect(":memory:")
    connection.executescript(SCRIPT)
    return connection.serialize()


def run(sql: str, limits: QueryLimits = LIMITS) -> QueryReply:
    return run_query(open_database(make_database(), limits), sql, limits)


@pytest.fixture
def executor() -> Iterator[ProcessExecutor]:
    before = set(psutil.Process().children())
    process = ProcessExecutor(LIMITS, start_timeout_s=60.0)
    yield process
    process.stop()
    # a zombie is still a child
    assert set(psutil.Process().children()) <= before


def query_process() -> psutil.Process:
    """The query process of this test; other tests may have left other children."""
    (child,) = (child for child in psutil.Process().children() if "segue.envs.sql.query_process" in child.cmdline())
    return child


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("SELECT stock FROM car WHERE model='clio'", (("37",),)),
        # 37 + 12 + 5
        ("SELECT SUM(stock) FROM car", (("54",),)),
        ("SELECT model, price FROM car ORDER BY stock", (("polo", "3"), ("golf", "NULL"), ("clio", "1.5"))),
        ("WITH big AS (SELECT * FROM car WHERE stock > 10) SELECT COUNT(*) FROM big", (("2",),)),
        ("SELECT a.model FROM car a JOIN car b ON a.stock > b.stock WHERE b.model='golf'", (("clio",),)),
        ("SELECT upper(model), RANK() OVER (ORDER BY stock) FROM car LIMIT 1", (("POLO", "1"),)),
        ("SELECT name FROM sqlite_master WHERE type='table'", (("car",),)),
        ("SELECT x'00ff', 1e999, -0.0, 9223372036854775807", (("x'00ff'", "inf", "0", "9223372036854775807"),)),
        ("SELECT model FROM car WHERE stock > 100", ()),
    ],
)
def test_reading_is_allowed(sql: str, rows: tuple[tuple[str, ...], ...]) -> None:
    assert run(sql) == QueryReply(rows=rows)


@pytest.mark.parametrize(
    "sql",
    [
        "ATTACH '/tmp/segue_escape.db' AS other",
        "DETACH main",
        "VACUUM",
        "VACUUM INTO '/tmp/segue_escape.db'",
        "PRAGMA table_info(car)",
        "PRAGMA writable_schema=ON",
        "SELECT * FROM pragma_table_info('car')",
        "SELECT COUNT(*) FROM pragma_database_list",
        "SELECT COUNT(*) FROM dbstat",
        "SELECT * FROM sqlite_stmt",
        "SELECT value FROM json_each('[1]')",
        "SELECT load_extension('/tmp/x.so')",
        "SELECT writefile('/tmp/segue_escape.db', 'x')",
        "SELECT readfile('/etc/passwd')",
        "SELECT fts3_tokenizer('simple')",
        "SELECT zeroblob(100)",
        "SELECT randomblob(100)",
        "SELECT random()",
        "SELECT model FROM car ORDER BY RANDOM()",
        "SELECT printf('%.2000000000c', 'a')",
        "SELECT format('%2000000000d', 1)",
        "SELECT CURRENT_TIMESTAMP",
        "SELECT date('now')",
        "SELECT sqlite_version()",
        "INSERT INTO car VALUES ('x', 1, 1.0)",
        "REPLACE INTO car VALUES ('clio', 1, 1.0)",
        "UPDATE car SET stock=0",
        "DELETE FROM car",
        "DROP TABLE car",
        "ALTER TABLE car ADD COLUMN x",
        "CREATE TABLE t(x)",
        "CREATE TEMP TABLE t(x)",
        "CREATE VIEW v AS SELECT 1",
        "CREATE TRIGGER t AFTER INSERT ON car BEGIN SELECT 1; END",
        "CREATE VIRTUAL TABLE t USING fts5(x)",
        "CREATE INDEX i ON car(stock)",
        "REINDEX",
        "ANALYZE",
        "BEGIN",
        "COMMIT",
        "SAVEPOINT s",
        "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM r) SELECT COUNT(*) FROM r",
        "UPDATE sqlite_master SET sql='x'",
    ],
)
def test_everything_else_is_denied_and_changes_nothing(sql: str) -> None:
    connection = open_database(make_database(), LIMITS)
    before = connection.serialize()
    reply = run_query(connection, sql, LIMITS)
    assert reply.rows == ()
    # denied by the authorizer, unknown to this build, or refused because writing has no transaction
    reasons = (
        "not authorized",
        "authorization denied",
        "no such function",
        "prohibited",
        "vtable",
        "may not be modified",
    )
    assert any(reason in str(reply.error) for reason in reasons), reply.error
    assert connection.serialize() == before
    assert not Path("/tmp/segue_escape.db").exists()


@pytest.mark.parametrize(
    ("sql", "error"),
    [
        ("SELEC 1", 'near "SELEC": syntax error'),
        ("SELECT wheels FROM car", "no such column: wheels"),
        ("SELECT * FROM truck", "no such table: truck"),
        ("SELECT 1; SELECT 2", "one statement at a time"),
        ("SELECT 'a\0b'", "null character"),
        ("\ud800", "surrogates not allowed"),
        ("SELECT ?", "too many SQL variables"),
        ("SELECT '" + "x" * 10_000 + "'", "query string is too large"),
        ("SELECT " + "+".join("1" * 200), "depth"),
        ("SELECT 1" + " UNION SELECT 1" * 30, "too many terms in compound SELECT"),
        ("SELECT " + ",".join("1" * 100), "too many columns"),
        ("SELECT * FROM car WHERE model LIKE '" + "%a" * 200 + "'", "pattern too complex"),
        ("SELECT replace(replace(hex, 'a', 'aaaaaaaaaa'), 'a', 'aaaaaaaaaa') FROM (SELECT '" + "a" * 3000 + "' AS hex)",
         "string or blob too big"),
        # 5,000 characters: the work of one instruction is bounded with the length of a value
        ("SELECT replace('" + "a" * 1000 + "', 'a', 'bbbbb')", "string or blob too big"),
    ],
)  # fmt: skip
def test_sqlite_says_what_is_wrong(sql: str, error: str) -> None:
    reply = run(sql)
    assert reply.rows == ()
    assert error in str(reply.error)
    assert len(str(reply.error)) <= LIMITS.max_error_chars + 1


def test_a_query_stops_at_its_steps_whatever_the_machine() -> None:
    bomb = "SELECT COUNT(*) FROM car " + " ".join(f"JOIN car c{i}" for i in range(30))
    limits = QueryLimits(max_steps=50_000, timeout_s=60.0)
    assert run(bomb, limits).error == "query needs more than 50000 steps"
    limits = QueryLimits(max_steps=10**15, timeout_s=0.1)
    assert run(bomb, limits).error == "query took longer than 0.1 s"
    # the connection is good for the next query
    connection = open_database(make_database(), LIMITS)
    assert run_query(connection, bomb, QueryLimits(max_steps=50_000)).error is not None
    assert run_query(connection, "SELECT 1", LIMITS).rows == (("1",),)


def test_rows_and_cells_shown_are_bounded() -> None:
    limits = QueryLimits(max_rows=2, max_cell_chars=3)
    reply = run("SELECT model FROM car ORDER BY model", limits)
    assert reply == QueryReply(rows=(("cli…",), ("gol…",)), has_more=True)
    assert run("SELECT model FROM car LIMIT 2", limits).has_more is False


@pytest.mark.parametrize(
    ("value", "text"),
    [(5, "5"), (-3, "-3"), (2.0, "2"), (2.5, "2.5"), (2 / 3, "0.6667"), (-0.00001, "0"), (1e15, "1000000000000000"),
     ("it", "it"), (None, "NULL"), (b"\x01", "x'01'"), (float("-inf"), "-inf")],
)  # fmt: skip
def test_cells_are_rendered_by_one_rule(value: int | float | str | bytes | None, text: str) -> None:
    assert render_cell(value) == text


def test_the_query_process_answers_as_this_process_does(executor: ProcessExecutor) -> None:
    local = LocalExecutor(LIMITS)
    here, there = local.open(make_database()), executor.open(make_database())
    for sql in ("SELECT * FROM car", "SELECT x", "DROP TABLE car", "SELECT 'é', 1.5, NULL", "SELECT '\ud800'"):
        assert executor.run(there, sql) == local.run(here, sql)


def test_a_query_process_that_cannot_be_replaced_is_an_infrastructure_failure(
    executor: ProcessExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = executor.open(make_database())
    assert executor.run(handle, "SELECT COUNT(*) FROM car").rows == (("3",),)
    process = query_process()
    process.kill()
    process.wait(5)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(InfrastructureFailure, match=r"the query process could not be replaced: .*No such file"):
        executor.run(handle, "SELECT COUNT(*) FROM car")
    monkeypatch.undo()
    assert executor.run(handle, "SELECT COUNT(*) FROM car").rows == (("3",),)


def test_databases_stay_apart_and_closed_ones_are_forgotten(executor: ProcessExecutor) -> None:
    other = sqlite3.connect(":memory:")
    other.executescript("CREATE TABLE dog(name TEXT); INSERT INTO dog VALUES ('rex')")
    first, second = executor.open(make_database()), executor.open(other.serialize())
    assert executor.run(first, "SELECT COUNT(*) FROM car").rows == (("3",),)
    assert executor.run(second, "SELECT name FROM dog").rows == (("rex",),)
    assert executor.run(second, "SELECT * FROM car").error == "no such table: car"
    executor.close(first)
    with pytest.raises(KeyError):
        executor.run(first, "SELECT 1")
    assert executor.run(second, "SELECT name FROM dog").rows == (("rex",),)


def test_the_query_process_has_nothing_to_use(executor: ProcessExecutor) -> None:
    executor.run(executor.open(make_database()), "SELECT 1")
    child = query_process()
    assert child.environ() == {}
    assert child.cwd() == "/"
    descriptors = [int(name) for name in os.listdir(f"/proc/{child.pid}/fd")]
    # no room for a further descriptor
    assert resource.prlimit(child.pid, resource.RLIMIT_NOFILE) == (max(descriptors) + 1, max(descriptors) + 1)
    for limit in (resource.RLIMIT_FSIZE, resource.RLIMIT_NPROC, resource.RLIMIT_CORE):
        assert resource.prlimit(child.pid, limit) == (0, 0)
    assert resource.prlimit(child.pid, resource.RLIMIT_AS)[0] == 2**30
    # 2 x timeout_s more than it has used, a second at most: 2 + 1 + 1
    assert resource.prlimit(child.pid, resource.RLIMIT_CPU)[0] <= 4


def test_memory_of_sqlite_is_bounded() -> None:
    process = ProcessExecutor(
        QueryLimits(max_heap_bytes=2 * 2**20, max_steps=10**12, timeout_s=20.0), start_timeout_s=60
    )
    handle = process.open(make_database())
    bomb = f"SELECT a.model || '{' ' * 500}' AS x FROM car a " + " ".join(f"JOIN car c{i}" for i in range(12))
    assert process.run(handle, f"{bomb} ORDER BY x").error == "out of memory"
    assert process.run(handle, "SELECT COUNT(*) FROM car").rows == (("3",),)
    process.stop()


def test_a_query_process_that_answers_nothing_is_replaced(executor: ProcessExecutor) -> None:
    handles = [executor.open(make_database()) for _ in range(2)]
    for handle in handles:
        executor.run(handle, "SELECT 1")
    child = query_process()
    child.send_signal(signal.SIGSTOP)
    assert executor.run(handles[0], "SELECT 1").error == STOPPED
    assert not child.is_running()
    # both databases are in the new process
    for handle in handles:
        assert executor.run(handle, "SELECT COUNT(*) FROM car").rows == (("3",),)


def test_a_query_process_killed_between_queries_is_replaced_unnoticed(executor: ProcessExecutor) -> None:
    handle = executor.open(make_database())
    executor.run(handle, "SELECT 1")
    child = query_process()
    os.kill(child.pid, signal.SIGKILL)
    # not reaped: only the executor may do that
    while child.status() != psutil.STATUS_ZOMBIE:
        pass
    assert executor.run(handle, "SELECT COUNT(*) FROM car").rows == (("3",),)


def test_closing_after_the_process_died_is_harmless(executor: ProcessExecutor) -> None:
    handle, other = executor.open(make_database()), executor.open(make_database())
    executor.run(handle, "SELECT 1")
    child = query_process()
    os.kill(child.pid, signal.SIGKILL)
    while child.status() != psutil.STATUS_ZOMBIE:
        pass
    executor.close(handle)
    assert executor.run(other, "SELECT 1").rows == (("1",),)
