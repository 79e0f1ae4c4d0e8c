"""What the jobs of a `--multirun` came to: one line each, when the last has ended."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from segue.actors.terminal import visible

_MODES = ("sampled", "greedy")
_ABSENT = "–"


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedJob:
    """A job that has ended."""

    varied: tuple[str, ...]
    """Those of its overrides that not every job has, as they may be seen."""
    folder: Path
    """Of its run or its results; the job never began where there is none."""
    code: int
    """Exit code."""


def job_table(jobs: Sequence[EndedJob]) -> str:
    """Overrides, end, held-out success after the run, and folder of each, in columns that no terminal cuts."""
    rows = [("job", "overrides", "ended", *(f"{mode} success" for mode in _MODES), "folder")]
    for number, job in enumerate(jobs, start=1):
        ended = "finished" if job.code == 0 else f"code {job.code}"
        figures = _figures(job.folder)
        rows.append((str(number), " ".join(job.varied) or _ABSENT, ended, *figures, str(job.folder)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return visible("\n".join(lines))


def _figures(folder: Path) -> list[str]:
    after = _read_summary(folder).get("evaluations", {}).get("after", {})
    values = [after.get(mode, {}).get("success") for mode in _MODES]
    return [_ABSENT if value is None else f"{value:.3f}" for value in values]


def _read_summary(folder: Path) -> dict[str, Any]:
    try:
        summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    except (OSError, ValueError):
        return {}
    return summary
