"""Environments in the tests' own process, and how good a demonstrator is."""

import itertools
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass

from segue.conf.schema import EnvConfig
from segue.envs.demonstrator import demonstrator_rng
from segue.envs.factory import SQL_ID, EnvFactory
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


def make_env(config: EnvConfig) -> ToolEnv:
    """One environment, without worker or query process."""
    if config.id == SQL_ID:
        return SqlEnv(executor=LocalExecutor(QueryLimits()), **config.kwargs)
    return EnvFactory(config).make()


@dataclass(frozen=True, kw_only=True, slots=True)
class DemonstratorReport:
    """What a demonstrator achieved over a number of tasks."""

    success: float
    """Share of successful episodes."""
    query_correct: float
    """Share of episodes in which a query returned the truth."""
    mean_reward: float


def measure_demonstrator(env: ToolEnv, skill: str, seeds: Iterable[int]) -> DemonstratorReport:
    """Plays the demonstrator on the task of each seed."""
    successes: list[bool] = []
    queries: list[bool] = []
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
        queries.append(info["query_correct"])
        rewards.append(reward)
    num_episodes = len(successes)
    return DemonstratorReport(
        success=sum(successes) / num_episodes,
        query_correct=sum(queries) / num_episodes,
        mean_reward=sum(rewards) / num_episodes,
    )
