"""The tables of "Which combinations are allowed" in `docs/algorithms/README.md`, cell by cell against the rules."""

import functools
import itertools
import re
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import yaml

from segue.conf.errors import ConfigError
from segue.conf.rules import check_rules
from segue.conf.schema import AdvantageKind, LossKind, NormalisationKind, SegueConfig

DOCUMENT = Path(__file__).parents[3] / "docs/algorithms/README.md"
Row = list[str]


def override_of(path: str, kind: Enum) -> str:
    return f"{path}={kind.name}" + (" learner.loss.custom.function=a:b" if kind is LossKind.custom else "")


LOSSES = {kind.name: override_of("learner.loss.kind", kind) for kind in LossKind}
ADVANTAGES = {kind.name: override_of("learner.advantage.kind", kind) for kind in AdvantageKind}
NORMALISATIONS = {kind.name: override_of("learner.loss.normalisation", kind) for kind in NormalisationKind}
KINDS = LOSSES | ADVANTAGES | NORMALISATIONS


def read_tables() -> list[list[Row]]:
    """Rows of cells, the header first, the line under it left out."""
    section = re.split(r"^## ", DOCUMENT.read_text(), flags=re.MULTILINE)
    (text,) = [part for part in section if part.startswith("Which combinations are allowed")]
    tables = [block.splitlines() for block in text.split("\n\n") if block.startswith("|")]
    return [[[cell.strip() for cell in line.strip("|").split("|")] for line in (t[0], *t[2:])] for t in tables]


def named(cell: str) -> list[str]:
    """Overrides of each alternative that a header names."""
    alternatives = re.findall(r"`([^`]+)`", cell)
    return [*LOSSES.values(), *ADVANTAGES.values()] * cell.startswith("every") + [KINDS.get(a, a) for a in alternatives]


def is_allowed(overrides: str) -> bool:
    config: Any = SegueConfig()
    for override in overrides.split():
        path, _, value = override.partition("=")
        *sections, name = path.split(".")
        section = functools.reduce(getattr, sections, config)
        before = getattr(section, name)
        setattr(section, name, type(before)[value] if isinstance(before, Enum) else yaml.safe_load(value))
    try:
        check_rules(config)
    except ConfigError:
        return False
    return True


TABLES = read_tables()
CELLS = [
    (row_overrides, column_overrides, cell)
    for header, *rows in TABLES
    for row in rows
    for column, cell in zip(header[1:], row[1:], strict=True)
    for row_overrides, column_overrides in itertools.product(named(row[0]), named(column))
]


@pytest.mark.parametrize(("row", "column", "cell"), CELLS)
def test_a_cell_says_whether_the_configuration_is_allowed(row: str, column: str, cell: str) -> None:
    assert cell.startswith(("yes", "refused"))
    assert is_allowed(f"{column} {row}") == cell.startswith("yes")


def test_every_kind_stands_in_the_tables() -> None:
    losses, critics, _staleness = TABLES
    assert {name for row in losses[1:] for name in re.findall(r"`(\w+)`", row[0])} == LOSSES.keys()
    assert set(re.findall(r"`(\w+)`", " ".join(losses[0]))) == ADVANTAGES.keys() | NORMALISATIONS.keys()
    assert set(re.findall(r"`(\w+)`", " ".join(critics[0]))) == ADVANTAGES.keys()


def test_every_loss_and_advantage_trains_on_a_group_again() -> None:
    again = "train.max_staleness=1 train.max_uses=2"
    kinds = [*LOSSES.values(), *ADVANTAGES.values()]
    assert [kind for kind in kinds if not is_allowed(f"{again} {kind}")] == []


def test_whole_trajectories_ratio_has_one_advantage_and_all_else_goes_together() -> None:
    refused = {
        (loss, advantage)
        for (loss, advantage), normalisation in itertools.product(
            itertools.product(LOSSES, ADVANTAGES), NORMALISATIONS.values()
        )
        if not is_allowed(f"{LOSSES[loss]} {ADVANTAGES[advantage]} {normalisation}")
    }
    assert refused == {("gspo", advantage) for advantage in ("turn_returns", "turn_gae", "token_gae")}
