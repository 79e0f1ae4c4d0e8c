"""Environments in the tests' own process, and how good a demonstrator is."""

import builtins
import csv
import io
import itertools
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from segue.conf.schema import EnvConfig
from segue.envs.demonstrator import demonstrator_rng
from segue.envs.factory import PYTHON_ID, SQL_ID, EnvFactory
from segue.envs.python.env import PythonEnv
from segue.envs.python.program import ProgramReply
from segue.envs.sql.env import SqlEnv
from segue.envs.sql.query import QueryLimits, QueryReply, open_database, run_query
from segue.envs.tool import ToolCall
from segue.envs.tool_env import ToolEnv


class LocalExecutor:
    """Runs queries in this process, with the same authorizer and limits but nothing to kill."""

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


class LocalRunner:
    """Runs what demonstrators write in this process, with the few builtins that they use; anything else fails.

    No sandbox: it keeps random text from doing anything, not somebody who means to.
    """

    _NAMES = ("int", "len", "max", "min", "range", "sorted", "sum")

    def run(self, code: str, files: Mapping[str, bytes]) -> ProgramReply:
        """Runs one program; `open` knows the files alone, `import` the module csv."""
        output = io.StringIO()
        names = {name: getattr(builtins, name) for name in self._NAMES}
        names |= {
            "open": lambda name: io.StringIO(files[name].decode()),
            "print": lambda *values: print(*values, file=output),
            "__import__": lambda name, *_: {"csv": csv}[name],
        }
        try:
            exec(compile(code, "/main.py", "exec"), {"__builtins__": names})
        except Exception as error:
            return ProgramReply(output=f"{output.getvalue()}{type(error).__name__}\n", exit_status=1)
        return ProgramReply(output=output.getvalue(), exit_status=0)


def make_env(config: EnvConfig) -> ToolEnv:
    """One environment, without worker, query process or sandbox."""
    if config.id == PYTHON_ID:
        return PythonEnv(runner=LocalRunner(), **config.kwargs)
    if config.id == SQL_ID:
        return SqlEnv(executor=LocalExecutor(QueryLimits()), **config.kwargs)
    return EnvFactory(config).make()


@dataclass(frozen=True, kw_only=True, slots=True)
class DemonstratorReport:
    """What a demonstrator achieved over a number of tasks."""

    success: float
    """Share of successful episodes."""
    tool_correct: float
    """Share of episodes in which a query or a program gave the truth."""
    mean_reward: float


def measure_demonstrator(
    env: ToolEnv, skill: str, seeds: Iterable[int], check: str = "query_correct"
) -> DemonstratorReport:
    """Plays the demonstrator on the task of each seed; `check` is the info that says whether a tool gave the truth."""
    successes: list[bool] = []
    tools: list[bool] = []
    rewards: list[float] = []
    for seed in seeds:
        env.reset(seed=seed)
        reward, num_steps, has_ended = 0.0, 0, False
        while not has_ended:
            for call in env.expert(skill, demonstrator_rng(seed, num_steps))["calls"]:
                _, step_reward, terminated, truncated, info = env.step(ToolCall(**call))
                reward += step_reward
                num_steps += 1
                has_ended = terminated or truncated
                if has_ended:
                    break
        successes.append(info["is_success"])
        tools.append(info[check])
        rewards.append(reward)
    num_episodes = len(successes)
    return DemonstratorReport(
        success=sum(successes) / num_episodes,
        tool_correct=sum(tools) / num_episodes,
        mean_reward=sum(rewards) / num_episodes,
    )
