"""The pool's promises whatever answers first and whoever is lost meanwhile: in a start, a publish, a ping, in work.

What its jobs are about is left out; that is in tests/property/test_controller_schedules.py.
"""

import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ray.exceptions import ObjectLostError

from segue.actors import rollout_pool
from segue.actors.errors import ActorLost, NeverBegan, RayLost, RunError
from segue.actors.faults import Fault
from segue.actors.fleet import Answer, Member
from segue.actors.rollout_pool import Job, RolloutPool
from segue.actors.rollout_stats import RolloutStats
from segue.actors.weight_channel import WeightTicket
from segue.conf.schema import ClusterConfig, SegueConfig
from segue.rollout.trajectory import PolicyVersion


@dataclass(eq=False)
class Call:
    """One question; it is answered when `PendingFleet.look` picks it."""

    member: Member
    method: str
    arguments: tuple[Any, ...]
    is_cancelled: bool = False


@dataclass
class PendingFleet:
    """A fleet whose every question stays open until it is looked for: any of them is answered, or its actor dies."""

    rng: random.Random
    loss_rate: float = 0.0
    is_silent: Callable[[Call], bool] = lambda call: False
    """Questions that are never answered."""
    gone: list[WeightTicket] = field(default_factory=list)
    """Weights whose publisher was lost."""
    poison: set[Any] = field(default_factory=set)
    """Jobs that end the actor that is at them, when it comes to them."""
    beside_poison: dict[Any, int] = field(default_factory=dict)
    """What else its actor was at when such a job last ended one."""
    is_ray_gone: bool = False
    played: list[Any] = field(default_factory=list)
    """What was done, by whom ever; the number of a job."""
    left: set[Any] = field(default_factory=set)
    """Jobs that a lost actor had finished."""
    dead: list[Member] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    published: WeightTicket | None = None
    num_played: Counter[Member] = field(default_factory=Counter)
    with_weights: dict[Member, WeightTicket] = field(default_factory=dict)
    first_failures: dict[str, str] = field(default_factory=dict)

    def spawn_rollout(self, name: str) -> Member:
        return Member(name, object())

    def call(self, member: Member, method: str, *arguments: Any) -> Call:
        assert member not in self.dead, f"{method} of an actor that was killed"
        if method == "play":
            assert self.with_weights[member] is self.published, "played without the present weights"
        call = Call(member, method, arguments)
        self.calls.append(call)
        return call

    def cancel(self, reference: Call) -> None:
        reference.is_cancelled = True

    def kill(self, member: Member) -> None:
        assert member not in self.dead
        self.dead.append(member)

    def check_alive(self) -> None:
        if self.is_ray_gone:
            raise RayLost("Ray is gone")

    def explain_absence(self, members: list[Member]) -> str:
        return f"; no place for {', '.join(member.name for member in members)}"

    def look(self, references: list[Call], *, is_interruptible: bool = False) -> list[Answer]:
        assert references, "a look at nothing"
        open_ones = [call for call in references if not self.is_silent(call)]
        if not open_ones:
            return []
        if self.rng.random() < self.loss_rate:
            return self._lose(self.rng.choice(open_ones).member, references)
        picked = self.rng.sample(open_ones, self.rng.randint(1, len(open_ones)))
        for call in picked:
            if call.method == "play" and call.arguments[0] in self.poison and not call.is_cancelled:
                at_work = [other for other in references if other.member is call.member and other.method == "play"]
                self.beside_poison[call.arguments[0]] = len(at_work) - 1
                return self._lose(call.member, references)
        return [self._answer(call) for call in picked]

    def _lose(self, member: Member, references: list[Call]) -> list[Answer]:
        own = [call for call in references if call.member is member]
        for call in own:
            is_poison = call.arguments[0] in self.poison if call.arguments else False
            if call.method == "play" and not is_poison and self.rng.random() < 0.3:
                self.left.add(call.arguments[0])
        # some of its questions may have been answered before it died
        return [Answer(reference=call, error=ActorLost(f"{member.name} died: chance")) for call in own]

    def _answer(self, call: Call) -> Answer:
        if call.is_cancelled:
            return Answer(reference=call, error=RunError("called off"))
        if call.method == "set_weights":
            (ticket,) = call.arguments
            if ticket in self.gone:
                error = RunError(f"{call.member.name} failed: gone")
                error.__cause__ = ObjectLostError("reference", "owner", "call site")
                return Answer(reference=call, error=error)
            self.with_weights[call.member] = ticket
        if call.method == "play":
            self.played.append(call.arguments[0])
            self.num_played[call.member] += 1
        stats = RolloutStats(num_held_out=self.num_played[call.member], first_failures=self.first_failures)
        return Answer(reference=call, value={"play": call.arguments[:1], "stats": stats}.get(call.method))


