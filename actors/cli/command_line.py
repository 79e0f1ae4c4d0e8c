"""What the commands that take a configuration do with it: `--cfg`, `--multirun`."""

import argparse
import sys
import time
from pathlib import Path

from segue.actors.cli.job_list import JobList
from segue.actors.logger_packages import check_logger_packages
from segue.actors.loopback import keep_ray_on_loopback
from segue.actors.ray_files import keep_ray_files_private
from segue.conf.errors import ConfigError
from segue.conf.load import (
    RESUMING_COMMANDS,
    config_to_yaml,
    job_overrides,
    load_config,
    load_stored_config,
)
from segue.conf.schema import SegueConfig
from segue.conf.secret import mask_override

# commands that start no actors
_WITHOUT_RAY = ("describe", "check-env")


def compose(command: str, arguments: argparse.Namespace) -> SegueConfig | None:
    """The configuration, or None where `--cfg` only wanted it printed.

    Raises:
        ConfigError: what was given cannot run.
    """
    config = load_config(arguments.overrides, command)
    if arguments.cfg is not None:
        print(config_to_yaml(config), end="")
        return None
    if command in RESUMING_COMMANDS:
        check_logger_packages(config.run)
    if command not in _WITHOUT_RAY:
        _keep_ray_private(config)
    return config


def compose_stored(folder: Path) -> SegueConfig:
    """The configuration of the run that a folder holds.

    Raises:
        ConfigError: it holds none, or a damaged one.
    """
    config = load_stored_config(folder)
    _keep_ray_private(config)
    return config


def _keep_ray_private(config: SegueConfig) -> None:
    keep_ray_on_loopback(config.cluster)
    keep_ray_files_private(config.cluster)


def run_jobs(command: str, overrides: list[str]) -> int:
    """Run the command once for each combination, each in a process and a run folder of its own.

    Returns:
        0 if all ended well, else the first exit code that did not.
    Raises:
        ConfigError: one of them cannot run; none has begun.
        Interrupted: the user ended the job at hand, and with it the list.
    """
    jobs = job_overrides(overrides)
    if command in RESUMING_COMMANDS:
        jobs = _with_folders(jobs, overrides)
    for job in jobs:
        try:
            config = load_config(job, command)
            if command in RESUMING_COMMANDS:
                check_logger_packages(config.run)
        except ConfigError as error:
            raise ConfigError(f"{error}, in {_shown(command, job)}") from error
    codes = []
    with JobList() as job_list:
        for number, job in enumerate(jobs):
            print(f"job {number + 1} of {len(jobs)}: {_shown(command, job)}", flush=True)
            # -P: the folder that this was called in must not hide packages
            codes.append(job_list.run([sys.executable, "-P", "-m", "segue.actors.cli.main", command, *job]))
    return next((code for code in codes if code), 0)


def _shown(command: str, job: list[str]) -> str:
    return " ".join(["segue", command, *map(mask_override, job)])


def _with_folders(jobs: list[list[str]], overrides: list[str]) -> list[list[str]]:
    """The jobs of a command that writes to `run.dir`, each with a folder of its own for it."""
    base = next((text.partition("=")[2] for text in overrides if text.startswith("run.dir=")), None)
    folder = Path.cwd() / (base or f"runs/{time.strftime('%Y-%m-%d_%H-%M-%S')}_multirun")
    return [
        [*(text for text in job if not text.startswith("run.dir=")), f"run.dir={folder / str(number)}"]
        for number, job in enumerate(jobs)
    ]
