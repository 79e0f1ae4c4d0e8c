"""Waits of the fleet, on a real Ray actor that sleeps, fails and dies: each says who, what and how long."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from segue.actors.errors import Interrupted, RunError
from segue.actors.supervise import Fleet, Interrupt, Member, actor_options
from segue.conf.environment import apply_driver_environment
from segue.conf.schema import ClusterConfig, SegueConfig


class Once:
    """An answer whose deserialisation makes a folder, which can be done once."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.path,)


class Sleeper:
    """An actor with every way of not answering."""

    def answer(self, value: int) -> int:
        return value

    def answer_once(self, path: str) -> Once:
        return Once(path)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def fail(self) -> None:
        raise ValueError("the reason")

    def die(self) -> None:
        os._exit(3)


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    apply_driver_environment()
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR", namespace="test")
    yield
    ray.shutdown()


def make_fleet(tmp_path: Path) -> tuple[Fleet, Member, Interrupt]:
    interrupt = Interrupt(lambda text: None)
    handle = ray.remote(Sleeper).options(num_cpus=0).remote()
    return Fleet(SegueConfig(), run_folder=tmp_path, interrupt=interrupt), Member("rollout-0", handle), interrupt


def test_answers_come_in_the_order_of_the_questions(cluster: None, tmp_path: Path) -> None:
    fleet, member, _ = make_fleet(tmp_path)
    calls = [fleet.call(member, "answer", value) for value in (3, 1, 2)]
    assert fleet.wait(calls, timeout_s=30, what="answers") == [3, 1, 2]
    call = fleet.call(member, "answer", 7)
    assert fleet.wait_any([call], timeout_s=30, what="an answer") == [(call, 7)]


def test_an_answer_does_not_wait_for_the_others(cluster: None, tmp_path: Path) -> None:
    fleet, member, _ = make_fleet(tmp_path)
    other = make_fleet(tmp_path)[1]
    fleet.wait([fleet.call(member, "answer", 0)], timeout_s=30, what="the actor to start")
    slow = fleet.call(other, "sleep", 60)
    start = time.monotonic()
    for value in range(20):
        call = fleet.call(member, "answer", value)
        assert fleet.wait_any([slow, call], timeout_s=30, what="an answer") == [(call, value)]
    # each wait would last its whole poll of 0.5 s if it were for all
    assert time.monotonic() - start < 20 * 0.5


def test_an_answer_is_deserialised_once(cluster: None, tmp_path: Path) -> None:
    fleet, member, _ = make_fleet(tmp_path)
    calls = [fleet.call(member, "answer_once", str(tmp_path / name)) for name in "ab"]
    assert fleet.wait(calls, timeout_s=30, what="answers") == [None, None]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_a_run_starts_a_ray_of_its_own_that_asks_for_a_token_whatever_the_shell_says(tmp_path: Path) -> None:
    command = [sys.executable, "-P", str(Path(__file__).parent / "own_ray.py"), str(tmp_path)]
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled", "RAY_ADDRESS": "127.0.0.1:1"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, timeout=240, check=True)
    told, status, *signals = done.stdout.splitlines()[-4:]
    assert told.startswith("http://127.0.0.1:") and told.endswith("ray get-auth-token` prints it)")
    assert status == "401"
    # Ray takes signals for itself when it starts
    assert signals == ["ending: the step at hand, then a checkpoint; again to end at once", "at once"]


def test_signals_go_back_to_whom_they_were_with_and_an_ignored_hang_up_stays_ignored() -> None:
    def other(number: int, frame: object) -> None:
        """Takes a signal over, as Ray does."""

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    first = [signal.getsignal(number) for number in numbers]
    interrupt = Interrupt(lambda text: None)
    try:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        interrupt.install()
        signal.signal(signal.SIGTERM, other)
        interrupt.install()
        os.kill(os.getpid(), signal.SIGHUP)
        assert not interrupt.is_set
        os.kill(os.getpid(), signal.SIGTERM)
        assert interrupt.is_set
        interrupt.uninstall()
        assert [signal.getsignal(number) for number in numbers[:2]] == first[:2]
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        for number, handler in zip(numbers, first, strict=True):
            signal.signal(number, handler)


def test_a_cluster_that_is_not_there_is_named_with_what_to_do(tmp_path: Path) -> None:
    config = SegueConfig(cluster=ClusterConfig(address="nowhere"))
    with pytest.raises(
        RunError, match=r"^Ray did not start: \w+: .*; is a cluster up at nowhere\? leave cluster\.address"
    ):
        Fleet(config, run_folder=tmp_path, interrupt=Interrupt(print)).start(
            num_rollout=0, num_learners=0, exported_model=None
        )


def test_an_actor_asks_a_cluster_that_is_there_for_a_cpu_a_thread() -> None:
    assert actor_options(ClusterConfig(address="auto", threads=8), "learner-0")["num_cpus"] == 8
    # a Ray of the run's own takes all of its actors, however small the machine
    assert actor_options(ClusterConfig(threads=8), "learner-0")["num_cpus"] == 1


def test_a_deadline_says_who_waited_for_what_and_how_long(cluster: None, tmp_path: Path) -> None:
    fleet, member, _ = make_fleet(tmp_path)
    message = r"^the controller waited 1 s for groups for step 4, without an answer from rollout-0$"
    with pytest.raises(RunError, match=message):
        fleet.wait([fleet.call(member, "sleep", 60)], timeout_s=1, what="groups for step 4")


def test_a_failure_and_a_death_name_the_actor_and_do_not_wait_for_the_others(cluster: None, tmp_path: Path) -> None:
    fleet, member, _ = make_fleet(tmp_path)
    other = make_fleet(tmp_path)[1]
    start = time.monotonic()
    with pytest.raises(RunError, match=r"^rollout-0 failed: ValueError: the reason$"):
        fleet.wait([fleet.call(other, "sleep", 60), fleet.call(member, "fail")], timeout_s=60, what="both")
    with pytest.raises(RunError, match=r"^rollout-0 died: "):
        fleet.wait([fleet.call(other, "sleep", 60), fleet.call(member, "die")], timeout_s=60, what="both")
    assert time.monotonic() - start < 30


def test_the_users_wish_to_end_breaks_only_waits_that_may_be_broken(cluster: None, tmp_path: Path) -> None:
    fleet, member, interrupt = make_fleet(tmp_path)
    interrupt.is_set = True
    with pytest.raises(Interrupted):
        fleet.wait_any([fleet.call(member, "sleep", 60)], timeout_s=60, what="a group")
    other = make_fleet(tmp_path)[1]
    assert fleet.wait([fleet.call(other, "answer", 5)], timeout_s=30, what="the learner's step") == [5]