def make_ticket(step: int) -> WeightTicket:
    return WeightTicket(version=PolicyVersion(0, step), size_bytes=1, reference=None)


def make_pool(fleet: PendingFleet, count: int, **cluster: Any) -> tuple[RolloutPool, list[Fault]]:
    """A pool whose actors have started, and what it notes."""
    faults: list[Fault] = []
    config = SegueConfig(cluster=ClusterConfig(**{"max_losses": 1000, **cluster}))
    pool = RolloutPool(fleet, config, faults.append)  # type: ignore[arg-type]
    pool.begin_start(count, exported_model=None)
    pool.wait_started()
    return pool, faults


def publish(pool: RolloutPool, fleet: PendingFleet, step: int) -> None:
    fleet.published = make_ticket(step)
    pool.publish(fleet.published)


def collect(pool: RolloutPool, jobs: list[Job]) -> list[Any]:
    """Answers of all of these, one after the other."""
    answers: dict[Job, Any] = {}
    while left := [job for job in jobs if job not in answers]:
        for job, answer in pool.wait_any(left, timeout_s=60.0, what="an answer"):
            assert job not in answers
            answers[job] = answer
    return [answers[job] for job in jobs]


def submit(pool: RolloutPool, fleet: PendingFleet, number: int) -> Job:
    return pool.submit(
        "play",
        number,
        what=f"job {number}",
        find_done=lambda: (number,) if number in fleet.left else None,
        give_up=lambda: ("given up", number),
    )


@settings(max_examples=60)
@given(seed=st.integers(0, 10**6), num_actors=st.integers(1, 4), loss_rate=st.sampled_from((0.0, 0.2, 0.5)))
def test_every_job_is_answered_once_and_none_that_was_called_off(seed: int, num_actors: int, loss_rate: float) -> None:
    rng = random.Random(seed)
    fleet = PendingFleet(rng, loss_rate)
    pool, faults = make_pool(fleet, num_actors)
    jobs: list[Job] = []
    for step in range(4):
        publish(pool, fleet, step)
        jobs += [submit(pool, fleet, 10 * step + i) for i in range(rng.randint(1, 6))]
        pool.stats()
        if rng.random() < 0.5:
            called_off = rng.sample(jobs, rng.randint(0, len(jobs)))
            pool.call_off(called_off)
            numbers = {job.arguments[0] for job in called_off}
            done_before = len(fleet.played)
            jobs = [job for job in jobs if job not in called_off]
            assert collect(pool, jobs) == [job.arguments[:1] for job in jobs]
            # nobody is at them any more
            assert not numbers & set(fleet.played[done_before:])
            jobs = []
    assert collect(pool, jobs) == [job.arguments[:1] for job in jobs]
    assert pool._results == {} and pool._waiting == []
    # each loss is told of, and each actor that was lost has a successor
    assert [fault.who for fault in faults] == [member.name for member in fleet.dead]
    assert pool.size == num_actors


