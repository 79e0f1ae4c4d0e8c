"""Processes of real runs killed and stopped: the run goes on or resumes, and tells of each.

Orders, bounds and the ledger under losses of every kind are in tests/property/test_controller_schedules.py.
"""

import os
import signal
from collections import Counter
from pathlib import Path

import psutil
from run_cases import SMALL, TIMEOUT_S, has_steps, ledger, read_json, start, step_lines, wait_until

# every checkpoint is kept, so the ledger holds every group that trained
KEPT = ("train.keep_checkpoints=100", "train.checkpoint_every=2", "train.max_staleness=1")


def signal_one(root: int, title: str, number: int) -> None:
    """Send a signal to a process of the run with this in its title; Ray names a worker's process after its actor."""
    found: list[psutil.Process] = []

    def is_there() -> bool:
        found[:] = [child for child in psutil.Process(root).children(recursive=True) if has_title(child, title)]
        return bool(found)

    wait_until(is_there)
    os.kill(found[0].pid, number)


def has_title(process: psutil.Process, title: str) -> bool:
    try:
        return title in process.name() or title in " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False


def assert_whole(folder: Path, steps: int) -> None:
    """The line of the run has every step once, and no group trained twice."""
    assert [line["step"] for line in step_lines(folder)] == list(range(1, steps + 1))
    entries = ledger(folder)
    uses = Counter(step for entry in entries for step in entry["uses"])
    assert all(len(entry["uses"]) <= 1 for entry in entries)
    trained = [entry["record"]["number"] for entry in entries if entry["uses"]]
    assert len(trained) == len(set(trained))
    assert set(uses.values()) == {2}


def test_a_run_goes_on_without_a_rollout_actor_and_without_a_learner_rank(tmp_path: Path) -> None:
    folder = tmp_path / "losing"
    several = ("cluster.rollout_actors=2", "cluster.learner_ranks=2", "cluster.answer_timeout_s=8")
    process = start("train", *SMALL, *KEPT, *several, "train.steps=9", f"run.dir={folder}")
    for step, title, number in (
        (1, "rollout-0", signal.SIGKILL),
        (3, "rollout-1", signal.SIGSTOP),
        (5, "learner-1", signal.SIGKILL),
        (7, "envs.", signal.SIGKILL),
    ):
        wait_until(lambda step=step: has_steps(folder, step) or process.poll() is not None)
        signal_one(process.pid, title, number)
    text, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, text
    summary = read_json(folder / "summary.json")
    assert (summary["status"], summary["steps"], summary["num_groups"]) == ("finished", 9, 18)
    faults = summary["faults"]
    for who, what in (("rollout-0", "died"), ("rollout-1", "gave no answer for 8 s"), ("learner", "died")):
        told = [fault for fault in faults if fault["who"] == who and what in fault["what"]]
        assert len(told) == 1, faults
        assert told[0]["done"] and f"{who}: {told[0]['what']}; {told[0]['done']}" in text
    # rollout went on: each actor was replaced once, and none because of the learner
    assert Counter(fault["who"] for fault in faults)["rollout-0"] == 1
    (restore,) = summary["restores"]
    assert restore["incarnation"] == 1 and restore["at_step"] % 2 == 0
    assert_whole(folder, 9)


def test_a_run_resumes_by_itself_when_ray_dies_and_by_its_command_when_it_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "killed"
    process = start("train", *SMALL, *KEPT, "train.steps=5", f"run.dir={folder}")
    wait_until(lambda: has_steps(folder, 1))
    signal_one(process.pid, "raylet", signal.SIGKILL)
    wait_until(lambda: len(read_json(folder / "run.json")) == 2)
    wait_until(lambda: has_steps(folder, 2))
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate(timeout=TIMEOUT_S)
    # Ray's two agents see after a minute that they are alone
    _, alive = psutil.wait_procs([child for child in children if not has_title(child, "Agent")], timeout=30)
    assert alive == []
    again = start("train", f"run.dir={folder}")
    text, _ = again.communicate(timeout=TIMEOUT_S)
    assert again.returncode == 0, text
    summary = read_json(folder / "summary.json")
    assert (summary["status"], summary["steps"]) == ("finished", 5)
    told = [(fault["who"], fault["what"].partition(",")[0]) for fault in summary["faults"]]
    assert ("ray", "Ray on this machine died") in told
    assert told[-1] == ("controller", "the launch before ended without a word")
    assert_whole(folder, 5)
