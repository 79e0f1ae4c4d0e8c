"""Whether the packages are there that a run's loggers need: they are extras, and light commands must not load them."""

from importlib.util import find_spec

from segue.conf.errors import ConfigError
from segue.conf.extra import how_to_install
from segue.conf.schema import Logger, RunConfig


def check_logger_packages(config: RunConfig) -> None:
    """To be called before anything starts.

    Raises:
        ConfigError: one is missing; the message says how to install it.
    """
    needed = {Logger.wandb: ["wandb"], Logger.mlflow: ["mlflow"]}
    if config.mlflow.tracking_uri is None:
        # it keeps a database of its own then
        needed[Logger.mlflow] += ["sqlalchemy", "alembic"]
    for logger in config.loggers:
        missing = [package for package in needed.get(logger, []) if not _is_installed(package)]
        if missing:
            raise ConfigError(
                f"run.loggers must be loggers that are installed, got {logger.name}, for which there is no package "
                f"{' and '.join(missing)}; {how_to_install(logger.name)}"
            )


def _is_installed(package: str) -> bool:
    spec = find_spec(package)
    # a mere folder of that name, such as these packages make themselves, has none
    return spec is not None and spec.origin is not None
