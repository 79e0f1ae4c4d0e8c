"""`segue simulate`."""

import argparse
import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from rich.progress import Progress
from rich.table import Table

from segue.actors.cli.parser import add_multirun, make_parser, parse
from segue.actors.patient_console import PatientConsole
from segue.conf.errors import ConfigError

if TYPE_CHECKING:
    from segue.actors.simulation.forecast import Forecast
    from segue.conf.schema import SegueConfig

    _Result = tuple[tuple[str, ...], Forecast]
    """What is varied, and what comes of it."""

ABOUT = (
    "Say what a training run's loop would do: its own controller in virtual time, over episodes, engines and a learner "
    "that only take the time that `simulate.…` gives them. No model, no Ray; an hour in a second or two."
)
EXAMPLES = (
    "simulate.call_s.median=1 simulate.call_s.tail=20 env.workers=128",
    "-m train.max_staleness=0,1,2 cluster.rollout_actors=1,2,4",
)


def build_parser() -> argparse.ArgumentParser:
    """The options."""
    parser = make_parser("simulate", ABOUT, EXAMPLES)
    add_multirun(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def main(argv: list[str]) -> int:
    """Run the command."""
    arguments = parse(build_parser(), argv)
    overrides: list[str] = arguments.overrides
    # Hydra loads here and not for --help
    from segue.actors.cli.command_line import checked_job, print_jobs, varied_overrides
    from segue.conf.load import job_overrides

    jobs = job_overrides(overrides) if arguments.multirun else [overrides]
    configs = [checked_job("simulate", job) for job in jobs]
    if arguments.cfg is not None:
        print_jobs("simulate", jobs, configs)
        return 0
    settled = [_settled(config) for config in configs]
    # Ray and the tensor library load here and not for --help
    from segue.actors.simulation.forecast import forecast, num_simulated

    console = PatientConsole(stderr=True)
    results: list[_Result] = []
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("simulating", total=sum(map(num_simulated, settled)))
        try:
            for job, config in zip(jobs, settled, strict=True):
                told = forecast(config, lambda: progress.advance(bar))
                results.append((varied_overrides(job, overrides), told))
        finally:
            # one that cannot be, or Ctrl-C, takes none of the others along
            progress.stop()
            _tell(results, as_json=arguments.json)
    return 0


def _settled(config: "SegueConfig") -> "SegueConfig":
    """With counts of actors, of a machine without GPUs where none are given; what they compute on says nothing here.

    Raises:
        ConfigError: there is nothing to simulate.
    """
    from segue.conf.placement import placed

    seats, size = config.rollout.max_sessions, config.train.group_size
    if config.train.steps < 1:
        raise ConfigError(f"train.steps must be at least 1 to be simulated, got {config.train.steps}")
    if size > seats:
        raise ConfigError(
            f"rollout.max_sessions must be at least train.group_size ({size}) to be simulated, got {seats}"
        )
    cluster = replace(config.cluster, address=None, rollout_resources={}, learner_resources={})
    return placed(replace(config, cluster=cluster), 0)


def _tell(results: "list[_Result]", *, as_json: bool) -> None:
    if as_json:
        print(json.dumps([{"overrides": varied, **asdict(result)} for varied, result in results], indent=2))
    elif results:
        PatientConsole().print(_table(results))


def _table(results: "list[_Result]") -> Table:
    table = Table(
        "", "actors", "steps/h", "a step", "waits", "engines", "tokens/s", "age",
        show_edge=False, padding=(0, 1, 0, 0),
    )  # fmt: skip
    table.columns[0].overflow = "fold"
    for column in table.columns[1:]:
        column.justify = "right"
        column.no_wrap = True
    for varied, result in results:
        table.add_row(
            " ".join(varied), f"{result.rollout_actors}+{result.learner_ranks}", f"{result.steps_per_hour:,.0f}",
            f"{result.step_s:,.1f} s", f"{result.wait_share:.0%}", f"{result.engine_busy_share:.0%}",
            f"{result.sampled_tokens_per_s:,.0f}", f"{result.age_mean_steps:.2f}",
        )  # fmt: skip
    return table
