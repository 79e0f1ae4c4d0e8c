"""The environment `sql` whose calls take their time now and then, for `bench_simulate.py`."""

import math
import random
import time
from typing import Any

import gymnasium
from soak_env import shared_executor

from segue.envs.sql.env import SqlEnv
from segue.envs.tool_env import ToolResult

# the 99th percentile of the standard normal distribution
_Z99 = 2.3263478740408408


class SlowSqlEnv(SqlEnv):
    """`sql` with a lognormal pause, drawn anew, before every call."""

    def __init__(self, *, median_s: float, tail: float, **kwargs: Any) -> None:
        """Builds the environment.

        Args:
            median_s: of a pause, seconds.
            tail: its 99th percentile over the median.
            kwargs: of `SqlEnv`.
        """
        super().__init__(executor=shared_executor(), **kwargs)
        self._log_median = math.log(median_s)
        self._sigma = math.log(tail) / _Z99
        self._pauses = random.Random()

    def call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        """Pauses, then runs the call."""
        time.sleep(self._pauses.lognormvariate(self._log_median, self._sigma))
        return super().call(name, arguments)


gymnasium.register(id="SlowSql-v0", entry_point=SlowSqlEnv)
