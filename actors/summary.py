"""`summary.json`: what a run learnt, what it cost, and what it depends on."""

from typing import Any

from segue.actors.console import Row
from segue.actors.evaluation import ODD_ENDS
from segue.conf.rules import SAMPLED_MODE
from segue.conf.schema import SegueConfig


def build_summary(
    config: SegueConfig, launches: list[dict[str, Any]], facts: dict[str, Any], *, status: str
) -> dict[str, Any]:
    """The summary as JSON values.

    Args:
        launches: of the run folder; the last is this one.
        facts: of `Controller.summary`.
        status: `finished`, `interrupted` or what failed.
    """
    latest = launches[-1]
    begun = [(step, launch["started_at"]) for launch in launches for step in launch["restored_steps"]]
    return {
        "command": latest["command"],
        "status": status,
        "run_folder": config.run.dir,
        "seed": config.seed,
        **facts,
        "restores": [
            {"incarnation": number, "at_step": step, "launched_at": started_at}
            for number, (step, started_at) in enumerate(begun)
            if number
        ],
        "launches": launches,
    }


def rows_before_and_after(evaluations: dict[str, dict[str, Any]]) -> list[Row]:
    """Figures for the closing table: success, odd ends and checks of each mode, then success per class."""
    before, after = evaluations.get("before", {}), evaluations.get("after", {})
    paths: list[tuple[str, tuple[str, ...]]] = []
    for mode, figures in (after or before).items():
        paths.append((f"{mode} success", (mode, "success")))
        ends = [(f"{mode} {end}", (mode, "odd_ends", end)) for end in ODD_ENDS]
        paths += [(name, path) for name, path in ends if _figure(before, path) or _figure(after, path)]
        paths += [(f"{mode} {check}", (mode, "checks", check)) for check in figures["checks"]]
    classes = (after or before).get(SAMPLED_MODE, {}).get("success_by_class", {})
    paths += [(f"  {name}", (SAMPLED_MODE, "success_by_class", name, "success")) for name in classes]
    return [(name, _figure(before, path), _figure(after, path)) for name, path in paths]


def _figure(values: Any, path: tuple[str, ...]) -> float | None:
    for key in path:
        if key not in values:
            return None
        values = values[key]
    return None if values is None else float(values)