def test_a_reward_term_that_fails_is_told_once_whoever_asked_it() -> None:
    fleet = PendingFleet(random.Random(0))
    pool, faults = make_pool(fleet, 2)
    publish(pool, fleet, 0)
    fleet.first_failures = {"kind": "reward term kind: KeyError: 'rows' (my_terms.py:3 in kind)"}
    pool.stats()
    fleet.first_failures |= {"late": "reward term late gave no value within 60 s"}
    assert pool.stats().first_failures == fleet.first_failures
    assert [(fault.who, fault.what) for fault in faults] == [
        ("reward term kind", "KeyError: 'rows' (my_terms.py:3 in kind)"),
        ("reward term late", "gave no value within 60 s"),
    ]


def lose_one(pool: RolloutPool, fleet: PendingFleet) -> None:
    fleet.loss_rate = 1.0
    pool._advance(is_interruptible=False)
    fleet.loss_rate = 0.0


def test_no_work_begins_between_forgotten_weights_and_the_next() -> None:
    fleet = PendingFleet(random.Random(0))
    pool, _ = make_pool(fleet, 2)
    publish(pool, fleet, 4)
    begun, before = submit(pool, fleet, 0), len(fleet.calls)
    pool.forget_weights()
    other = submit(pool, fleet, 1)
    # what was begun goes on, and an actor that is lost now does not take up what is undone
    assert collect(pool, [begun]) == [(0,)]
    pool._replace(pool._seats[0], ActorLost("rollout-0 died: chance"))
    pool.wait_started()
    assert [call.method for call in fleet.calls[before:] if call.method != "stats"] == ["start"]
    publish(pool, fleet, 3)
    assert collect(pool, [other]) == [(1,)]


def test_losses_in_a_row_end_the_run_and_finished_work_ends_a_row() -> None:
    fleet = PendingFleet(random.Random(0))
    pool, faults = make_pool(fleet, 1, max_losses=2)
    publish(pool, fleet, 0)
    for number in range(4):
        job = submit(pool, fleet, number)
        lose_one(pool, fleet)
        assert collect(pool, [job]) == [(number,)]
    assert len(faults) == 4
    submit(pool, fleet, 8)
    submit(pool, fleet, 9)
    for _ in range(2):
        lose_one(pool, fleet)
    # it is at one of them alone by now; a loss before it is at anything is its own
    pool._seats[0].jobs = {}
    message = "rollout-0 was lost 3 times in a row, with nothing finished in between; last: rollout-0 died: chance"
    with pytest.raises(RunError, match=f"^{message}$"):
        pool._replace(pool._seats[0], ActorLost("rollout-0 died: chance"))


@settings(max_examples=60)
@given(seed=st.integers(0, 10**6), num_actors=st.integers(1, 4), max_losses=st.integers(1, 3))
def test_a_job_that_ends_its_actors_is_given_up_and_no_other(seed: int, num_actors: int, max_losses: int) -> None:
    rng = random.Random(seed)
    numbers = range(rng.randint(1, 12))
    fleet = PendingFleet(rng)
    fleet.poison = set(rng.sample(numbers, min(len(numbers), rng.randint(1, max_losses))))
    pool, faults = make_pool(fleet, num_actors, max_losses=max_losses)
    publish(pool, fleet, 0)
    answers = collect(pool, [submit(pool, fleet, number) for number in numbers])
    given_up = [number for number, answer in zip(numbers, answers, strict=True) if answer[0] == "given up"]
    assert set(given_up) == fleet.poison
    assert [answer for answer in answers if answer[0] != "given up"] == [(n,) for n in numbers if n not in given_up]
    told = {fault.who: fault for fault in faults if fault.who.startswith("job")}
    assert sorted(told) == sorted(f"job {number}" for number in given_up)
    for number in given_up:
        fault = told[f"job {number}"]
        losses = max_losses + 1
        what = f"was lost {losses} times with its actor, the last time with nothing beside it; last: rollout-"
        assert fault.what.startswith(what) and fault.what.endswith("died: chance")
        assert fault.done == "given up; the run goes on without"
        assert fleet.beside_poison[number] == 0
    assert pool._waiting == [] and not any(seat.jobs for seat in pool._seats)


