"""The environment `sql`: answer a question by querying a real database through tools."""

import random
from typing import Any

from segue.envs.sql.executor import QueryExecutor
from segue.envs.sql.expert import answer_turn, query_turn
from segue.envs.sql.query import QueryReply
from segue.envs.sql.task import Split, SqlTask, check_level, make_task
from segue.envs.tool import tool
from segue.envs.tool_env import Task, ToolEnv, ToolResult
from segue.envs.truth import PROCESS_REWARD, check_rates, grade_answer, is_fallible


class SqlEnv(ToolEnv):
    """Questions over SQLite databases that are drawn from the seed.

    Reward terms:
        success: on the answer; 1 if it equals the truth after trimming white space, else 0.
        process: once, on the first query whose rows are exactly the truth; 0.1. A query that merely runs earns
            nothing, and nothing is lost by answering, so no behaviour without an answer is worth more than one with it.
        efficiency: on a right answer; 0.1 less a quarter of it for each call beyond two, at least 0.

    Info: `question_class`, `level`, `split`, `truth` with the task; `query_correct` (a query returned exactly the
    truth) with the task and every step; `is_success` with the last.

    Reset options: `level` and `split` override the constructor's for one episode.
    """

    def __init__(
        self,
        *,
        executor: QueryExecutor,
        level: int = 1,
        split: str = "train",
        max_calls: int = 8,
        slip_rate: float = 0.25,
        sloppy_rate: float = 0.65,
    ) -> None:
        """Builds the environment; the databases are made at reset.

        Args:
            executor: runs the queries.
            level: 1 (single cells and plain aggregates), 2 (ordering, filters, groups) or 3 (joins).
            split: a member of `Split`.
            max_calls: tool calls after which an episode is truncated.
            slip_rate: probability that the fallible demonstrator writes a wrong query; in [0, 1].
            sloppy_rate: probability that it answers in a form that the verifier refuses; in [0, 1].
        """
        check_rates(slip_rate=slip_rate, sloppy_rate=sloppy_rate)
        check_level(level)
        self.max_calls = max_calls
        self._executor = executor
        self._level = level
        self._split = Split(split)
        self._slip_rate = slip_rate
        self._sloppy_rate = sloppy_rate
        self._task: SqlTask | None = None
        self._handle: int | None = None
        self._last_reply: QueryReply | None = None
        self._is_query_correct = False

    def begin(self, seed: int, options: dict[str, Any]) -> Task:
        """Draws the seed's database and question.

        Raises:
            ValueError: an option is unknown or out of range.
        """
        unknown = set(options) - {"level", "split"}
        if unknown:
            raise ValueError(f"reset options of sql may be level and split, got {sorted(unknown)}")
        level = options.get("level", self._level)
        split = Split(options["split"]) if "split" in options else self._split
        task = make_task(seed, level, split)
        self.close()
        self._task, self._handle = task, self._executor.open(task.database)
        self._last_reply, self._is_query_correct = None, False
        info = {
            "question_class": task.question.kind, "level": level, "split": split.value, "truth": task.truth,
            "query_correct": False,
        }  # fmt: skip
        return Task(user=task.text(), info=info)

    @tool("List tables.")
    def list_tables(self) -> ToolResult:
        """Names of the tables."""
        return ToolResult(observation=" ".join(table.name for table in self._running.tables))

    @tool("Show columns.")
    def describe_table(self, table: str) -> ToolResult:
        """Columns of a table with their types."""
        found = next((known for known in self._running.tables if known.name == table), None)
        return ToolResult(observation=f"error: no such table: {table}" if found is None else found.create_statement())

    @tool("Run SQL.")
    def query(self, sql: str) -> ToolResult:
        """Rows of a SELECT: a row a line, cells apart by `|`."""
        assert self._handle is not None
        reply = self._executor.run(self._handle, sql)
        self._last_reply = reply
        is_truth = reply.error is None and not reply.has_more and reply.rows == ((self._running.truth,),)
        terms = {"process": PROCESS_REWARD} if is_truth and not self._is_query_correct else {}
        self._is_query_correct |= is_truth
        return ToolResult(observation=_render(reply), reward_terms=terms)

    @tool("Answer.")
    def answer(self, value: str) -> ToolResult:
        """Ends the episode."""
        return grade_answer(value, self._running.truth, self._num_calls)

    def progress(self) -> dict[str, Any]:
        """Whether a query has returned the truth."""
        return {"query_correct": self._is_query_correct}

    def expert(self, skill: str, rng: random.Random) -> dict[str, Any]:
        """Queries, then answers from the rows that were returned."""
        errs = is_fallible(skill)
        if self._last_reply is None:
            return query_turn(self._running.question, self._slip_rate if errs else 0.0, rng)
        return answer_turn(self._last_reply, self._sloppy_rate if errs else 0.0, rng)

    def close(self) -> None:
        """Gives the episode's database back."""
        if self._handle is not None:
            self._executor.close(self._handle)
            self._handle = None

    @property
    def _running(self) -> SqlTask:
        assert self._task is not None, "reset draws the task"
        return self._task


def _render(reply: QueryReply) -> str:
    if reply.error is not None:
        return f"error: {reply.error}"
    lines = ["|".join(row) for row in reply.rows] or ["none"]
    return "\n".join([*lines, "…"] if reply.has_more else lines)
