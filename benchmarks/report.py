"""Report files: what was measured, on what, by which command. A dirty tree is refused."""

import json
import platform
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "reports"
_PACKAGES = ("torch", "ray", "deepspeed", "transformers", "trl")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure, beside the peer's from the same run where there is a peer."""

    name: str
    value: float
    unit: str
    peer: str | None = None
    peer_value: float | None = None
    must: str | None = None
    """What was asked of the figure."""


def write_report(
    topic: str,
    rows: list[Row],
    *,
    allow_dirty: bool = False,
    commit: str | None = None,
    elsewhere: Mapping[str, Any] | None = None,
    details: Mapping[str, Any] | None = None,
) -> Path:
    """Write `reports/<topic>_<hardware>_<YYYY-MM>.json` and print the rows.

    Args:
        topic: what was measured.
        rows: the figures.
        allow_dirty: report although the tree has changes.
        commit: of the code that was measured, where that was launched earlier; None is the present one.
        elsewhere: `command`, `hardware` and `packages` of figures that were taken on another machine.
        details: what else belongs to the measurement, by name, as JSON values.

    Raises:
        SystemExit: the tree has uncommitted changes, so that no commit says what was measured.
    """
    if not allow_dirty:
        refuse_changes()
    report: dict[str, Any] = {
        "topic": topic,
        "date": date.today().isoformat(),
        "commit": commit or _git("rev-parse", "HEAD"),
        # of paths of this machine only the last part is told
        "command": " ".join(["python", *(Path(word).name if word.startswith("/") else word for word in sys.argv)]),
        "hardware": _hardware(),
        "packages": {name: found for name in _PACKAGES if (found := _version(name))},
        **(elsewhere or {}),
        "rows": [asdict(row) for row in rows],
        **(details or {}),
    }
    for row in rows:
        peer = "" if row.peer_value is None else f"   {row.peer}: {row.peer_value:,.4g}"
        peer += f" ({row.value / row.peer_value:.2f}x)" if row.peer_value else ""
        print(f"{row.name:48} {row.value:12,.4g} {row.unit}{peer}")
    path = FOLDER / f"{topic}_{report['hardware']['name']}_{date.today():%Y-%m}.json"
    FOLDER.mkdir(exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")
    return path


def refuse_changes() -> None:
    """Refuse a tree with uncommitted changes: no commit says what is measured.

    Raises:
        SystemExit: it has some.
    """
    changed = _git("status", "--porcelain", "--untracked-files=no")
    if changed:
        raise SystemExit(f"the tree must be clean, got changes:\n{changed}")


def free_port() -> int:
    """A port of loopback on which nothing listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _hardware() -> dict[str, str | int]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")
    num_cores = sum(line.startswith("processor") for line in lines)
    return {"name": f"cpu{num_cores}", "model": model, "cores": num_cores, "system": platform.platform()}


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True, timeout=30).stdout.strip()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except ModuleNotFoundError:
        return None
