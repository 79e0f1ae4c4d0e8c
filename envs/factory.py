"""From a configuration to an environment."""

from segue.conf.schema import EnvConfig
from segue.envs.sql.env import SqlEnv
from segue.envs.sql.executor import LocalExecutor
from segue.envs.sql.query import QueryLimits
from segue.envs.tool_env import ToolEnv

SQL_ID = "sql"


def make_env(config: EnvConfig) -> ToolEnv:
    """An environment in this process, without worker or query process: for demonstrations and tests.

    Trusted calls only: a model's calls go through `EnvClient`.
    """
    if config.id == SQL_ID:
        return SqlEnv(executor=LocalExecutor(QueryLimits()), **config.kwargs)
    raise NotImplementedError(config.id)