def test_a_job_that_ends_its_actors_holds_up_no_other() -> None:
    fleet = PendingFleet(random.Random(0))
    pool, _ = make_pool(fleet, 3, max_losses=1)
    publish(pool, fleet, 0)
    slow = [submit(pool, fleet, number) for number in range(3)]
    pool._replace(next(seat for seat in pool._seats if slow[0] in seat.jobs.values()), ActorLost("rollout-0 died: so"))
    # it is to be alone, and the others are long at theirs: one is kept free for it, and one goes on with what comes
    fleet.is_silent = lambda call: call.method == "start" or (call.method == "play" and call.arguments[0] in (1, 2))
    others = [submit(pool, fleet, number) for number in range(3, 7)]
    assert collect(pool, others) == [(number,) for number in range(3, 7)]
    assert 0 not in fleet.played
    fleet.is_silent = lambda call: False
    assert collect(pool, slow) == [(0,), (1,), (2,)]


def test_what_the_run_cannot_do_without_ends_it_with_its_name() -> None:
    fleet = PendingFleet(random.Random(0), poison={0})
    pool, _ = make_pool(fleet, 2, max_losses=2)
    publish(pool, fleet, 0)
    job = pool.submit("play", 0, what="eval-greedy (share 1 of 2)")
    message = r"^eval-greedy \(share 1 of 2\) was lost 3 times with its actor, the last time with nothing "
    with pytest.raises(RunError, match=message + r"beside it; last: rollout-[01] died: chance$"):
        pool.wait_any([job], timeout_s=60.0, what="an answer")


def test_where_everything_is_given_up_the_run_ends() -> None:
    fleet = PendingFleet(random.Random(0), poison={*range(100)})
    pool, faults = make_pool(fleet, 1, max_losses=2)
    publish(pool, fleet, 0)
    message = (
        r"^3 in a row were given up, with nothing finished in between; job \d+ was lost 3 times with its actor, the "
    )
    with pytest.raises(RunError, match=message):
        collect(pool, [submit(pool, fleet, number) for number in range(100)])
    assert len([fault for fault in faults if fault.who.startswith("job")]) == 2


def test_an_actor_that_is_lost_too_often_says_what_it_was_at() -> None:
    fleet = PendingFleet(random.Random(0))
    pool, _ = make_pool(fleet, 1, max_losses=1)
    publish(pool, fleet, 0)
    for number in range(3):
        submit(pool, fleet, number)
    # of losses without work
    pool._seats[0].num_losses = 1
    message = "last: rollout-0 died: so; it was at job 0, job 1, job 2"
    with pytest.raises(RunError, match=f"{message}$"):
        pool._replace(pool._seats[0], ActorLost("rollout-0 died: so"))


def test_an_actor_that_is_placed_on_nodes_that_are_gone_is_not_lost_again() -> None:
    fleet = PendingFleet(random.Random(0))
    pool, faults = make_pool(fleet, 1, max_losses=1)
    publish(pool, fleet, 0)
    job = submit(pool, fleet, 0)
    lose_one(pool, fleet)
    for _ in range(6):
        pool._replace(pool._seats[0], NeverBegan("rollout-0 never began: its node was lost first"))
    assert collect(pool, [job]) == [(0,)]
    assert [fault.what for fault in faults[1:]] == 6 * ["never began: its node was lost first"]


def test_what_a_lost_actor_counted_stays_counted() -> None:
    fleet = PendingFleet(random.Random(0))
    pool, _ = make_pool(fleet, 1)
    publish(pool, fleet, 0)
    collect(pool, [submit(pool, fleet, number) for number in range(2)])
    assert pool.stats().num_held_out == 2
    job = submit(pool, fleet, 2)
    lose_one(pool, fleet)
    collect(pool, [job])
    assert pool.stats().num_held_out == 3


