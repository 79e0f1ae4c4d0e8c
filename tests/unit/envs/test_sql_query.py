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
from segue.envs.sql.task import Split, make_task

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
        # the same by other names
        "SELECT * FROM temp.sqlite_master",
        "SELECT * FROM sqlite_temp_schema",
        "SELECT * FROM \"pragma_table_info\"('car')",
        "SELECT COUNT(*) FROM `PRAGMA_function_list`",
        "SELECT COUNT(*) FROM [json_each]('[1]')",
        "SELECT COUNT(*) FROM main.json_each('[1]')",
        "SELECT COUNT(*) FROM JSON_TREE('[1]')",
        "SELECT 1 FROM Dbstat",
        "SELECT COUNT(*) FROM fts3tokenize",
        "WITH car AS (SELECT * FROM pragma_database_list) SELECT * FROM car",
        "SELECT json('{}')",
        "SELECT '{}' -> 'a'",
        "SELECT json_extract('{}', '$')",
        "SELECT json_group_array(model) FROM car",
        "SELECT * FROM car WHERE model MATCH 'x'",
        "SELECT sqlite_compileoption_get(1)",
        "SELECT sqlite_source_id()",
        "SELECT sqlite_log(1, 'x')",
        "SELECT last_insert_rowid()",
        # behind a harmless word
        "EXPLAIN DROP TABLE car",
        "EXPLAIN ATTACH '/tmp/segue_escape.db' AS other",
        "; DROP TABLE car",
        "/* SELECT 1 */ DROP TABLE car -- ;",
        "WITH x AS (SELECT 1) DELETE FROM car",
        "INSERT INTO car VALUES ('x', 1, 1.0) RETURNING *",
        "CREATE TABLE t AS SELECT * FROM car",
        "RELEASE s",
        "ROLLBACK",
        "PRAGMA hard_heap_limit=0",
        "PRAGMA temp_store_directory='/tmp'",
        "SELECT edit('x')",
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
        ("SELECT 1;;", "one statement at a time"),
        ("SELECT model FROM car ORDER BY model COLLATE nosuch", "no such collation sequence: nosuch"),
        # letters that only another alphabet folds to these
        ("SELECT \u017ftock FROM car", "no such column: \u017ftock"),
        ("SELECT * FROM \uff43ar", "no such table: \uff43ar"),
        ("SELECT * FROM other.car", "no such table: other.car"),
        ("SELECT CAST(x'ff' AS TEXT)", "Could not decode to UTF-8"),
        ("SELECT char(55296)", "Could not decode to UTF-8"),
        ("SELECT sum(x) FROM (SELECT 9223372036854775807 AS x UNION ALL SELECT 1)", "integer overflow"),
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


def chain(num: int, step: str, first: str = "SELECT stock AS x FROM car") -> str:
    """Common table expressions of which each names the one before twice: work that doubles with each."""
    tables = [f"t0 AS ({first})", *(f"t{i} AS ({step.format(f't{i - 1}')})" for i in range(1, num))]
    return f"WITH {', '.join(tables)} SELECT COUNT(*) FROM t{num - 1}"


CROSSED = ", ".join(f"car c{i}" for i in range(12))
ROW_IDS = " || ".join(f"c{i}.rowid" for i in range(12))
BOMBS = {
    "subqueries": chain(26, "SELECT p.x FROM {0} p, {0} q"),
    "scalars": chain(26, "SELECT (SELECT x FROM {0}) + (SELECT x FROM {0}) AS x"),
    "unions": chain(24, "SELECT x FROM {0} UNION ALL SELECT x FROM {0}"),
    "members": chain(24, "SELECT stock AS x FROM car WHERE x IN {0} OR x IN {0}"),
    "outer joins": chain(24, "SELECT p.x FROM {0} p LEFT JOIN {0} q ON p.x = q.x"),
    "windows": chain(24, "SELECT SUM(x) OVER (ORDER BY x) AS x FROM {0} WHERE x IN (SELECT x FROM {0})"),
    "tables": f"SELECT COUNT(*) FROM {', '.join(f'car c{i}' for i in range(64))}",
    "natural joins": "SELECT COUNT(*) FROM car " + " ".join(f"NATURAL JOIN car c{i}" for i in range(60)),
    "brackets": f"SELECT {'(' * 1500}1{')' * 1500}",
    "negations": f"SELECT {'NOT ' * 900}1",
    "nested selects": f"SELECT * FROM {'(SELECT * FROM ' * 120}car{')' * 120}",
    "replace": f"SELECT SUM(length(replace(c0.model || '{'a' * 3000}', '{'a' * 500}b', 'c'))) FROM {CROSSED}",
    "instr": f"SELECT SUM(instr(c0.model || '{'a' * 1900}', '{'a' * 900}b')) FROM {CROSSED}",
    "like": f"SELECT SUM((c0.model || '{'a' * 3000}') LIKE '{'%a' * 49}b') FROM {CROSSED}",
    "glob": f"SELECT SUM((c0.model || '{'a' * 3000}') GLOB '{'*[a]' * 24}b') FROM {CROSSED}",
    "group_concat": f"SELECT group_concat(c0.model) FROM {CROSSED}",
    "distinct": f"SELECT COUNT(DISTINCT {ROW_IDS} || '{'x' * 3000}') FROM {CROSSED}",
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS.keys())
def test_a_bomb_is_an_error_and_the_next_query_is_answered(executor: ProcessExecutor, bomb: str) -> None:
    handle, neighbour = executor.open(make_database()), executor.open(make_database())
    assert executor.run(neighbour, "SELECT COUNT(*) FROM car").rows == (("3",),)
    reply = executor.run(handle, bomb)
    # which of its bounds is met first depends on the build of SQLite
    assert (reply.rows, bool(reply.error)) == ((), True)
    for each in (handle, neighbour):
        assert executor.run(each, "SELECT COUNT(*) FROM car").rows == (("3",),)


def test_a_query_can_read_nothing_but_its_tables(executor: ProcessExecutor) -> None:
    handle = executor.open(make_task(3, 1, Split.train).database)
    reply = executor.run(handle, "SELECT type, COUNT(*), MAX(sql LIKE 'CREATE TABLE %') FROM sqlite_schema GROUP BY 1")
    # the tables, and the indexes of their keys, which have no text of their own
    assert reply.rows == (("index", "2", "NULL"), ("table", "2", "1"))
    assert executor.run(handle, "SELECT COUNT(*) FROM sqlite_temp_schema").rows == (("0",),)


def test_a_query_process_that_answers_nothing_is_replaced(
    executor: ProcessExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    handles = [executor.open(make_database()) for _ in range(2)]
    for handle in handles:
        executor.run(handle, "SELECT 1")
    child = query_process()
    child.send_signal(signal.SIGSTOP)
    assert executor.run(handles[0], "SELECT 1 --\x1b[2J\nanother line").error == STOPPED
    # a query writes no line of its own into the log, and nothing that a terminal acts on
    assert caplog.messages[-1].endswith(r"'SELECT 1 --\x1b[2J\nanother line'")
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
