"""What `segue simulate` says of a run, beside the run: an environment that is slow now and then, bounds 0 and 1.

python benchmarks/bench_simulate.py <folder> [--steps 16]

Runs `segue train` on the shipped warm start with `slow_env.py`, one rollout actor and one rank on a core each. What is
simulated is measured where it says nothing of the loop: lengths in the first run's evaluation, rates in its steps, a
decode step of few and of many sessions in this process, the environment's pauses as they are given.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import mean, median
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

from report import Row, refuse_changes, write_report

from segue.actors.recorder import read_metrics
from segue.conf.load import load_config
from segue.model.checkpoint import import_checkpoint
from segue.rollout.engine.base import Sampling
from segue.rollout.engine.native import build_native_engine
from segue.rollout.session import SessionId
from segue.rollout.trajectory import PolicyVersion, Trajectory
from segue.rollout.trajectory_file import load_group

WARM_START = Path(__file__).parents[1] / "model" / "warm_start"
BOUNDS = (0, 1)
GROUPS, SIZE = 4, 8
MEDIAN_S, TAIL = 0.05, 20.0
# in which kernels warm up and the loop fills
FIRST = 3
FEW, MANY = 4, 32
PROMPT, DECODED = 100, 120
LOOP = (
    f"train.groups_per_step={GROUPS}",
    f"train.group_size={SIZE}",
    "cluster.rollout_actors=1",
    "cluster.learner_ranks=1",
    f"env.workers={GROUPS * SIZE}",
)


def segue(*arguments: str) -> str:
    """Run a command to its good end; returns what it printed."""
    command = [sys.executable, "-P", "-m", "segue.actors.cli.main", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def train(folder: Path, bound: int, steps: int) -> list[dict[str, Any]]:
    """Metrics of a run's steps."""
    segue(
        "train", *LOOP, f"train.max_staleness={bound}", f"train.steps={steps}", f"run.dir={folder}",
        "env.id=slow_env:SlowSql-v0", f"env.import_folder={Path(__file__).parent}",
        f"env.kwargs={{median_s: {MEDIAN_S}, tail: {TAIL}}}", "env.variants={}", "train.eval_every=0",
        f"train.checkpoint_every={steps}", "eval.episodes=64", "run.console=false", "cluster.dashboard=false",
    )  # fmt: skip
    return [line["metrics"] for line in read_metrics(folder / "metrics.jsonl") if line["kind"] == "step"]


def measured_lengths(folder: Path) -> dict[str, float]:
    """Medians of the sampled evaluation before the first step."""
    played: list[Trajectory] = []
    for path in sorted((folder / "trajectories").glob("step-00000000-sampled*")):
        played += load_group(path).trajectories
    turns = [turn for t in played for turn in t.turns]
    replies = [after.start - turn.end for t in played for turn, after in zip(t.turns, t.turns[1:], strict=False)]
    return {
        "turns": median(len(t.turns) for t in played),
        "prompt_tokens": median(t.turns[0].start for t in played),
        "turn_tokens": median(turn.end - turn.start for turn in turns),
        "observation_tokens": median(replies),
    }


def decode_step_s(num_sessions: int) -> float:
    """Seconds of a decode step of so many sessions on the shipped warm start: median of three."""
    _, model = import_checkpoint(WARM_START)
    sampling = Sampling(temperature=1.0, max_new_tokens=DECODED, stop_ids=(), seed=0, training=True)

    async def play() -> float:
        engine = build_native_engine(model, load_config([]).rollout, version=PolicyVersion(0, 0))
        sessions = [engine.open(SessionId(task_id=f"{i}", index=0, attempt=0)) for i in range(num_sessions)]
        for session in sessions:
            engine.extend(session, list(range(PROMPT)))
        await asyncio.gather(*(engine.generate(session, sampling) for session in sessions))
        return engine.stats.decode.wall_s / DECODED

    return median(asyncio.run(play()) for _ in range(3))


def simulated(folder: Path, steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Forecasts for the bounds, from what the synchronous run measured."""
    episodes = GROUPS * SIZE
    tokens_per_s = [m["batch/tokens/mean"] * episodes / m["loop/learn/wall_s"] for m in steps]
    few, many = decode_step_s(FEW), decode_step_s(MANY)
    session_s = max(many - few, 0.0) / (MANY - FEW)
    values = {f"{name}.median": value for name, value in measured_lengths(folder).items()} | {
        "call_s.median": MEDIAN_S, "call_s.tail": TAIL, "decode_step_s": few - FEW * session_s,
        "decode_session_s": session_s, "learner_step_s": 0.0, "learner_tokens_per_s": mean(tokens_per_s),
        "prefill_tokens_per_s": mean(m["rollout/prefill/tokens_per_s"] for m in steps),
        "publish_s": mean(m["loop/publish/wall_s"] for m in steps),
    }  # fmt: skip
    given = [f"simulate.{name}={value:g}" for name, value in values.items()]
    bounds = ",".join(map(str, BOUNDS))
    told = segue("simulate", "-m", "--json", *LOOP, *given, "train.steps=200", f"train.max_staleness={bounds}")
    result: list[dict[str, Any]] = json.loads(told)
    return result


def main() -> None:
    """Run, simulate, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of the runs; a new one")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--allow-dirty", action="store_true", help="report although the tree has changes")
    arguments = parser.parse_args()
    if not arguments.allow_dirty:
        refuse_changes()
    # at the end nothing new is in flight
    runs = {
        bound: train(arguments.folder / str(bound), bound, arguments.steps)[FIRST : arguments.steps - bound]
        for bound in BOUNDS
    }
    forecasts = simulated(arguments.folder / "0", runs[0])
    rows = []
    for (bound, steps), told in zip(runs.items(), forecasts, strict=True):
        seconds = sum(m["loop/step/wall_s"] for m in steps)
        found = {
            "steps an hour": (3600 * len(steps) / seconds, told["steps_per_hour"], ""),
            "share of waiting": (sum(m["loop/wait/wall_s"] for m in steps) / seconds, told["wait_share"], ""),
            "mean age": (mean(m["staleness/age/mean_steps"] for m in steps), told["age_mean_steps"], "steps"),
        }
        rows += [
            Row(name=f"bound {bound}: {name}", value=run, unit=unit, peer="simulated", peer_value=forecast)
            for name, (run, forecast, unit) in found.items()
        ]
    print(write_report("simulate", rows, allow_dirty=arguments.allow_dirty))


if __name__ == "__main__":
    main()
