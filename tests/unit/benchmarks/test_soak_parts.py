"""The soak's schedule, its hands on files and calls, what it takes a process for, and how it measures growth."""

import hashlib
import random
from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from actor_cases import make_group, write_group
from soak_env import SoakSqlEnv
from soak_faults import ENDS_PROCESS, KINDS, Hands, Planned, Scene, schedule
from soak_memory import fit
from soak_run import Role, role_of

from segue.rollout.trajectory_file import TrajectoryFileError, load_group

KEEPER_LINE = ["python", "-m", "segue.envs.keeper", "7"]


def plan(kind: str, pick: float = 0.0) -> Planned:
    return Planned(kind=kind, gap_s=0.0, hold_s=0.0, pick=pick)


def scene_of(*ready: Path) -> Scene:
    return Scene(processes={}, ready=ready, is_at_work=True)


def test_the_same_seed_gives_the_same_schedule_and_another_seed_another() -> None:
    kinds = list(KINDS)
    first, again, other = (list(islice(schedule(seed, kinds, 10.0, gentle_after_s=300.0), 50)) for seed in (0, 0, 1))
    assert first == again != other
    assert all(2.0 <= planned.gap_s <= 18.0 for planned in first)


def test_every_kind_comes_once_before_any_comes_again() -> None:
    kinds = list(KINDS)
    planned = list(islice(schedule(3, kinds, 1.0, gentle_after_s=1e9), 2 * len(kinds)))
    for half in (planned[: len(kinds)], planned[len(kinds) :]):
        assert Counter(fault.kind for fault in half) == Counter(kinds)


def test_later_faults_let_processes_live() -> None:
    kinds = list(KINDS)
    planned = list(islice(schedule(0, kinds, 10.0, gentle_after_s=0.0), 100))
    assert {fault.kind for fault in planned} == set(kinds) - ENDS_PROCESS
    # a round of 23 kinds takes at least 23 · 0.2 · 10 s = 46 s
    mixed = list(islice(schedule(0, kinds, 10.0, gentle_after_s=46.0), 3 * 23))
    assert {fault.kind for fault in mixed[:23]} >= ENDS_PROCESS
    assert not {fault.kind for fault in mixed[-23:]} & ENDS_PROCESS
    only = list(islice(schedule(0, ["kill-driver"], 1.0, gentle_after_s=0.0), 3))
    assert [fault.kind for fault in only] == ["kill-driver"] * 3


@pytest.mark.parametrize("pick", [0.0, 0.3, 0.99])
@pytest.mark.parametrize("kind", ["flip-group", "cut-group", "delete-group"])
def test_a_damaged_group_is_refused_by_the_digest_that_it_had(tmp_path: Path, kind: str, pick: float) -> None:
    record = write_group(tmp_path, make_group(0))
    path = tmp_path / record.file
    size = path.stat().st_size
    injected = Hands(tmp_path).inflict(plan(kind, pick), scene_of(path))
    assert injected is not None and injected.poisoned == record.group_id
    with pytest.raises(TrajectoryFileError):
        load_group(path, digest=record.digest)
    if kind == "delete-group":
        assert injected.digest is None and not path.exists()
    else:
        assert injected.digest == hashlib.sha256(path.read_bytes()).hexdigest() != record.digest
        assert (path.stat().st_size == size) == (kind == "flip-group")


def test_a_group_that_is_gone_is_not_made_again(tmp_path: Path) -> None:
    for kind in ("flip-group", "cut-group", "delete-group"):
        assert Hands(tmp_path).inflict(plan(kind), scene_of(tmp_path / "gone.safetensors")) is None
        assert Hands(tmp_path).inflict(plan(kind), scene_of()) is None
    assert list(tmp_path.iterdir()) == []


def test_trouble_waits_for_one_call_and_strikes_no_other(tmp_path: Path) -> None:
    env = SoakSqlEnv(trouble=str(tmp_path), dawdle_s=0.0)
    env.begin(0, {})
    hands = Hands(tmp_path)
    assert hands.inflict(plan("call-fails"), scene_of()) is None
    with pytest.raises(RuntimeError, match="the soak had this call fail"):
        env.call("list_tables", {})
    injected = hands.inflict(plan("call-fails"), scene_of())
    assert injected is not None and injected.kind == "call-fails"
    assert env.call("list_tables", {}).observation


def test_trouble_that_nobody_met_is_taken_back(tmp_path: Path) -> None:
    hands = Hands(tmp_path)
    hands.inflict(plan("call-hangs"), scene_of())
    assert len(list(tmp_path.iterdir())) == 1
    hands.give_up()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "command_line", "parent_line", "role"),
    [
        ("raylet", ["/ray/raylet", "--port=1"], ["python"], Role.raylet),
        ("gcs_server", ["/ray/gcs_server"], ["python"], Role.gcs),
        ("ray::RolloutActor", ["ray::RolloutActor", ""], ["raylet"], Role.rollout),
        ("ray::rollout-0.play", ["ray::rollout-0.play"], ["raylet"], Role.rollout),
        ("ray::LearnerActor.start", ["ray::LearnerActor.start"], ["raylet"], Role.learner),
        ("ray::learner-1.train_step", ["ray::learner-1.train_step"], ["raylet"], Role.learner),
        ("ray::IDLE", ["ray::IDLE"], ["raylet"], Role.other),
        ("python", ["python", "-m", "segue.envs.keeper", "7"], ["ray::RolloutActor"], Role.other),
        (
            "python",
            ["python", "-m", "segue.envs.keeper", "7"],
            ["python", "-m", "segue.envs.keeper", "7"],
            Role.env_worker,
        ),
    ],
)
def test_processes_are_told_by_their_titles(
    name: str, command_line: list[str], parent_line: list[str], role: Role
) -> None:
    assert role_of(name, command_line, parent_line) is role


def test_growth_is_one_slope_through_processes_of_different_levels() -> None:
    # 2 MB a second is 7,200 MB an hour; the levels of 100 and 300 MB are not in it
    first = [(t, 100e6 + 2e6 * t) for t in range(60, 120)]
    second = [(t, 300e6 + 2e6 * t) for t in range(10, 20)]
    growth = fit([first, second])
    assert growth is not None and growth.num_processes == 2
    assert growth.slope == pytest.approx(7200.0)
    assert growth.minutes == pytest.approx((59 + 9) / 60)


def test_growth_agrees_with_least_squares_on_noise() -> None:
    rng = random.Random(0)
    samples = [(float(t), 1e8 + 3e4 * t + rng.gauss(0.0, 1e6)) for t in range(100)]
    slope, _ = np.polyfit(*np.array(samples).T, 1)
    growth = fit([samples])
    assert growth is not None and growth.slope == pytest.approx(slope * 3600 / 1e6)


def test_nothing_seen_is_no_growth() -> None:
    assert fit([]) is None