def test_work_goes_to_the_least_busy() -> None:
    fleet = PendingFleet(random.Random(0))
    pool, _ = make_pool(fleet, 3)
    publish(pool, fleet, 0)
    for number in range(7):
        submit(pool, fleet, number)
    busy = Counter(call.member.name for call in fleet.calls if call.method == "play")
    assert sorted(busy.values()) == [2, 2, 3]


def test_what_a_lost_actor_had_finished_is_not_played_again() -> None:
    fleet = PendingFleet(random.Random(0))
    pool, _ = make_pool(fleet, 1)
    publish(pool, fleet, 0)
    jobs = [submit(pool, fleet, number) for number in range(2)]
    fleet.left.add(0)
    lose_one(pool, fleet)
    assert collect(pool, jobs) == [(0,), (1,)]
    assert 0 not in fleet.played


def test_weights_that_go_with_their_publisher_are_its_loss_and_no_actors() -> None:
    fleet = PendingFleet(random.Random(0))
    pool, faults = make_pool(fleet, 2)
    fleet.gone.append(make_ticket(4))
    job = submit(pool, fleet, 0)
    publish(pool, fleet, 4)
    with pytest.raises(ActorLost, match=r"^the weights of step 4 went with it before rollout-[01] had them$"):
        pool.wait_any([job], timeout_s=60.0, what="an answer")
    assert (fleet.dead, faults) == ([], [])
    pool.forget_weights()
    publish(pool, fleet, 3)
    assert collect(pool, [job]) == [(0,)]


def test_an_actor_that_finds_earlier_weights_gone_takes_up_the_present_ones() -> None:
    fleet = PendingFleet(random.Random(0))
    pool, _ = make_pool(fleet, 1)
    publish(pool, fleet, 4)
    job = submit(pool, fleet, 0)
    # its successor is at the weights of step 4 when their publisher is lost
    lose_one(pool, fleet)
    while fleet.calls[-1].method != "set_weights":
        pool._advance(is_interruptible=False)
    fleet.gone.append(make_ticket(4))
    pool.forget_weights()
    publish(pool, fleet, 3)
    assert collect(pool, [job]) == [(0,)]


def test_an_evaluation_whose_weights_are_gone_leaves_nothing_behind() -> None:
    fleet = PendingFleet(random.Random(0))
    pool, _ = make_pool(fleet, 2)
    fleet.gone.append(make_ticket(4))
    publish(pool, fleet, 4)
    jobs = [submit(pool, fleet, number) for number in range(3)]
    with pytest.raises(ActorLost):
        pool.wait_all(jobs, timeout_s=60.0, what="an evaluation", meanwhile=lambda: None)
    pool.forget_weights()
    publish(pool, fleet, 3)
    assert collect(pool, [submit(pool, fleet, 9)]) == [(9,)]
    assert [call.arguments for call in fleet.calls if call.method == "play"] == [(9,)]


def test_an_actor_that_finds_no_place_again_holds_up_neither_a_start_nor_a_publish() -> None:
    fleet = PendingFleet(random.Random(0))
    pool, faults = make_pool(fleet, 2, start_timeout_s=0.05)
    first = fleet.calls[0].member
    fleet.is_silent = lambda call: call.member.name == first.name and call.member is not first
    publish(pool, fleet, 0)
    job = submit(pool, fleet, 0)
    pool._replace(pool._seats[0], ActorLost("rollout-0 died: its node is gone"))
    # every other actor is at its weights, and none could play, when the start is overdue
    pool.forget_weights()
    while len(faults) < 2:
        pool._see_overdue()
    assert (faults[1].what, faults[1].done) == (
        f"did not come within 0 s; no place for {first.name}",
        "the others go on",
    )
    publish(pool, fleet, 1)
    assert collect(pool, [job]) == [(0,)]
    pool.wait_started()


