"""Files of groups: exact round trips, equal bytes, and errors for what is not whole.

Durability across a power cut (fsync) is not covered: no test can see it.
"""

from dataclasses import fields
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from segue.rollout.trajectory import Group, Outcome, PolicyVersion, Source, Trajectory, Turn
from segue.rollout.trajectory_file import TrajectoryFileError, load_group, save_group


def make_trajectory(num_tokens: int, *, seed: int = 0, with_experts: bool = False, **changes: Any) -> Trajectory:
    rng = np.random.default_rng(seed)
    trainable = np.zeros(num_tokens, np.bool_)
    trainable[num_tokens // 2 :] = True
    turn = Turn(start=num_tokens // 2, end=num_tokens, temperature=0.7, reward_terms={"process": 0.1}, num_calls=2)
    members: dict[str, Any] = {
        "token_ids": rng.integers(0, 2**31, num_tokens).astype(np.int32),
        "trainable": trainable,
        "source": Source.policy,
        "behaviour_logprob": np.where(trainable, -rng.random(num_tokens), 0).astype(np.float32),
        "policy_incarnation": np.where(trainable, 2, 0).astype(np.int32),
        "policy_step": np.where(trainable, 5, 0).astype(np.int32),
        "turns": (turn,),
        "outcome_terms": {"success": 1.0, "länge": -0.3},
        "outcome": Outcome.truncated_turns,
        "task_id": "sql/7",
        "group_id": "sql/7/0",
        "index": 1,
        "attempt": 2,
        "seed": 2**62 + 1,
        "expert_ids": rng.integers(0, 2**16, (num_tokens, 3, 4)).astype(np.uint16) if with_experts else None,
        "info": {"class": "filtered count", "rows": [1, None, "ü"], "is_correct": True},
    }
    return Trajectory(**(members | changes))


def make_group(*trajectories: Trajectory) -> Group:
    return Group(
        task_id="sql/7",
        group_id="sql/7/0",
        trajectories=trajectories,
        first_version=PolicyVersion(2, 4),
        last_version=PolicyVersion(2, 6),
        made_by="rollout_0",
    )


def save_trajectory(path: Path, trajectory: Trajectory) -> str:
    """A group of one."""
    return save_group(path, make_group(trajectory))


def load_trajectory(path: Path, *, digest: str | None = None) -> Trajectory:
    """Of such a group."""
    (trajectory,) = load_group(path, digest=digest).trajectories
    return trajectory


def assert_same(left: Trajectory, right: Trajectory) -> None:
    for member in fields(Trajectory):
        a, b = getattr(left, member.name), getattr(right, member.name)
        if isinstance(a, np.ndarray):
            assert a.dtype == b.dtype
            assert np.array_equal(a, b), member.name
        else:
            assert a == b, member.name


def test_a_trajectory_comes_back_bit_for_bit(tmp_path: Path) -> None:
    trajectory = make_trajectory(65, with_experts=True)
    digest = save_trajectory(tmp_path / "one.safetensors", trajectory)
    assert digest == sha256((tmp_path / "one.safetensors").read_bytes()).hexdigest()
    assert_same(load_trajectory(tmp_path / "one.safetensors", digest=digest), trajectory)


def test_memory_order_does_not_matter(tmp_path: Path) -> None:
    experts = np.arange(24, dtype=np.uint16).reshape(4, 3, 2).transpose(2, 1, 0)
    strided = np.arange(4, dtype=np.int32)[::2]
    trajectory = make_trajectory(2, token_ids=strided, expert_ids=experts)
    save_trajectory(tmp_path / "one.safetensors", trajectory)
    loaded = load_trajectory(tmp_path / "one.safetensors")
    assert loaded.token_ids.tolist() == [0, 2]
    assert loaded.expert_ids is not None
    # element [t, layer, k] of the transposed array is [k, layer, t] of the counted one: 6 k + 2 layer + t
    assert [int(loaded.expert_ids[1, 2, k]) for k in range(4)] == [5, 11, 17, 23]


def test_a_group_comes_back_with_ragged_members(tmp_path: Path) -> None:
    group = make_group(make_trajectory(9, seed=1), make_trajectory(130, seed=2, with_experts=True))
    digest = save_group(tmp_path / "group.safetensors", group)
    loaded = load_group(tmp_path / "group.safetensors", digest=digest)
    for member in ("task_id", "group_id", "first_version", "last_version", "made_by"):
        assert getattr(loaded, member) == getattr(group, member)
    assert len(loaded.trajectories) == 2
    for left, right in zip(loaded.trajectories, group.trajectories, strict=True):
        assert_same(left, right)


def test_equal_groups_are_equal_files_and_writing_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "group.safetensors"
    first = save_group(path, make_group(make_trajectory(9), make_trajectory(12, with_experts=True)))
    again = save_group(path, load_group(path))
    assert first == again
    assert [entry.name for entry in tmp_path.iterdir()] == ["group.safetensors"]


def test_text_that_utf8_cannot_say_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "group.safetensors"
    info = {"note": "\ud800", "cause": "RuntimeError: \udfff", "\udc80": "ü"}
    digest = save_group(path, make_group(make_trajectory(9, info=info)))
    loaded = load_group(path)
    assert loaded.trajectories[0].info == info
    assert save_group(path, loaded) == digest


def test_a_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "one.safetensors"
    digest = save_trajectory(path, make_trajectory(9))
    with pytest.raises(ValueError, match="not JSON compliant"):
        save_trajectory(path, make_trajectory(9, info={"x": float("nan")}))
    with pytest.raises(ValueError, match="token_ids must be int32"):
        save_trajectory(path, make_trajectory(9, token_ids=np.zeros(9, np.int64)))
    assert sha256(path.read_bytes()).hexdigest() == digest
    assert len(list(tmp_path.iterdir())) == 1


def test_what_is_not_such_a_file_is_named(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.safetensors"
    save_file({"x": np.zeros(3, np.float32)}, foreign)
    text = tmp_path / "text.safetensors"
    text.write_text("not a safetensors file at all")
    for path, reason in (
        (foreign, "must be a segue-group/3 file, got a foreign one"),
        (text, "must be a whole file"),
        (tmp_path / "missing.safetensors", "FileNotFoundError"),
        (tmp_path, "must be a whole file"),
    ):
        with pytest.raises(TrajectoryFileError, match=reason) as caught:
            load_group(path)
        assert str(path) in str(caught.value)


def test_every_truncation_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "group.safetensors"
    save_group(path, make_group(make_trajectory(9)))
    whole = path.read_bytes()
    for length in (0, 7, 8, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(TrajectoryFileError, match=r"group\.safetensors must be a whole"):
            load_group(path)


def test_a_changed_byte_is_found_by_the_digest(tmp_path: Path) -> None:
    path = tmp_path / "one.safetensors"
    digest = save_trajectory(path, make_trajectory(9))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(TrajectoryFileError, match=f"must have SHA-256 {digest}"):
        load_trajectory(path, digest=digest)


def test_a_changed_byte_is_found_by_the_file_itself_where_nobody_knows_its_digest(tmp_path: Path) -> None:
    path = tmp_path / "group.safetensors"
    save_group(path, make_group(make_trajectory(9), make_trajectory(5, with_experts=True)))
    whole = path.read_bytes()
    load_group(path)
    # a prime: every place in a word of an array comes
    for place in range(0, len(whole), 5):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(TrajectoryFileError, match=r"group\.safetensors must (be|have)"):
            load_group(path)


@pytest.mark.parametrize(
    ("before", "after"),
    [(b'"outcome":"truncated_turns"', b'"outcome":"truncated_horns"'), (b'"attempt"', b'"attempz"')],
)
def test_a_broken_header_is_an_error(tmp_path: Path, before: bytes, after: bytes) -> None:
    path = tmp_path / "one.safetensors"
    save_trajectory(path, make_trajectory(9))
    # the header stands as a JSON string inside safetensors' own JSON
    before, after = (part.replace(b'"', b'\\"') for part in (before, after))
    content = path.read_bytes()
    assert content.count(before) == 1
    broken = content.replace(before, after)
    path.write_bytes(broken)
    with pytest.raises(TrajectoryFileError, match="must be a whole file"):
        load_trajectory(path, digest=sha256(broken).hexdigest())
