"""A disk without room under a run, on a small file system that bubblewrap mounts. Parts of it: tests/unit/actors/."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

SMALL = (
    "pretrain.steps=2",
    "pretrain.episodes_per_step=2",
    "pretrain.eval_every=0",
    "train.checkpoint_every=1",
    "eval.episodes=2",
    "env.variants={}",
    "rollout.max_turn_tokens=64",
    "cluster.dashboard=false",
    "cluster.rollout_actors=1",
    "cluster.learner_ranks=1",
)
DISK_BYTES, FILLER_BYTES = 60_000_000, 55_000_000
# a checkpoint takes 15 MB: there is room for groups and metrics, and after the filler is gone for all
SCRIPT = """
head -c {filler} /dev/zero > filler
{segue} pretrain {small} run.dir=run; echo "code $?"
cp -r run {copies}/full
rm filler
{segue} pretrain run.dir=run; echo "code $?"
cp -r run {copies}/done
"""


def test_a_full_disk_ends_the_run_and_with_room_it_goes_on_with_nothing_lost_and_nothing_twice(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    bwrap = shutil.which("bwrap")
    assert bwrap is not None, "apt-get install bubblewrap"
    segue = f"{sys.executable} -P -m segue.actors.cli.main"
    script = SCRIPT.format(filler=FILLER_BYTES, segue=segue, small=" ".join(SMALL), copies=tmp_path)
    command = [bwrap, "--dev-bind", "/", "/", "--size", str(DISK_BYTES), "--tmpfs", str(disk), "--chdir", str(disk)]
    done = subprocess.run(
        [*command, "bash", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=280
    )
    first, _, second = done.stdout.partition("code 2")
    assert "No space left on device" in first, done.stdout
    assert f"segue pretrain run.dir={disk}/run goes on" in first
    full, end = tmp_path / "full", tmp_path / "done"
    # no part of the checkpoint takes the room that was too little
    assert list((full / "checkpoints").iterdir()) == []
    kept = {path.name: path.read_bytes() for path in (full / "groups").iterdir()}
    assert kept
    assert json.loads((full / "summary.json").read_text())["status"].startswith("failed: ")
    assert "code 0" in second, done.stdout
    uses: dict[str, list[int]] = {}
    for checkpoint in sorted((end / "checkpoints").iterdir()):
        entries = json.loads((checkpoint / "controller.json").read_text())["buffer"]["entries"]
        uses |= {entry["record"]["group_id"]: entry["uses"] for entry in entries if entry["uses"]}
    # a group a step, each trained once, and what was finished before the disk was full is among them
    assert sorted(uses.values()) == [[1], [2]]
    assert {f"{group_id}.safetensors" for group_id in uses} >= {name for name in kept if ".0." in name}