def test_an_actor_that_finds_no_place_after_a_loss_that_was_its_works_holds_up_nobody() -> None:
    fleet = PendingFleet(random.Random(0), poison={0})
    pool, faults = make_pool(fleet, 3, max_losses=1, start_timeout_s=0.05)
    publish(pool, fleet, 0)
    first = {seat.member for seat in pool._seats}
    fleet.is_silent = lambda call: call.member not in first
    # two of the three actors are lost over it, and then have no place
    assert collect(pool, [submit(pool, fleet, 0)]) == [("given up", 0)]
    deadline = time.monotonic() + 30.0
    while [fault.done for fault in faults].count("the others go on") < 2:
        assert time.monotonic() < deadline
        pool._advance(is_interruptible=False)
    assert collect(pool, [submit(pool, fleet, 1)]) == [(1,)]


def test_an_actor_that_came_late_must_take_up_weights_in_time() -> None:
    fleet = PendingFleet(random.Random(0))
    pool, faults = make_pool(fleet, 2, start_timeout_s=0.05)
    publish(pool, fleet, 0)
    name = pool._seats[0].name
    pool._replace(pool._seats[0], ActorLost(f"{name} died: its node is gone"))
    late = pool._seats[0].member
    fleet.is_silent = lambda call: call.member is late
    while len(faults) < 2:
        pool._advance(is_interruptible=False)
    assert faults[1].done == "the others go on"
    # there is room for it, but not for weights
    fleet.is_silent = lambda call: call.member is late and call.method == "set_weights"
    deadline = time.monotonic() + 30.0
    while len(faults) < 3:
        assert time.monotonic() < deadline
        pool._advance(is_interruptible=False)
    assert (faults[2].who, faults[2].what) == (name, "did not take up weights in time")


def test_a_start_that_is_overdue_because_ray_is_gone_is_rays_loss() -> None:
    fleet = PendingFleet(random.Random(0), is_silent=lambda call: True)
    fleet.is_ray_gone = True
    with pytest.raises(RayLost):
        make_pool(fleet, 1, start_timeout_s=0.0)


def test_an_actor_that_does_not_leave_off_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout_pool, "_CANCEL_S", 0.05)
    fleet = PendingFleet(random.Random(0))
    pool, faults = make_pool(fleet, 1)
    publish(pool, fleet, 0)
    job, other = submit(pool, fleet, 0), submit(pool, fleet, 1)
    fleet.is_silent = lambda call: call.is_cancelled
    pool.call_off([job])
    assert [fault.what for fault in faults] == ["does not leave off what was called off"]
    assert collect(pool, [other]) == [(1,)]
    assert fleet.played == [1]


def test_an_actor_that_hangs_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout_pool, "_PING_EVERY_S", 0.0)
    fleet = PendingFleet(random.Random(0))
    pool, faults = make_pool(fleet, 1, answer_timeout_s=0.05)
    publish(pool, fleet, 0)
    hung = fleet.calls[0].member
    fleet.is_silent = lambda call: call.member is hung
    assert collect(pool, [submit(pool, fleet, 0)]) == [(0,)]
    assert [fault.what for fault in faults] == ["gave no answer for 0 s"]


def test_a_deadline_says_who_waited_for_what_and_how_long() -> None:
    fleet = PendingFleet(random.Random(0), is_silent=lambda call: call.method == "play")
    pool, _ = make_pool(fleet, 2)
    publish(pool, fleet, 0)
    job = submit(pool, fleet, 0)
    message = "^the controller waited 1 s for groups for step 4, without an answer from rollout-0, rollout-1$"
    with pytest.raises(RunError, match=message):
        pool.wait_any([job], timeout_s=0.6, what="groups for step 4")
