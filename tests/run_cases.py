"""Runs of the command line at a size of seconds, and what they leave behind, for tests."""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from segue.actors.recorder import read_metrics

TIMEOUT_S = 500
# a random policy earns nothing, so its groups train only where those without advantage are kept
SMALL = (
    "run.init_from=null",
    "learner.advantage.zero_variance=keep",
    "train.groups_per_step=2",
    "train.group_size=2",
    "train.checkpoint_every=1",
    "train.keep_checkpoints=2",
    "train.eval_every=0",
    "pretrain.steps=2",
    "pretrain.episodes_per_step=3",
    "pretrain.eval_every=0",
    "eval.episodes=3",
    "env.variants={}",
    "rollout.max_turn_tokens=16",
    "rollout.max_sessions=8",
    "cluster.dashboard=false",
    "cluster.rollout_actors=1",
    "cluster.learner_ranks=1",
)


def start(command: str, *overrides: str) -> subprocess.Popen[str]:
    code = [sys.executable, "-P", "-m", "segue.actors.cli.main", command, *overrides]
    return subprocess.Popen(code, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def run(command: str, *overrides: str) -> str:
    """Run a command to its good end; returns what it printed."""
    process = start(command, *overrides)
    text, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, text
    return text


def read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def step_lines(folder: Path) -> list[dict[str, Any]]:
    return [line for line in read_metrics(folder / "metrics.jsonl") if line["kind"] == "step"]


def stage_lines(folder: Path) -> list[dict[str, Any]]:
    return [line for line in read_metrics(folder / "metrics.jsonl") if line["kind"] == "stage"]


def ledger(folder: Path) -> list[dict[str, Any]]:
    """The buffer's entries in the newest checkpoint."""
    newest = max((folder / "checkpoints").iterdir())
    return read_json(newest / "controller.json")["buffer"]["entries"]


def copy_without_step(folder: Path, target: Path, step: int) -> Path:
    """A run as it would stand had it been killed before its last step's groups were played."""
    shutil.copytree(folder, target)
    shutil.rmtree(target / "checkpoints" / f"step-{step:08d}")
    shutil.rmtree(target / "export")
    for path in (target / "groups").iterdir():
        path.unlink()
    return target


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def listeners(process: psutil.Process) -> list[str]:
    """Addresses at which a process takes connections."""
    return [
        entry.laddr.ip.removeprefix("::ffff:")
        for entry in process.net_connections("inet")
        if entry.status == psutil.CONN_LISTEN
    ]


def has_steps(folder: Path, count: int) -> bool:
    return len(step_lines(folder)) >= count
