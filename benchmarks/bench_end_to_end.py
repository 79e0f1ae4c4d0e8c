"""Rollout, learner step and weight swap on a tiny K3 beside TRL's GRPO trainer, in tokens per CPU-second.

    python benchmarks/bench_end_to_end.py --peer-python <a python with the extra `bench`>

Both sides: about 0.85M parameters, byte vocabulary, 16 sequences of 128 forced new tokens, one update a step, a thread.
Ours runs the parts of a real run in one process: the engine samples a batch of two groups, the groups go to files and
back, the learner trains on them through DeepSpeed, and the engine takes up the published weights. Figures are medians
over steady steps; rounds of ours and of each peer take turns, so that the machine's mood meets all of them alike.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.update(OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")

import numpy as np
import torch
from report import Row, free_port, write_report

from segue.conf.load import load_config
from segue.conf.schema import SegueConfig
from segue.learner.learner import Learner
from segue.model.describe import describe
from segue.model.network import build_model
from segue.rollout.engine.base import Sampling
from segue.rollout.engine.native import NativeEngine, build_native_engine
from segue.rollout.episode import Episode, PlayedTurn, TaskSpec
from segue.rollout.session import SessionId
from segue.rollout.trajectory import Group, Outcome, PolicyVersion, Source, Trajectory
from segue.rollout.trajectory_file import open_group, save_group

GROUPS, GROUP_SIZE, NEW_TOKENS, PROMPT_TOKENS = 2, 8, 128, 16
OVERRIDES = (
    "model=tiny",
    # the size of the peer's model: narrower dense layer and experts, byte vocabulary
    "model.vocab_size=267",
    "model.intermediate_size=192",
    "model.moe_intermediate_size=32",
    "tokenizer=bytes",
    "run.init_from=null",
    "cluster.learner_ranks=1",
)


async def play(engine: NativeEngine, task: TaskSpec, seed: int) -> Group:
    """A group of forced length; the reward is a function of the text that differs between siblings."""
    rng = np.random.default_rng(seed)
    prompt = rng.integers(0, 256, PROMPT_TOKENS).astype(np.int32)
    sampling = Sampling(temperature=1.0, max_new_tokens=NEW_TOKENS, stop_ids=(), seed=seed, training=True)
    prefix = engine.open(SessionId(task_id=task.id, index=None, attempt=0))
    engine.extend(prefix, prompt)

    async def sibling(index: int) -> Trajectory:
        session_id = SessionId(task_id=task.id, index=index, attempt=0)
        session = engine.open(session_id, fork_of=prefix)
        completion = await engine.generate(session, sampling)
        reward = float(completion.token_ids.sum() % 7)
        turn = PlayedTurn(start=PROMPT_TOKENS, completion=completion, reward_terms={"sum": reward})
        episode = Episode(task=task, group_id=task.id, session_id=session_id, session=session, turns=[turn])
        trajectory = episode.to_trajectory(Outcome.failure, source=Source.policy, temperature=sampling.temperature)
        engine.close(session)
        return trajectory

    version = engine.version
    trajectories = await asyncio.gather(*(sibling(index) for index in range(GROUP_SIZE)))
    engine.close(prefix)
    return Group(
        task_id=task.id,
        group_id=task.id,
        trajectories=tuple(trajectories),
        first_version=version,
        last_version=version,
        made_by="benchmark",
    )


class Ours:
    """The parts of a run, kept from round to round."""

    def __init__(self, config: SegueConfig) -> None:
        torch.set_num_threads(1)
        model = build_model(config.model, torch.float32)
        model.init_weights(torch.Generator().manual_seed(0))
        self._engine = build_native_engine(model, config.rollout, version=PolicyVersion(0, 0))
        self._learner = Learner(
            config,
            config.learner.optimizer,
            rank=0,
            address=("127.0.0.1", free_port()),
            device=torch.device("cpu"),
            initial_model=None,
        )
        # asyncio.run would print all results into an error message that it then discards
        self._loop = asyncio.new_event_loop()
        self._step = 0
        self.rollout_cpu_s: list[float] = []
        self.step_cpu_s: list[float] = []

    def run_step(self, folder: Path) -> None:
        """One step; its CPU-seconds are noted."""
        start = time.process_time()
        groups = self._loop.run_until_complete(self._play_groups())
        sampled = time.process_time()
        files = [folder / f"{group.group_id}.safetensors" for group in groups]
        digests = [save_group(path, group) for path, group in zip(files, groups, strict=True)]
        stored = [open_group(path, digest=digest) for path, digest in zip(files, digests, strict=True)]
        report = self._learner.train_step(stored, step=self._step, restored_steps=[0])
        # nothing skipped: all of the work is in the figure
        assert report["learner/trajectories/run"] == GROUPS * GROUP_SIZE, report
        self._step += 1
        update = self._learner.published()
        assert update is not None
        self._loop.run_until_complete(self._engine.load_weights(update, PolicyVersion(0, self._step)))
        self.rollout_cpu_s.append(sampled - start)
        self.step_cpu_s.append(time.process_time() - start)

    async def _play_groups(self) -> list[Group]:
        tasks = [TaskSpec(id=f"step-{self._step}-{number}", seed=number) for number in range(GROUPS)]
        return list(
            await asyncio.gather(*(play(self._engine, task, self._step * GROUPS + task.seed) for task in tasks))
        )


def run_peer(python: str, kind: str, steps: int) -> dict[str, float]:
    """One round of the peer in a process of its own."""
    script = Path(__file__).with_name("peer_trl.py")
    command = [python, "-P", "-W", "ignore", str(script), "--model", kind, "--steps", str(steps)]
    command += ["--new-tokens", str(NEW_TOKENS), "--prompt-tokens", str(PROMPT_TOKENS)]
    # the learner's place among its ranks must not reach a trainer that reads the same variables
    ours_only = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}
    env = {name: value for name, value in os.environ.items() if name not in ours_only}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise SystemExit(f"the peer failed: {' '.join(command)}\n{done.stderr[-2000:]}")
    result: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def main() -> None:
    """Measure in rounds, print, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8, help="steps in a round; the first two are not counted")
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--allow-dirty", action="store_true", help="report although the tree has changes")
    args = parser.parse_args()

    config = load_config(OVERRIDES)
    ours = Ours(config)
    rollout_s: list[float] = []
    step_s: list[float] = []
    peers: dict[str, list[dict[str, float]]] = {"hybrid": [], "dense": []}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(args.rounds):
            ours.rollout_cpu_s, ours.step_cpu_s = [], []
            for _ in range(args.steps):
                ours.run_step(Path(folder))
            rollout_s += ours.rollout_cpu_s[2:]
            step_s += ours.step_cpu_s[2:]
            if not args.no_peer:
                for kind, results in peers.items():
                    results.append(run_peer(args.peer_python, kind, args.steps))

    tokens = GROUPS * GROUP_SIZE * NEW_TOKENS
    rollout, step = statistics.median(rollout_s), statistics.median(step_s)
    figures = {
        "rollout_tokens_per_cpu_s": tokens / rollout,
        "train_tokens_per_cpu_s": tokens / (step - rollout),
        "tokens_per_cpu_s": tokens / step,
    }
    rows = []
    for kind, results in peers.items():
        must = "at least 1.5x" if kind == "hybrid" else None
        for name, value in figures.items():
            peer_value = statistics.median(result[name] for result in results) if results else None
            rows.append(
                Row(
                    name=f"{name} against {kind}",
                    value=value,
                    unit="tokens/CPU-s",
                    peer=f"TRL GRPO, {kind}",
                    peer_value=peer_value,
                    must=must if name == "tokens_per_cpu_s" else None,
                )
            )
    sizes = describe(config.model)["parameters"]
    for name in ("total", "active"):
        peer_size = peers["hybrid"][0]["parameters"] if name == "total" and peers["hybrid"] else None
        rows.append(
            Row(name=f"parameters, {name}", value=sizes[name], unit="", peer="TRL hybrid", peer_value=peer_size)
        )
    print(write_report("end_to_end", rows, allow_dirty=args.allow_dirty))


if __name__ == "__main__":
    main()
