"""`segue simulate`."""

import argparse
import json
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.progress import Progress
from rich.table import Table

from segue.actors.cli.parser import add_multirun, make_parser, parse
from segue.actors.patient_console import PatientConsole
from segue.conf.errors import ConfigError

if TYPE_CHECKING:
    from segue.actors.simulation.forecast import Forecast
    from segue.conf.schema import SegueConfig

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
    # Hydra loads here and not for --help
    from segue.conf.load import config_to_yaml, job_overrides, load_config

    jobs = job_overrides(arguments.overrides) if arguments.multirun else [arguments.overrides]
    configs = [load_config(job, "simulate") for job in jobs]
    if arguments.cfg is not None:
        print("\n".join(map(config_to_yaml, configs)), end="")
        return 0
    settled = [_settled(config) for config in configs]
    # Ray and the tensor library load here and not for --help
    from segue.actors.simulation.forecast import forecast

    console = PatientConsole(stderr=True)
    names = [" ".join(text for text in job if text not in arguments.overrides) or "as given" for job in jobs]
    results: dict[str, Forecast] = {}
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("simulating", total=sum(config.train.steps for config in settled))
        for name, config in zip(names, settled, strict=True):
            results[name] = forecast(config, lambda _: progress.advance(bar))
    if arguments.json:
        print(json.dumps({name: result.to_json() for name, result in results.items()}, indent=2))
    else:
        PatientConsole().print(_table(results))
    return 0


def _settled(config: "SegueConfig") -> "SegueConfig":
    """With counts of actors; what they compute on is of no account.

    Raises:
        ConfigError: too few steps for a mean.
    """
    from segue.conf.placement import placed

    if config.train.steps < 2:
        raise ConfigError(f"train.steps must be at least 2 to be simulated, got {config.train.steps}")
    cluster = replace(config.cluster, address=None, rollout_resources={}, learner_resources={})
    return placed(replace(config, cluster=cluster), 0)


def _table(results: "dict[str, Forecast]") -> Table:
    table = Table(
        "", "steps/h", "a step", "waits", "engines", "tokens/s", "age", "oldest", show_edge=False, padding=(0, 1, 0, 0)
    )
    table.columns[0].overflow = "fold"
    for column in table.columns[1:]:
        column.justify = "right"
        column.no_wrap = True
    for name, result in results.items():
        table.add_row(
            name, f"{result.steps_per_hour:,.0f}", f"{result.step_s:,.1f} s", f"{result.wait_share:.0%}",
            f"{result.engine_busy_share:.0%}", f"{result.sampled_tokens_per_s:,.0f}", f"{result.age_mean_steps:.2f}",
            f"{result.age_max_steps:.0f}",
        )  # fmt: skip
    return table
