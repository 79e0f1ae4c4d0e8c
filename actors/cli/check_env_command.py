"""`segue check-env`."""

import argparse
import asyncio
import sys
from collections.abc import Iterable

from rich.table import Column, Table
from rich.text import Text

from segue.actors.cli.parser import make_parser, parse
from segue.actors.patient_console import PatientConsole
from segue.actors.terminal import visible
from segue.conf.errors import ConfigError
from segue.envs.check_report import Finding, Verdict

ABOUT = "Hold an environment against the contract: play it in env workers, as a run does, and say what does not hold."
EXAMPLES = (
    "sql",
    "FrozenLake-v1 env.kwargs.is_slippery=false",
    "my_package:MyEnv-v0 --seeds 10 --steps 1000",
    "env=python env.kwargs.level=2",
)
_STYLES = {Verdict.passed: "green", Verdict.note: "yellow", Verdict.failed: "bold red"}
EXIT_FAILED = 2


def build_parser() -> argparse.ArgumentParser:
    """The options."""
    takes = "the environment's id, as env.id=… would give it, and values that differ from the defaults"
    parser = make_parser("check-env", ABOUT, EXAMPLES, takes=("id, key=value", takes))
    parser.usage = "segue check-env [options] [id] [key=value ...]"
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="seeds to play, at least 2 (3)")
    parser.add_argument("--steps", type=int, default=200, metavar="N", help="calls of an episode at most (200)")
    return parser


def main(argv: list[str]) -> int:
    """Run the command."""
    arguments = parse(build_parser(), argv)
    # Hydra loads here and not for --help
    from segue.actors.cli.command_line import compose

    for name, least in (("seeds", 2), ("steps", 1)):
        if getattr(arguments, name) < least:
            raise ConfigError(f"--{name} must be at least {least}, got {getattr(arguments, name)}")
    arguments.overrides = _with_id(arguments.overrides)
    config = compose("check-env", arguments)
    if config is None:
        return 0
    # gymnasium loads here and not for --help
    from segue.envs.checker import check_contract

    # it may take minutes
    tell = _progress if sys.stderr.isatty() else None
    contract = check_contract(config.env, num_seeds=arguments.seeds, max_calls=arguments.steps, tell=tell)
    report = asyncio.run(contract)
    console = PatientConsole()
    console.print(_table(report))
    counts = [f"{number} {word}" for word, number in report.counts().items() if number]
    console.print(f"{visible(config.env.id)}: {', '.join(counts)}", markup=False, highlight=False, soft_wrap=True)
    return EXIT_FAILED if report.has_failed() else 0


def _progress(finding: Finding) -> None:
    PatientConsole(stderr=True).say(f"{finding.check}: {finding.verdict.value}")


def _with_id(given: list[str]) -> list[str]:
    """The overrides, with the id that may stand by itself as one of them."""
    ids = [text for text in given if "=" not in text]
    named = [*ids, *(text for text in given if text.startswith("env.id="))]
    if len(named) > 1:
        raise ConfigError(f"id must be one, got {', '.join(named)}")
    # Hydra loads here and not for --help
    from segue.conf.load import text_override

    return [text_override("env.id", text) if text in ids else text for text in given]


def _table(report: Iterable[Finding]) -> Table:
    # a path is folded: cut, it would name neither file nor line
    what = Column("what was found", overflow="fold")
    table = Table("", "check", what, show_edge=False, pad_edge=False)
    not_reached = []
    for finding in report:
        if finding.verdict is Verdict.not_reached:
            not_reached.append(finding.check)
            continue
        lines = [visible(finding.why), *([f"remedy: {finding.remedy}"] if finding.remedy else [])]
        table.add_row(Text(finding.verdict.value, _STYLES[finding.verdict]), finding.check, Text("\n".join(lines)))
    if not_reached:
        table.add_row(Text("-", "dim"), "not reached", ", ".join(not_reached))
    return table
