"""The loggers that a run names: which packages they need, how they are opened, where their figures are looked at."""

import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from segue.actors.background_sink import BackgroundSink
from segue.actors.provenance import program
from segue.actors.recorder import Progress, Sink, TensorBoardSink, read_progress
from segue.actors.run_folder import RunFolder
from segue.conf.schema import Logger, SegueConfig, WandbMode


def open_loggers(config: SegueConfig, folder: RunFolder, say: Callable[[str], None]) -> list[Sink]:
    """The run's loggers; to be opened behind `metrics.jsonl`.

    Args:
        say: is told where the run can be seen, and once of each that fails; none ends the run.
    """
    progress = read_progress(folder.metrics)
    return [_open(logger, config, folder, progress, say) for logger in config.run.loggers]


def where_to_look(config: SegueConfig, folder: RunFolder) -> list[tuple[str, str]]:
    """Commands for what the loggers left in the run folder, each behind what it does: `watch` or `send`."""
    commands = {Logger.tensorboard: ("watch", f"{program('tensorboard')} --logdir {folder.events}")}
    if config.run.wandb.mode is WandbMode.offline:
        commands[Logger.wandb] = "send", f"{program('wandb')} sync {folder.wandb}/offline-run-*"
    if config.run.mlflow.tracking_uri is None:
        # the extra's small form of MLflow has no page to show
        first = "" if find_spec("flask") else f"{sys.executable} -m pip install mlflow; "
        command = f"{first}{program('mlflow')} ui --backend-store-uri {database_uri(folder.mlflow)}"
        commands[Logger.mlflow] = "watch", command
    return [commands[logger] for logger in config.run.loggers if logger in commands]


def database_uri(folder: Path) -> str:
    """Of the database that MLflow keeps in a run's own folder for it."""
    return f"sqlite:///{folder / 'mlflow.db'}"


def _open(
    logger: Logger, config: SegueConfig, folder: RunFolder, progress: Progress, say: Callable[[str], None]
) -> Sink:
    name = folder.path.name

    def open_wandb(tell: Callable[[str], None]) -> Sink:
        # the packages load here, and only where they are asked for
        from segue.actors.wandb_sink import WandbSink

        return WandbSink(config, folder.wandb, name=name, progress=progress, say=tell)

    def open_mlflow(tell: Callable[[str], None]) -> Sink:
        from segue.actors.mlflow_sink import MlflowSink

        uri = config.run.mlflow.tracking_uri or database_uri(folder.mlflow)
        return MlflowSink(config, folder.mlflow, uri=uri, name=name, progress=progress, say=tell)

    match logger:
        case Logger.tensorboard:
            return TensorBoardSink(folder.events)
        case Logger.wandb:
            return BackgroundSink(logger.name, open_wandb, say)
        case Logger.mlflow:
            return BackgroundSink(logger.name, open_mlflow, say)
