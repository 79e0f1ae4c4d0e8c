"""A training run that is killed again and again beside the same run undisturbed: what differs must be nothing.

    python benchmarks/bench_resume.py [--kills 5] [--seed 0] [further overrides]

The default experiment at a small size. Kills take the command and all that it started, without a word, at seeded
points: behind a drawn number of steps, after a drawn part of a step's seconds. Some meet a group file that stands while
the step's other groups are played, some a step whose checkpoint is not written, some a launch that is still starting.
What is compared, and what is not and why, stands in `run_bits.py`.
"""

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
from report import Row, write_report
from run_bits import differing_metrics, differing_weights

from segue.actors.recorder import read_metrics

OVERRIDES = (
    "train.steps=8",
    "train.groups_per_step=8",
    "train.group_size=4",
    "train.eval_every=4",
    # every other step has nothing to go on from
    "train.checkpoint_every=2",
    "eval.episodes=16",
    "env.variants={}",
    "cluster.dashboard=false",
)
TIMEOUT_S = 1800.0
LOOK_S = 0.05


def launch(folder: Path, overrides: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start the command; what it prints goes to a file beside the run's folder."""
    command = [sys.executable, "-P", "-m", "segue.actors.cli.main", "train", *overrides, f"run.dir={folder}"]
    with folder.with_suffix(".log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log)


def finish(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Wait for the command's good end."""
    if process.wait(timeout=TIMEOUT_S):
        text = folder.with_suffix(".log").read_text()
        raise SystemExit(f"the run ended with {process.returncode}:\n{text[-2000:]}")


def num_steps(folder: Path) -> int:
    """Learner steps on the run's line."""
    path = folder / "metrics.jsonl"
    return sum(line["kind"] == "step" for line in read_metrics(path)) if path.is_file() else 0


def kill_behind(process: subprocess.Popen[bytes], folder: Path, step: int, delay_s: float) -> None:
    """Kill the command so many seconds after a step's line stands."""
    deadline = time.monotonic() + TIMEOUT_S
    while num_steps(folder) < step:
        if process.poll() is not None or time.monotonic() > deadline:
            finish(process, folder)
            raise SystemExit(f"the run must still be at work behind step {step}, got its end")
        time.sleep(LOOK_S)
    time.sleep(delay_s)
    tree = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    for each in tree:
        each.send_signal(signal.SIGKILL)
    process.wait(timeout=TIMEOUT_S)
    _, alive = psutil.wait_procs(tree[1:], timeout=60)
    assert alive == [], alive


def draw_points(seed: int, count: int, steps: int, step_s: float) -> Iterator[tuple[int, float]]:
    """Steps done, of which one is left at least, and seconds since; in the order of the run."""
    generator = random.Random(seed)
    for step in sorted(generator.randrange(steps) for _ in range(count)):
        yield step, generator.random() * step_s


def main() -> None:
    """Play both runs, compare them, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="of the configuration, for both runs")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0, help="of the points of the kills")
    parser.add_argument("--allow-dirty", action="store_true", help="report although the tree has changes")
    args = parser.parse_args()
    overrides = (*OVERRIDES, *args.overrides)
    with tempfile.TemporaryDirectory() as parent:
        undisturbed, killed = Path(parent, "undisturbed"), Path(parent, "killed")
        finish(launch(undisturbed, overrides), undisturbed)
        lines = [line for line in read_metrics(undisturbed / "metrics.jsonl") if line["kind"] == "step"]
        step_s = sum(line["metrics"]["loop/step/wall_s"] for line in lines) / len(lines)
        for step, delay_s in draw_points(args.seed, args.kills, len(lines), step_s):
            print(f"kill {delay_s:.1f} s behind step {step}", flush=True)
            kill_behind(launch(killed, overrides), killed, step, delay_s)
        finish(launch(killed, overrides), killed)
        summary = json.loads((killed / "summary.json").read_text())
        metrics, num_metrics = differing_metrics(undisturbed, killed)
        weights, num_weights = differing_weights(undisturbed, killed)
        print(*metrics, *weights, sep="\n")
        taken = (killed / "metrics.jsonl").read_text().count('"kind": "step"')
    rows = [
        Row(name="kills", value=args.kills, unit=""),
        Row(name="restores from a checkpoint", value=len(summary["restores"]), unit=""),
        Row(name="steps", value=len(lines), unit=""),
        Row(name="of them taken again", value=taken - len(lines), unit=""),
        Row(name="episodes", value=summary["num_episodes"], unit=""),
        Row(name="values compared", value=num_metrics, unit="values of metrics"),
        Row(name="of them with another bit", value=len(metrics), unit="values of metrics", must="0"),
        Row(name="weights compared", value=num_weights, unit="tensors"),
        Row(name="of them with another bit", value=len(weights), unit="tensors", must="0"),
    ]
    print(write_report("resume", rows, allow_dirty=args.allow_dirty))


if __name__ == "__main__":
    main()
