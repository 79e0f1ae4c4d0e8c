"""Whole training runs on a machine with a GPU, as `segue train` starts them; no time is told when a check fails.

    python benchmarks/bench_train_gpu.py --figures train_gpu.json        on a machine with a GPU
    python benchmarks/bench_train_gpu.py --report train_gpu.json         in a clean checkout: writes the report

A few steps of the real actors and DeepSpeed on `sql`, a rollout actor and a learner rank on one GPU: `tiny` from the
warm start in fp32, which is `segue train` but for its length, and `mini` in bf16 with random weights.
Checked: nothing computes on the CPU, nothing went wrong, both runs of a segment agree bit for bit, rollout and learner
agree within rounding. Told are means over the steps behind the first, which compiles kernels and captures graphs.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu import main
from report import Row

# trajectories of a few hundred tokens are to have several segments, so that some run twice
COMMON = (
    "run.console=false",
    "train.steps=4",
    "train.eval_every=0",
    "train.checkpoint_every=1000",
    "eval.episodes=8",
    "env.variants={}",
    "learner.segment_tokens=128",
    "cluster.dashboard=false",
)


@dataclass(frozen=True, slots=True)
class Case:
    """A run."""

    overrides: tuple[str, ...]
    max_gap: float
    """Nats between rollout and learner, mean over a step's trained tokens, above which something is wrong."""


CASES = {
    "tiny, fp32": Case((), 1e-3),
    # of random weights in bf16 a quarter of the experts differ from one order of sums to another
    "mini, bf16": Case(
        (
            "model=mini",
            "learner.precision=bf16",
            "learner.checkpoint=block",
            "learner.advantage.zero_variance=keep",
            "learner.optimizer.lr=1e-5",
            "rollout.state_budget_mb=16384",
            "run.init_from=null",
            "train.groups_per_step=8",
            "cluster.threads=8",
        ),
        0.3,
    ),
}

FIGURES = (
    ("step", "loop/step/wall_s", "s"),
    ("of it, waiting for groups", "loop/wait/wall_s", "s"),
    ("of it, the learner", "loop/learn/wall_s", "s"),
    ("of it, new weights to the rollout", "loop/publish/wall_s", "s"),
    ("rollout, decoding", "rollout/decode/tokens_per_s", "tokens/s"),
    ("rollout, feeding", "rollout/prefill/tokens_per_s", "tokens/s"),
    ("learner", "learner/tokens/per_s", "tokens/s"),
    ("tokens a step", "learner/tokens/run", "tokens"),
    ("log-probability gap, mean", "policy/logprob_gap/mean_nats", "nats"),
    ("gradient norm", "update/gradient/norm", ""),
)
TIMEOUT_S = 300


class MemoryWatch:
    """The GPU's memory in use, by all processes, once a second."""

    def __init__(self) -> None:
        query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--loop=1", "--id=0"]
        self._process = subprocess.Popen(query, stdout=subprocess.PIPE, text=True)
        self._readings = [0]
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        self._readings.extend(int(line) for line in self._process.stdout)

    def stop(self) -> int:
        """The largest reading, in bytes."""
        self._process.kill()
        self._process.wait()
        self._thread.join()
        return max(self._readings) * 2**20


def train(overrides: tuple[str, ...], folder: Path) -> str:
    """Run `segue train` to its good end; returns what it printed.

    Raises:
        SystemExit: it failed.
    """
    command = [sys.executable, "-P", "-m", "segue.actors.cli.main", "train", *overrides, f"run.dir={folder}"]
    done = subprocess.run(
        command,
        cwd=folder.parent,
        # runs are of one GPU, however many there are
        env=os.environ | {"CUDA_VISIBLE_DEVICES": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-4000:]}")
    return done.stdout


def failures(folder: Path, steps: list[dict[str, Any]], max_gap: float) -> list[str]:
    """What is wrong with a run."""
    summary = json.loads((folder / "summary.json").read_text())
    computed_on = summary["launches"][-1]["devices"]
    found = [f"{kind}: {words}" for kind, words in computed_on.items() if "on cuda" not in words]
    found += [f"{fault['who']}: {fault['what']}" for fault in summary["faults"]]
    for number, metrics in enumerate(steps, start=1):
        if metrics["learner/gauge/max_nats"] != 0.0:
            found.append(f"step {number}: both runs of a segment differ by {metrics['learner/gauge/max_nats']} nats")
        if not metrics["policy/logprob_gap/mean_nats"] < max_gap:
            found.append(f"step {number}: log-probabilities are {metrics['policy/logprob_gap/mean_nats']} nats apart")
    return found


def run_case(name: str, folder: Path) -> list[Row]:
    """Train, check, and take the figures.

    Raises:
        SystemExit: it failed, or a check did.
    """
    watch = MemoryWatch()
    try:
        printed = train((*COMMON, *CASES[name].overrides), folder)
    finally:
        memory_bytes = watch.stop()
    print(printed, flush=True)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [line["metrics"] for line in lines if line["kind"] == "step"]
    max_gap = CASES[name].max_gap
    found = failures(folder, steps, max_gap)
    if found:
        raise SystemExit(f"{name}: no figures, since checks failed:\n" + "\n".join(found))
    later = steps[1:]
    rows = [Row(name=f"{name}: first step", value=steps[0]["loop/step/wall_s"], unit="s")]
    for title, metric, unit in FIGURES:
        values = [metrics[metric] for metrics in later]
        must = f"below {max_gap}" if "gap" in title else None
        rows.append(Row(name=f"{name}: {title}", value=sum(values) / len(values), unit=unit, must=must))
    gauge = max(metrics["learner/gauge/max_nats"] for metrics in steps)
    rows.append(Row(name=f"{name}: both runs of a segment apart", value=gauge, unit="nats", must="0"))
    rows.append(Row(name=f"{name}: GPU memory in use, all processes", value=memory_bytes / 1e9, unit="GB"))
    return rows


def measure() -> list[Row]:
    """All cases, one after another."""
    with tempfile.TemporaryDirectory() as folder:
        rows = [row for number, name in enumerate(CASES) for row in run_case(name, Path(folder) / f"run{number}")]
    for row in rows:
        print(f"{row.name:56} {row.value:12,.4g} {row.unit}", flush=True)
    return rows


if __name__ == "__main__":
    main("train_gpu", __doc__, measure)
