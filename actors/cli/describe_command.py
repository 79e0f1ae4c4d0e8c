"""`segue describe`."""

import argparse
import json
from typing import Any

from rich.table import Table

from segue.actors.cli.parser import make_parser, parse
from segue.actors.patient_console import PatientConsole

ABOUT = "Count a model's parameters, memory and operations, without building its weights; say what a run computes on."
EXAMPLES = ("model=k3", "model=mini --json")


def build_parser() -> argparse.ArgumentParser:
    """The options."""
    parser = make_parser("describe", ABOUT, EXAMPLES)
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def main(argv: list[str]) -> int:
    """Run the command."""
    arguments = parse(build_parser(), argv)
    # Hydra loads here and not for --help
    from segue.actors.cli.command_line import compose

    config = compose("describe", arguments)
    if config is None:
        return 0
    # the tensor library loads here and not for --help
    from segue.conf.placement import devices, placed
    from segue.model.describe import describe, num_critic_parameters
    from segue.model.device import count_gpus

    facts = {**describe(config.model), "devices": devices(placed(config, count_gpus()).cluster)}
    if config.learner.advantage.has_critic:
        facts["parameters"]["critic"] = num_critic_parameters(config.model)
    if arguments.json:
        print(json.dumps(facts, indent=2))
    else:
        PatientConsole().print(_table(facts))
    return 0


def _table(facts: dict[str, Any]) -> Table:
    table = Table("quantity", "value", show_edge=False)
    table.columns[1].justify = "right"
    for section, values in facts.items():
        _add_rows(table, section, values, 0)
    return table


def _add_rows(table: Table, name: str | int, value: Any, depth: int) -> None:
    words = f"{name:,} tokens" if isinstance(name, int) else name.replace("_", " ")
    label = "  " * depth + words
    if isinstance(value, dict):
        table.add_row(f"[b]{label}[/b]")
        for key, inner in value.items():
            _add_rows(table, key, inner, depth + 1)
    else:
        table.add_row(label, value if isinstance(value, str) else _number(value))


def _number(value: int) -> str:
    return f"{value:,} ({value:.4e})" if value >= 10**6 else f"{value:,}"
