"""The environment `sql` whose calls take their time now and then, for `bench_simulate.py`."""

import time
from typing import Any

import gymnasium
import numpy as np
from soak_env import shared_executor

from segue.actors.simulation.workload import draw
from segue.conf.schema import SpreadConfig
from segue.envs.sql.env import SqlEnv
from segue.envs.tool_env import ToolResult


class SlowSqlEnv(SqlEnv):
    """`sql` with a pause, drawn anew, before every call."""

    def __init__(self, *, median_s: float, tail: float, **kwargs: Any) -> None:
        """Builds the environment.

        Args:
            median_s: of a pause, seconds.
            tail: its 99th percentile over the median.
            kwargs: of `SqlEnv`.
        """
        super().__init__(executor=shared_executor(), **kwargs)
        self._pause = SpreadConfig(median=median_s, tail=tail)
        self._rng = np.random.default_rng()

    def call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        """Pauses, then runs the call."""
        (pause_s,) = draw(self._pause, 1, self._rng)
        time.sleep(pause_s)
        return super().call(name, arguments)


gymnasium.register(id="SlowSql-v0", entry_point=SlowSqlEnv)
