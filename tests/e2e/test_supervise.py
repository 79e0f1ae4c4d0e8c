"""The fleet and the learner's ranks on real Ray actors that sleep, fail and die: each message says who, what and how
long.
"""

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

from segue.actors.errors import ActorLost, Interrupted, RunError
from segue.actors.fleet import Answer, Member
from segue.actors.interrupt import Interrupt
from segue.actors.learner_ranks import LearnerRanks
from segue.actors.ray_runtime import reserve_gpus
from segue.actors.supervise import RayFleet, actor_options
from segue.actors.weight_channel import WeightTicket, is_gone
from segue.conf.environment import apply_driver_environment
from segue.conf.schema import ClusterConfig, OptimizerConfig, SegueConfig
from segue.rollout.trajectory import PolicyVersion


class Once:
    """An answer whose deserialisation makes a folder, which can be done once."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.path,)


class Sleeper:
    """An actor with every way of not answering."""

    def __init__(self, rank: int = 0) -> None:
        self._rank = rank

    def open_store(self) -> None:
        """As a learner's rank."""

    def start(self, address: None, optimizer: OptimizerConfig, exported_model: None) -> None:
        """As a learner's rank."""

    def fail_where_another_dies(self) -> None:
        """What a rank's death looks like: the others fail, and are heard first."""
        if self._rank == 0:
            raise RuntimeError("connection closed by peer")
        time.sleep(1.0)
        os._exit(3)

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

    def publish(self) -> WeightTicket:
        return WeightTicket(version=PolicyVersion(0, 4), size_bytes=1, reference=ray.put(bytes(10**6)))

    def set_weights(self, ticket: WeightTicket) -> None:
        ray.get(ticket.reference)

    def visible_gpus(self) -> str:
        return os.environ["CUDA_VISIBLE_DEVICES"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    apply_driver_environment()
    # GPUs are names here
    counts = {"num_cpus": 3, "num_gpus": 2}
    ray.init(**counts, include_dashboard=False, log_to_driver=False, logging_level="ERROR", namespace="test")
    yield
    ray.shutdown()


class SleeperFleet(RayFleet):
    """A fleet whose actors are sleepers."""

    def spawn_learner(self, rank: int) -> Member:
        return self._join(f"learner-{rank}", ray.remote(Sleeper).options(num_cpus=0).remote(rank), {})

    def ask(self, member: Member, method: str, *arguments: Any) -> Answer:
        """Ask and wait for the answer."""
        answers: list[Answer] = []
        reference = self.call(member, method, *arguments)
        while not answers:
            answers = self.look([reference])
        return answers[0]


def make_fleet(tmp_path: Path) -> tuple[SleeperFleet, Member, Interrupt]:
    interrupt = Interrupt(lambda text: None)
    config = SegueConfig(cluster=ClusterConfig(learner_ranks=2))
    config.learner.step_timeout_s = 3.0
    fleet = SleeperFleet(config, run_folder=tmp_path, interrupt=interrupt)
    return fleet, fleet.spawn_learner(0), interrupt


def make_ranks(tmp_path: Path) -> LearnerRanks:
    fleet, _, _ = make_fleet(tmp_path)
    ranks = LearnerRanks(fleet, fleet.config, fleet.config.learner.optimizer)
    ranks.start(None)
    return ranks


def test_an_answer_does_not_wait_for_the_others(cluster: None, tmp_path: Path) -> None:
    fleet, member, _ = make_fleet(tmp_path)
    other = fleet.spawn_learner(1)
    fleet.ask(member, "answer", 0)
    slow = fleet.call(other, "sleep", 60)
    start = time.monotonic()
    for value in range(20):
        call = fleet.call(member, "answer", value)
        (answer,) = fleet.look([slow, call])
        assert (answer.reference, answer.value, answer.error) == (call, value, None)
    # each look would last its whole poll of 0.5 s if it were for all
    assert time.monotonic() - start < 20 * 0.5


def test_an_answer_is_deserialised_once(cluster: None, tmp_path: Path) -> None:
    fleet, member, _ = make_fleet(tmp_path)
    for name in "ab":
        assert fleet.ask(member, "answer_once", str(tmp_path / name)).or_raise() is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_a_run_starts_a_ray_of_its_own_that_asks_for_a_token_whatever_the_shell_says(tmp_path: Path) -> None:
    command = [sys.executable, "-P", str(Path(__file__).parent / "own_ray.py"), str(tmp_path)]
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled", "RAY_ADDRESS": "127.0.0.1:1"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, timeout=240, check=True)
    told, status, *signals = done.stdout.splitlines()[-5:]
    assert told.startswith("http://127.0.0.1:") and told.endswith("ray get-auth-token` prints it)")
    assert status == "401"
    # Ray takes signals for itself when it starts
    assert signals == ["ending: the step at hand, then a checkpoint; again to end at once", "at once", "deleted"]


def test_a_wish_to_end_is_heard_while_ray_starts(tmp_path: Path) -> None:
    command = [sys.executable, "-P", str(Path(__file__).parent / "ended_start.py"), str(tmp_path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=240, check=True)
    assert done.stdout.splitlines()[-1] == "interrupted"


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


@pytest.mark.parametrize(
    ("address", "told"),
    [
        (
            "nowhere",
            r"^Ray did not start: \w+: .*; is a cluster up at nowhere, and this machine one of its nodes\? leave",
        ),
        # Ray would try for minutes
        ("127.0.0.1:1", r"^cluster\.address must be that of a cluster, got 127\.0\.0\.1:1, where nothing is: "),
        (
            "ray://10.0.0.1:10001",
            r"^cluster\.address must be auto or host:port, got ray:.*; run the command on a node of",
        ),
    ],
    ids=["no address", "nothing there", "client"],
)
def test_a_cluster_that_is_not_there_is_named_with_what_to_do(tmp_path: Path, address: str, told: str) -> None:
    config = SegueConfig(cluster=ClusterConfig(address=address))
    start = time.monotonic()
    with pytest.raises(RunError, match=told):
        RayFleet(config, run_folder=tmp_path, interrupt=Interrupt(print)).start()
    assert time.monotonic() - start < 30


def test_a_cluster_that_was_there_is_named_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # where Ray looks for the one that `auto` means
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    fleet = RayFleet(
        SegueConfig(cluster=ClusterConfig(address="auto")), run_folder=tmp_path, interrupt=Interrupt(print)
    )
    with pytest.raises(RunError, match=r"^cluster\.address must be that of a cluster, got \S+:1, where nothing is: "):
        fleet.start()


@pytest.mark.parametrize("named", ["ray://10.0.0.1:10001", "local"])
def test_a_shell_that_names_no_cluster_to_join_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", named)
    fleet = RayFleet(
        SegueConfig(cluster=ClusterConfig(address="auto")), run_folder=tmp_path, interrupt=Interrupt(print)
    )
    with pytest.raises(RunError, match=f"^RAY_ADDRESS must be host:port, which cluster.address=auto joins, .* {named}"):
        fleet.start()


def test_an_actor_asks_a_cluster_that_is_there_for_a_cpu_a_thread_and_for_what_its_kind_takes() -> None:
    options = actor_options(ClusterConfig(address="auto", threads=8), "learner-0", {"GPU": 0.5, "fast": 2})
    assert (options["num_cpus"], options["num_gpus"], options["resources"]) == (8, 0.5, {"fast": 2})
    # a Ray of the run's own takes all of its actors, however small the machine
    assert actor_options(ClusterConfig(threads=8), "learner-0", {})["num_cpus"] == 1


def test_actors_of_a_ray_of_the_runs_own_are_sent_to_the_gpus_that_are_named(cluster: None) -> None:
    strategies = reserve_gpus({"rollout-0": 1, "learner-0": 0, "learner-1": 1}, 30.0)
    # with such small parts Ray alone would put all of them on one
    sleepers = [
        ray.remote(Sleeper).options(num_cpus=1, num_gpus=0.3, scheduling_strategy=strategy).remote()
        for strategy in strategies.values()
    ]
    rollout, first, second = ray.get([sleeper.visible_gpus.remote() for sleeper in sleepers])
    assert rollout == second and {first, second} == {"0", "1"}
    for sleeper in sleepers:
        ray.kill(sleeper)
    ray.util.remove_placement_group(strategies["rollout-0"].placement_group)
    # on CPUs nothing is reserved
    assert reserve_gpus({}, 30.0) == {}


def test_a_failure_and_a_death_name_the_actor(cluster: None, tmp_path: Path) -> None:
    fleet, member, _ = make_fleet(tmp_path)
    failed = fleet.ask(member, "fail").error
    assert str(failed) == "learner-0 failed: ValueError: the reason" and not isinstance(failed, ActorLost)
    assert isinstance(failed.__cause__, ValueError)
    died = fleet.ask(member, "die").error
    assert isinstance(died, ActorLost) and str(died).startswith("learner-0 died: ")
    # Ray's guesses at the cause fill a screen
    assert "common causes" not in str(died)


def test_an_actor_that_is_killed_answers_with_a_loss(cluster: None, tmp_path: Path) -> None:
    fleet, member, _ = make_fleet(tmp_path)
    fleet.ask(member, "answer", 0)
    reference = fleet.call(member, "sleep", 60)
    fleet.kill(member)
    answers: list[Answer] = []
    while not answers:
        answers = fleet.look([reference])
    assert isinstance(answers[0].error, ActorLost)


def test_an_answer_that_cannot_be_read_is_one_line_and_no_loss(cluster: None, tmp_path: Path) -> None:
    fleet, member, _ = make_fleet(tmp_path)
    (tmp_path / "there").mkdir()
    error = fleet.ask(member, "answer_once", str(tmp_path / "there")).error
    assert str(error).startswith("learner-0 failed: RaySystemError: FileExistsError: ")
    assert not isinstance(error, ActorLost) and "\n" not in str(error)


def test_an_actor_that_has_its_place_is_not_told_to_lack_it(cluster: None, tmp_path: Path) -> None:
    fleet, _, _ = make_fleet(tmp_path)
    fleet.config.cluster.address = "auto"
    # the whole machine, as the actors of a cluster take it
    options = {"num_cpus": 2}
    taker = fleet._join("taker", ray.remote(Sleeper).options(**options).remote(), {"CPU": 2})
    fleet.ask(taker, "answer", 0)
    other = fleet._join("other", ray.remote(Sleeper).options(**options).remote(), {"CPU": 2})
    deadline = time.monotonic() + 60
    # Ray tells with a delay what is free
    while not (absence := fleet.explain_absence([taker, other])):
        assert time.monotonic() < deadline
    assert absence == "; no node of the cluster has CPU 2 free; `ray status` shows more"
    assert fleet.explain_absence([taker]) == ""
    more = fleet._join("more", ray.remote(Sleeper).options(num_cpus=4).remote(), {"CPU": 4})
    assert fleet.explain_absence([more]) == "; no node of the cluster has CPU 4"
    for member in (taker, other, more):
        fleet.kill(member)


def test_an_actor_that_finds_the_weights_gone_with_their_publisher_is_not_lost_itself(
    cluster: None, tmp_path: Path
) -> None:
    fleet, reader, _ = make_fleet(tmp_path)
    publisher = fleet.spawn_learner(1)
    ticket = fleet.ask(publisher, "publish").or_raise()
    fleet.kill(publisher)
    # until Ray has noticed, they can still be read
    deadline = time.monotonic() + 60
    while (error := fleet.ask(reader, "set_weights", ticket).error) is None:
        assert time.monotonic() < deadline
    assert not isinstance(error, ActorLost) and is_gone(error)
    assert fleet.ask(reader, "answer", 1).value == 1


def test_the_users_wish_to_end_breaks_only_waits_that_may_be_broken(cluster: None, tmp_path: Path) -> None:
    fleet, member, interrupt = make_fleet(tmp_path)
    interrupt.is_set = True
    with pytest.raises(Interrupted):
        fleet.look([fleet.call(member, "sleep", 60)], is_interruptible=True)
    other = fleet.spawn_learner(1)
    assert fleet.ask(other, "answer", 5).value == 5


def test_ranks_answer_in_their_order(cluster: None, tmp_path: Path) -> None:
    assert make_ranks(tmp_path).ask("answer", 7, what="an answer") == [7, 7]


def test_a_deadline_of_the_ranks_says_who_waited_for_what_and_how_long(cluster: None, tmp_path: Path) -> None:
    message = r"^the controller waited 3 s for learner step 4, without an answer from learner-0, learner-1$"
    with pytest.raises(ActorLost, match=message):
        make_ranks(tmp_path).ask("sleep", 60, what="learner step 4")


def test_a_failure_of_all_ranks_is_no_loss(cluster: None, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"^learner-[01] failed: ValueError: the reason$") as caught:
        make_ranks(tmp_path).ask("fail", what="a step")
    assert not isinstance(caught.value, ActorLost)


def test_the_rank_that_died_is_blamed_and_not_the_one_that_failed_for_it(cluster: None, tmp_path: Path) -> None:
    with pytest.raises(ActorLost, match=r"^learner-1 died: "):
        make_ranks(tmp_path).ask("fail_where_another_dies", what="a step")


def test_ranks_that_are_started_again_are_new_ones(cluster: None, tmp_path: Path) -> None:
    ranks = make_ranks(tmp_path)
    with pytest.raises(ActorLost):
        ranks.ask("fail_where_another_dies", what="a step")
    ranks.start(None)
    assert ranks.ask("answer", 1, what="an answer") == [1, 1]
