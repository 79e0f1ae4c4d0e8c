"""A short soak: a run with two rollout actors and two ranks keeps its laws while its parts are killed and damaged.

Covered: a handful of kinds of faults, and that what the soak prints is what it did. Not covered: the other kinds, and
memory (benchmarks/soak.py for longer).
"""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
# each is mended within seconds; a run whose driver, Ray or learner is lost takes most of a minute to come back
KINDS = ("kill-rollout", "kill-env-worker", "call-fails", "cut-group", "pause-driver")


def test_a_run_keeps_its_laws_under_a_handful_of_faults(tmp_path: Path) -> None:
    folder = tmp_path / "soak"
    options = ["--faults", str(len(KINDS)), "--gap", "2", "--only", ",".join(KINDS), "--folder", str(folder)]
    command = [sys.executable, ROOT / "benchmarks" / "soak.py", "--no-report", *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=580)
    assert done.returncode == 0, done.stdout
    injected = [json.loads(line) for line in (folder / "injected.jsonl").read_text().splitlines()]
    assert Counter(fault["kind"] for fault in injected) == Counter(KINDS)
    summary = json.loads((folder / "run" / "summary.json").read_text())
    who = Counter(fault["who"] for fault in summary["faults"])
    assert who.keys() >= {"env workers"} and who["rollout-0"] + who["rollout-1"] == 1, done.stdout
    assert (summary["status"], summary["restores"]) == ("interrupted", [])
