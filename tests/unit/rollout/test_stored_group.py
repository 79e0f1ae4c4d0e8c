"""Groups read where they are needed: the header tells what a plan needs, and each trajectory is read alone."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
from learner_cases import make_group, make_trajectory
from safetensors import safe_open
from safetensors.numpy import save_file

from segue.rollout.stored_group import StoredGroup, TrajectorySummary
from segue.rollout.trajectory import Outcome, PolicyVersion, Source
from segue.rollout.trajectory_file import TrajectoryFileError, open_group, save_group


def spanning(seed: int):
    """Its first turn is of step 2, its second of step 5."""
    whole = make_trajectory(seed, reward=1.0)
    steps = np.zeros(whole.num_tokens, np.int32)
    for turn, step in zip(whole.turns, (2, 5), strict=True):
        steps[turn.start : turn.end] = step
    return make_trajectory(seed, reward=1.0, policy_step=steps)


def test_a_summary_counts_tokens_by_version():
    trajectory = spanning(3)
    first, second = (turn.end - turn.start for turn in trajectory.turns)
    assert TrajectorySummary.of(trajectory) == TrajectorySummary(
        num_tokens=trajectory.num_tokens,
        trainable_by_version=((PolicyVersion(0, 2), first), (PolicyVersion(0, 5), second)),
        turn_rewards=(0.0, 0.0),
        outcome_reward=1.0,
        outcome=Outcome.success,
        source=Source.policy,
    )


def test_the_file_tells_what_the_arrays_hold(tmp_path: Path):
    group = make_group([spanning(3), make_trajectory(4, reward=0.1)])
    path = tmp_path / "group.safetensors"
    stored = open_group(path, digest=save_group(path, group))
    assert stored.members == StoredGroup.of(group).members
    for index, trajectory in enumerate(group.trajectories):
        loaded = stored.load(index)
        assert np.array_equal(loaded.token_ids, trajectory.token_ids)
        assert np.array_equal(loaded.behaviour_logprob, trajectory.behaviour_logprob)
        assert loaded.turns == trajectory.turns


def test_a_plan_reads_no_arrays_and_loading_does(tmp_path: Path):
    path = tmp_path / "group.safetensors"
    digest = save_group(path, make_group([make_trajectory(1, reward=1.0)]))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    stored = open_group(path, digest=digest)
    assert stored.members[0].reward == 1.0
    with pytest.raises(TrajectoryFileError, match=f"must have SHA-256 {digest}"):
        stored.load(0)


def test_a_header_that_differs_from_its_arrays_is_refused(tmp_path: Path):
    path = tmp_path / "group.safetensors"
    save_group(path, make_group([make_trajectory(1, reward=1.0)]))
    with safe_open(path, framework="np") as file:
        metadata, arrays = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    count = len(arrays["0.token_ids"])
    text = metadata["segue"]
    assert text.count(f'"num_tokens":{count}') == 1
    save_file(arrays, path, metadata={"segue": text.replace(f'"num_tokens":{count}', f'"num_tokens":{count + 1}')})
    stored = open_group(path, digest=hashlib.sha256(path.read_bytes()).hexdigest())
    with pytest.raises(TrajectoryFileError, match="must hold what its header says of trajectory 0"):
        stored.load(0)
