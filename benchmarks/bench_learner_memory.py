"""Memory of the learner's step over a single trajectory: segmented against whole-sequence backpropagation.

    python benchmarks/bench_learner_memory.py

For each length a process builds the learner (DeepSpeed, `tiny`), notes its memory, trains on one trajectory and notes
its peak. What must grow with the trajectory (token and label arrays, latent rows with their gradients, boundary
states) is counted from shapes and taken off; what is left must not grow from 16K to 64K tokens.
"""

import argparse
import json
import os
import resource
import subprocess
import sys

# before the tensor library loads: one arena, freed memory goes back, so that the peak is what was in use
os.environ.update(
    OMP_NUM_THREADS="1",
    CUDA_VISIBLE_DEVICES="",
    MALLOC_ARENA_MAX="1",
    MALLOC_TRIM_THRESHOLD_="0",
    MALLOC_MMAP_THRESHOLD_="65536",
)

import numpy as np
import psutil
import torch
from report import Row, free_port, write_report

from segue.actors.text import text_trajectory
from segue.conf.load import load_config
from segue.conf.model_config import ModelConfig
from segue.learner.learner import Learner
from segue.rollout.stored_group import StoredGroup
from segue.rollout.trajectory import Group, PolicyVersion

SEGMENT_TOKENS = 1024
LENGTHS = (4096, 16384, 65536)
# token id, mask, log-probability, versions; of a label: position, number, id, temperature, two results, two gradients
TOKEN_ARRAY_BYTES = (4 + 1 + 4 + 4 + 4) + (8 + 8 + 8 + 4 + 4 + 4 + 4 + 4)


def demonstration(num_tokens: int) -> Group:
    """One random trajectory; all but its first token are trained on."""
    token_ids = np.random.default_rng(0).integers(0, 256, num_tokens).astype(np.int32)
    trajectory = text_trajectory(token_ids, task_id="memory", group_id="memory", index=0)
    version = PolicyVersion(0, 0)
    return Group(
        task_id="memory",
        group_id="memory",
        trajectories=(trajectory,),
        first_version=version,
        last_version=version,
        made_by="benchmark",
    )


def measure(num_tokens: int, segment_tokens: int) -> dict[str, float]:
    """Bytes of this process: after the build (and one short step, which loads what loads late), and at the peak."""
    torch.set_num_threads(1)
    config = load_config(
        [
            "model=tiny",
            "run.init_from=null",
            "cluster.learner_ranks=1",
            f"learner.segment_tokens={segment_tokens}",
            f"learner.micro_step_tokens={segment_tokens}",
            f"rollout.max_episode_tokens={num_tokens}",
        ],
        "pretrain",
    )
    learner = Learner(
        config,
        config.pretrain.optimizer,
        rank=0,
        address=("127.0.0.1", free_port()),
        device=torch.device("cpu"),
        initial_model=None,
    )
    learner.imitate_step([StoredGroup.of(demonstration(128))], step=0, place=None)
    built = psutil.Process().memory_info().rss
    learner.imitate_step([StoredGroup.of(demonstration(num_tokens))], step=1, place=None)
    return {"built": built, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0}


def counted_bytes(config: ModelConfig, num_tokens: int) -> float:
    """What grows by design: token arrays; rows, their gradient sums and the returned gradients; boundaries."""
    rows = num_tokens * config.latent_row_size * len(config.mla_layers) * 4
    boundary = (
        sum(int(np.prod(shape)) for shape in (config.recurrent_shape, config.conv_shape)) * len(config.kda_layers) * 4
    )
    return num_tokens * TOKEN_ARRAY_BYTES + 3 * rows + num_tokens // SEGMENT_TOKENS * boundary


def run(num_tokens: int, segment_tokens: int) -> float:
    """Peak over the built learner, bytes, in a process of its own."""
    command = [sys.executable, __file__, "--tokens", str(num_tokens), "--segment", str(segment_tokens)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    if done.returncode:
        raise SystemExit(f"failed: {' '.join(command)}\n{done.stderr[-2000:]}")
    result = json.loads(done.stdout.strip().splitlines()[-1])
    return result["peak"] - result["built"]


def main() -> None:
    """Measure every length and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, help="measure one length in this process")
    parser.add_argument("--segment", type=int, default=SEGMENT_TOKENS)
    parser.add_argument("--allow-dirty", action="store_true", help="report although the tree has changes")
    args = parser.parse_args()
    if args.tokens is not None:
        print(json.dumps(measure(args.tokens, args.segment)))
        return
    config = load_config(["model=tiny", "run.init_from=null"]).model
    rows, left = [], {}
    for num_tokens in LENGTHS:
        segmented = run(num_tokens, SEGMENT_TOKENS)
        left[num_tokens] = segmented - counted_bytes(config, num_tokens)
        whole = run(num_tokens, num_tokens) if num_tokens < LENGTHS[-1] else None
        rows.append(
            Row(
                name=f"peak over the built learner, {num_tokens // 1024}K tokens",
                value=segmented / 2**20,
                unit="MB",
                peer="whole-sequence backpropagation",
                peer_value=None if whole is None else whole / 2**20,
            )
        )
        rows.append(
            Row(name=f"of it not counted, {num_tokens // 1024}K tokens", value=left[num_tokens] / 2**20, unit="MB")
        )
    growth = left[LENGTHS[2]] / left[LENGTHS[1]] - 1.0
    rows.append(Row(name="growth of the uncounted part, 16K to 64K", value=100.0 * growth, unit="%", must="under 10"))
    print(write_report("learner_memory", rows, allow_dirty=args.allow_dirty))


if __name__ == "__main__":
    main()
