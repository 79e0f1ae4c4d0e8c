"""The environment `sql` with trouble on demand, for `soak.py`.

Somebody touches a file in the folder `trouble`; the first tool call that finds it, of whichever worker, takes it away
and has that trouble. Calls that begin an episode have none, or a run would not start.
"""

import functools
import time
from enum import Enum
from pathlib import Path
from typing import Any

import gymnasium

from segue.envs.sql.env import SqlEnv
from segue.envs.sql.executor import ProcessExecutor
from segue.envs.sql.query import QueryLimits
from segue.envs.tool_env import ToolResult

HANG_S = 3600.0
_START_TIMEOUT_S = 60.0


class Trouble(Enum):
    """What a call has; its value is the file's name."""

    hang = "hang"
    """It never returns."""
    dawdle = "dawdle"
    """It is slow, but within its deadline."""
    fail = "fail"
    """It raises."""


@functools.cache
def shared_executor() -> ProcessExecutor:
    """One query process for all episodes of an env worker."""
    return ProcessExecutor(QueryLimits(), start_timeout_s=_START_TIMEOUT_S)


class SoakSqlEnv(SqlEnv):
    """See the module."""

    def __init__(self, *, trouble: str, dawdle_s: float, **kwargs: Any) -> None:
        """Builds the environment.

        Args:
            trouble: folder in which the files appear.
            dawdle_s: seconds of a slow call.
            kwargs: of `SqlEnv`.
        """
        super().__init__(executor=shared_executor(), **kwargs)
        self._trouble = Path(trouble)
        self._dawdle_s = dawdle_s

    def call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        """Runs the call, unless there is trouble."""
        for trouble in Trouble:
            if self._takes(trouble):
                self._have(trouble)
        return super().call(name, arguments)

    def _takes(self, trouble: Trouble) -> bool:
        try:
            (self._trouble / trouble.value).unlink()
        except FileNotFoundError:
            return False
        return True

    def _have(self, trouble: Trouble) -> None:
        if trouble is Trouble.fail:
            raise RuntimeError("the soak had this call fail")
        time.sleep(HANG_S if trouble is Trouble.hang else self._dawdle_s)


gymnasium.register(id="SoakSql-v0", entry_point=SoakSqlEnv)
