"""What the commands that take a configuration do with it: `--cfg`, `--multirun`."""

import argparse
import sys
import time
from pathlib import Path

from segue.actors.cli.job_list import JobList
from segue.actors.cli.job_table import EndedJob, job_table
from segue.actors.errors import Interrupted
from segue.actors.logger_packages import check_logger_packages
from segue.actors.loopback import keep_ray_on_loopback
from segue.actors.ray_files import keep_ray_files_private
from segue.conf.errors import ConfigError
from segue.conf.load import (
    RESUMING_COMMANDS,
    absolute_path,
    config_to_yaml,
    job_overrides,
    load_config,
    load_stored_config,
    override_value,
    text_override,
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


def checked_job(command: str, job: list[str]) -> SegueConfig:
    """The configuration of one of several jobs.

    Raises:
        ConfigError: it cannot run; says which it is.
    """
    try:
        config = load_config(job, command)
        if command in RESUMING_COMMANDS:
            check_logger_packages(config.run)
        return config
    except ConfigError as error:
        raise ConfigError(f"{error}, in {_shown(command, job)}") from error


def print_jobs(command: str, jobs: list[list[str]], configs: list[SegueConfig]) -> None:
    """What `--cfg` prints of several jobs."""
    for job, config in zip(jobs, configs, strict=True):
        print(f"# {_shown(command, job)}\n{config_to_yaml(config)}")


def varied_overrides(job: list[str], overrides: list[str]) -> tuple[str, ...]:
    """What tells a job from the others of its `--multirun`, to be shown."""
    return tuple(mask_override(text) for text in job if text not in overrides)


def run_jobs(command: str, arguments: argparse.Namespace, *, out: Path | None = None) -> int:
    """Run the command once for each combination, each in a process and a folder of its own, and tell the results.

    With `--cfg` their configurations are printed, and nothing runs.

    Args:
        out: where the jobs of a command that only reads `run.dir` have their folders; None names it by date and time.
    Returns:
        0 if all ended well, else the first exit code that did not.
    Raises:
        ConfigError: one of them cannot run; none has begun.
        Interrupted: the user ended the job at hand, and with it the list.
    """
    overrides: list[str] = arguments.overrides
    combinations = job_overrides(overrides)
    writes_to_run_dir = command in RESUMING_COMMANDS
    jobs = _with_folders(combinations, overrides) if writes_to_run_dir else combinations
    configs = [checked_job(command, job) for job in jobs]
    if arguments.cfg is not None:
        print_jobs(command, jobs, configs)
        return 0
    results = _multirun_folder() if out is None else out
    ended: list[EndedJob] = []
    try:
        with JobList() as job_list:
            for number, (job, chosen, config) in enumerate(zip(jobs, combinations, configs, strict=True)):
                print(f"job {number + 1} of {len(jobs)}: {_shown(command, job)}", flush=True)
                folder = Path(str(config.run.dir)) if writes_to_run_dir else results / str(number)
                options = [] if writes_to_run_dir else [f"--out={folder}"]
                # -P: the folder that this was called in must not hide packages
                code = job_list.run([sys.executable, "-P", "-m", "segue.actors.cli.main", command, *options, *job])
                ended.append(EndedJob(varied=varied_overrides(chosen, overrides), folder=folder, code=code))
    except Interrupted:
        remedy = ""
        if writes_to_run_dir:
            is_named = any(text.startswith("run.dir=") for text in overrides)
            remedy = f"; the same command{'' if is_named else f' with run.dir={folder.parent}'} goes on"
        print(f"interrupted in job {number + 1} of {len(jobs)}{remedy}", flush=True)
        raise
    finally:
        if ended:
            print(f"\n{job_table(ended)}", flush=True)
    return next((job.code for job in ended if job.code), 0)


def _shown(command: str, job: list[str]) -> str:
    return " ".join(["segue", command, *map(mask_override, job)])


def _with_folders(jobs: list[list[str]], overrides: list[str]) -> list[list[str]]:
    """The jobs of a command that writes to `run.dir`, each with a folder of its own for it.

    Raises:
        ConfigError: folders are given, and two jobs have the same.
    """
    given = [[text for text in job if text.startswith("run.dir=")] for job in jobs]
    if any(given[0]) and given[0][-1] not in overrides:
        if len(set(map(tuple, given))) < len(jobs):
            raise ConfigError("run.dir must be another folder for each job, or one for all, got the same for several")
        return jobs
    base = next((override_value(text) for text in overrides if text.startswith("run.dir=")), None)
    folder = Path(absolute_path("run.dir", Path.cwd(), str(base))) if base else _multirun_folder()
    others = [[text for text in job if not text.startswith("run.dir=")] for job in jobs]
    return [[*job, text_override("run.dir", str(folder / str(number)))] for number, job in enumerate(others)]


def _multirun_folder() -> Path:
    return Path.cwd() / "runs" / f"{time.strftime('%Y-%m-%d_%H-%M-%S')}_multirun"
