"""The rollout actors as one: work goes to the least busy; an actor that is lost is replaced, and its work done again.

    waiting ----> an actor's ----> done          a job, from `submit` to `wait_any`
       ^             |
       `-- lost -----'                           or found done: a group's file may stand though its actor is gone

    started ----> has weights ----> gets work    an actor; one that takes long to come holds up nobody

An actor is lost when its process died, or when it has not answered a ping for `cluster.answer_timeout_s`: it then is
killed. One that is lost more than `cluster.max_losses` times in a row, with nothing finished in between, ends the run.

A job may be what ends its actors, one after the other. One that was lost `cluster.max_losses` times is done by an actor
that does nothing else, so that the next loss is the job's own: it is given up, and the losses before are held against
nobody. Where the run cannot do without, or where nothing is finished in between, that ends the run.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from segue.actors.errors import ActorLost, NeverBegan, RunError
from segue.actors.faults import Fault
from segue.actors.fleet import Answer, Fleet, Member, rollout_name
from segue.actors.rollout_stats import RolloutStats
from segue.actors.weight_channel import WeightTicket, is_gone
from segue.conf.schema import SegueConfig

_PING_EVERY_S = 2.0
# for work that is called off to end
_CANCEL_S = 30.0


@dataclass(eq=False, slots=True, kw_only=True)
class Job:
    """Something that one rollout actor is to do, whichever."""

    method: str
    arguments: tuple[Any, ...]
    what: str
    """In words, for messages."""
    find_done: Callable[[], Any]
    """What a lost actor left of it, whole; None where nothing."""
    give_up: Callable[[], Any] | None
    """What stands for it where it is given up; None for what the run cannot do without."""
    num_losses: int = 0
    """Of actors that were at it."""


@dataclass(eq=False, slots=True, kw_only=True)
class _Seat:
    """A place for an actor, whoever sits in it."""

    name: str
    member: Member
    starting: Any = None
    """Reference of its start, or of the weights that it takes up; None once that is done."""
    deadline: float = 0.0
    """Of `starting`."""
    is_started: bool = False
    ticket: WeightTicket | None = None
    """Weights that it has, or takes up."""
    jobs: dict[Any, Job] = field(default_factory=dict)
    """What it was asked to do, by reference."""
    pings: dict[Any, float] = field(default_factory=dict)
    """When it was asked for its counters, by reference."""
    stats: RolloutStats = field(default_factory=RolloutStats)
    """Its counters when it last answered."""
    was_lost: bool = False
    """Another actor sat in it before."""
    num_losses: int = 0
    """In a row, with nothing finished in between; without those that may be the work's."""
    is_late: bool = False
    """Its start is overdue, and that was said."""


class RolloutPool:
    """See the module.

    Args:
        fleet: makes actors and asks them.
        note: is told of each loss.
    Invariants:
        Each job that was submitted and not called off is answered once, whatever is lost:
        tests/property/test_rollout_pool.py.
    """

    def __init__(self, fleet: Fleet, config: SegueConfig, note: Callable[[Fault], None]) -> None:
        self._fleet = fleet
        self._cluster = config.cluster
        self._note = note
        self._seats: list[_Seat] = []
        self._waiting: list[Job] = []
        self._results: dict[Job, Any] = {}
        self._called_off: set[Job] = set()
        self._model: Path | None = None
        self._ticket: WeightTicket | None = None
        self._lost_weights: ActorLost | None = None
        self._num_given_up = 0
        self._stats_of_lost = RolloutStats()
        self._pinged_at = 0.0
        self._failed_terms: set[str] = set()

    @property
    def size(self) -> int:
        """Actors, those that are just being replaced included."""
        return len(self._seats)

    def begin_start(self, count: int, exported_model: Path | None) -> None:
        """Start actors; `wait_started` waits for them.

        Args:
            exported_model: folder of weights to play with; None plays nothing before weights are published.
        """
        self._model = exported_model
        for index in range(count):
            name = rollout_name(index)
            self._seats.append(_Seat(name=name, member=self._fleet.spawn_rollout(name)))
            self._begin(self._seats[-1])

    def wait_started(self) -> None:
        """Wait until every actor has started; one that was lost meanwhile and finds no place holds up nobody.

        Raises:
            RunError: one did not, in time.
        """
        while not all(seat.is_started or seat.is_late for seat in self._seats):
            self._advance(is_interruptible=True)

    def heed_interrupt(self) -> None:
        """Raise `Interrupted` once the user asks the run to end, where there is nothing to wait for."""
        self._fleet.heed_interrupt()

    def submit(
        self,
        method: str,
        *arguments: Any,
        what: str,
        find_done: Callable[[], Any] = lambda: None,
        give_up: Callable[[], Any] | None = None,
    ) -> Job:
        """Have something done by the least busy actor; see `Job`."""
        job = Job(method=method, arguments=arguments, what=what, find_done=find_done, give_up=give_up)
        self._waiting.append(job)
        self._deal_out()
        return job

    def wait_any(self, jobs: Sequence[Job], *, timeout_s: float, what: str) -> list[tuple[Job, Any]]:
        """Wait until at least one of these is done, or the user asks the run to end.

        Args:
            what: completes "waited for …" in the message.
        Returns:
            Each that is, and its answer.
        Raises:
            ActorLost: the learner, and with it weights that an actor was to take up.
            RunError: an actor's code failed, one or what it was to do was lost too often, or the deadline passed.
        """
        self._wait_until(lambda: any(job in self._results for job in jobs), timeout_s, what)
        return [(job, self._results.pop(job)) for job in jobs if job in self._results]

    def wait_all(self, jobs: Sequence[Job], *, timeout_s: float, what: str, meanwhile: Callable[[], None]) -> list[Any]:
        """Wait until all of these are done; see `wait_any`.

        Args:
            meanwhile: called about twice a second.
        Returns:
            The answers, in order.
        """
        try:
            self._wait_until(lambda: all(job in self._results for job in jobs), timeout_s, what, meanwhile)
        except ActorLost:
            # nobody comes back for them
            self.call_off(jobs)
            raise
        return [self._results.pop(job) for job in jobs]

    def call_off(self, jobs: Sequence[Job]) -> None:
        """Have these not done; when this returns nobody is at them any more, and nothing comes of them."""
        self._called_off.update(job for job in jobs if job not in self._results)
        self._waiting = [job for job in self._waiting if job not in self._called_off]
        for job in jobs:
            self._results.pop(job, None)
        for seat in self._seats:
            for reference, job in seat.jobs.items():
                if job in self._called_off:
                    self._fleet.cancel(reference)
        deadline = time.monotonic() + _CANCEL_S
        while busy := [seat for seat in self._seats if not self._called_off.isdisjoint(seat.jobs.values())]:
            if time.monotonic() > deadline:
                for seat in busy:
                    self._replace(seat, ActorLost(f"{seat.name} does not leave off what was called off"))
            else:
                self._advance(is_interruptible=False)
        self._called_off.clear()

    def publish(self, ticket: WeightTicket) -> None:
        """Have every actor take up these weights, also those that come later; waits for the present ones."""
        # holds the buffer in the object store until the next one is taken up
        self._ticket, self._lost_weights = ticket, None
        for seat in self._seats:
            if seat.is_started and seat.starting is None:
                self._take_up_weights(seat)
        while any(seat.is_started and seat.starting is not None for seat in self._seats):
            self._advance(is_interruptible=False)

    def forget_weights(self) -> None:
        """What was published is undone: no new work until the next weights."""
        self._ticket = None
        for seat in self._seats:
            seat.ticket = None

    def stats(self) -> RolloutStats:
        """Counters of all actors together, the lost ones included as far as they were heard."""
        asked = [(seat, self._ping(seat)) for seat in self._seats if self._is_ready(seat)]
        while any(reference in seat.pings for seat, reference in asked):
            self._advance(is_interruptible=False)
        return self.latest_stats

    @property
    def latest_stats(self) -> RolloutStats:
        """The same, as it was last heard: a few seconds old."""
        return sum((seat.stats for seat in self._seats), self._stats_of_lost)

    def _wait_until(
        self, holds: Callable[[], bool], timeout_s: float, what: str, meanwhile: Callable[[], None] = lambda: None
    ) -> None:
        deadline = time.monotonic() + timeout_s
        while not holds():
            if self._lost_weights is not None:
                raise self._lost_weights
            if time.monotonic() > deadline:
                names = ", ".join(seat.name for seat in self._seats)
                raise RunError(f"the controller waited {timeout_s:.0f} s for {what}, without an answer from {names}")
            self._advance(is_interruptible=True)
            meanwhile()

    def _advance(self, *, is_interruptible: bool) -> None:
        """Deal out work, hear who has something to say, replace who is lost."""
        self._deal_out()
        if time.monotonic() > self._pinged_at + _PING_EVERY_S:
            self._pinged_at = time.monotonic()
            for seat in self._seats:
                if seat.is_started and not seat.pings:
                    self._ping(seat)
        asked = {reference: seat for seat in self._seats for reference in _references(seat)}
        for answer in self._fleet.look(list(asked), is_interruptible=is_interruptible):
            seat = asked[answer.reference]
            # one that was lost a moment ago has no references left
            if answer.reference in _references(seat):
                self._hear(seat, answer)
        self._see_overdue()

    def _hear(self, seat: _Seat, answer: Answer) -> None:
        if isinstance(answer.error, ActorLost):
            self._replace(seat, answer.error)
        elif answer.reference == seat.starting:
            self._hear_start(seat, answer)
        elif answer.reference in seat.pings:
            del seat.pings[answer.reference]
            seat.stats = answer.or_raise()
            self._tell_failed_terms(seat.stats.first_failures)
        else:
            job = seat.jobs.pop(answer.reference)
            if job not in self._called_off:
                self._results[job] = answer.or_raise()
                seat.num_losses = self._num_given_up = 0

    def _tell_failed_terms(self, first_failures: dict[str, str]) -> None:
        for name in sorted(first_failures.keys() - self._failed_terms):
            self._failed_terms.add(name)
            who = f"reward term {name}"
            self._note(
                Fault(
                    who=who,
                    what=first_failures[name].removeprefix(who).lstrip(": "),
                    done="it is asked again; where it goes on so, episodes are played again and then masked",
                )
            )

    def _hear_start(self, seat: _Seat, answer: Answer) -> None:
        seat.starting = None
        are_gone = answer.error is not None and seat.is_started and is_gone(answer.error)
        if not are_gone:
            answer.or_raise()
            seat.is_started, seat.is_late = True, False
        if seat.ticket is not self._ticket:
            self._take_up_weights(seat)
        elif seat.ticket is not None and are_gone:
            step, seat.ticket = seat.ticket.version.step, None
            self._lost_weights = ActorLost(f"the weights of step {step} went with it before {seat.name} had them")

    def _begin(self, seat: _Seat) -> None:
        seat.starting = self._fleet.call(seat.member, "start", self._model)
        seat.deadline = time.monotonic() + self._cluster.start_timeout_s

    def _take_up_weights(self, seat: _Seat) -> None:
        seat.ticket = self._ticket
        seat.starting = self._fleet.call(seat.member, "set_weights", self._ticket)
        seat.deadline = time.monotonic() + self._cluster.start_timeout_s

    def _is_ready(self, seat: _Seat) -> bool:
        has_weights = seat.ticket is not None or self._model is not None
        return seat.is_started and seat.starting is None and has_weights

    def _deal_out(self) -> None:
        ready = [seat for seat in self._seats if self._is_ready(seat)]
        open_seats = [seat for seat in ready if not any(map(self._is_suspect, seat.jobs.values()))]
        while open_seats and (suspect := next(filter(self._is_suspect, self._waiting), None)) is not None:
            seat = min(open_seats, key=_num_jobs)
            # it gets nothing else, and the suspect once it has done what it is at
            open_seats.remove(seat)
            if seat.jobs:
                break
            self._hand_out(suspect, seat)
        others = [job for job in self._waiting if not self._is_suspect(job)]
        while open_seats and others:
            self._hand_out(others.pop(0), min(open_seats, key=_num_jobs))

    def _hand_out(self, job: Job, seat: _Seat) -> None:
        self._waiting.remove(job)
        seat.jobs[self._fleet.call(seat.member, job.method, *job.arguments)] = job

    def _is_suspect(self, job: Job) -> bool:
        return job.num_losses >= max(1, self._cluster.max_losses)

    def _ping(self, seat: _Seat) -> Any:
        reference = self._fleet.call(seat.member, "stats")
        seat.pings[reference] = time.monotonic()
        return reference

    def _see_overdue(self) -> None:
        now, limit = time.monotonic(), self._cluster.answer_timeout_s
        for seat in self._seats:
            is_silent = bool(seat.pings) and now > min(seat.pings.values()) + limit
            is_overdue = seat.starting is not None and now > seat.deadline and not seat.is_late
            if is_silent or is_overdue:
                self._fleet.check_alive()
            if is_silent:
                self._replace(seat, ActorLost(f"{seat.name} gave no answer for {limit:.0f} s"))
            elif is_overdue:
                self._see_late(seat)

    def _see_late(self, seat: _Seat) -> None:
        if seat.is_started:
            self._replace(seat, ActorLost(f"{seat.name} did not take up weights in time"))
            return
        absence = self._fleet.explain_absence([seat.member])
        what = f"did not come within {self._cluster.start_timeout_s:.0f} s{absence}"
        if not (seat.was_lost and any(other.is_started for other in self._seats)):
            raise RunError(f"{seat.name} {what}; cluster.start_timeout_s allows more")
        # a cluster may have no place for it until a node comes back
        seat.is_late = True
        self._note(Fault(who=seat.name, what=what, done="the others go on"))

    def _replace(self, seat: _Seat, loss: ActorLost) -> None:
        self._fleet.kill(seat.member)
        jobs = [job for job in seat.jobs.values() if job not in self._called_off]
        found = {job: result for job in jobs if (result := job.find_done()) is not None}
        again = [job for job in jobs if job not in found]
        # a suspect is alone with its actor
        culprits = [job for job in again if self._is_suspect(job)]
        for job in again:
            job.num_losses += 1
        if found:
            seat.num_losses = self._num_given_up = 0
        # work that was lost before may be what ends actors: what comes of it tells
        is_own = all(job.num_losses == 1 for job in again)
        seat.was_lost |= not isinstance(loss, NeverBegan)
        seat.num_losses += is_own and not isinstance(loss, NeverBegan)
        if seat.num_losses > self._cluster.max_losses:
            raise RunError(
                f"{seat.name} was lost {seat.num_losses} times in a row, with nothing finished in between; "
                f"last: {loss}{_told_jobs(again)}"
            ) from loss
        self._results |= found
        self._waiting[:0] = again = [job for job in again if job not in culprits]
        self._stats_of_lost += seat.stats
        done = f"a new process takes its place; {len(again)} begun again, {len(found)} found finished"
        self._note(Fault(who=seat.name, what=str(loss).removeprefix(f"{seat.name} "), done=done))
        for culprit in culprits:
            self._results[culprit] = self._give_up(culprit, loss)
        member = self._fleet.spawn_rollout(seat.name)
        fresh = _Seat(name=seat.name, member=member, was_lost=seat.was_lost, num_losses=seat.num_losses)
        self._seats[self._seats.index(seat)] = fresh
        seat.starting, seat.jobs, seat.pings = None, {}, {}
        self._begin(fresh)

    def _give_up(self, job: Job, loss: ActorLost) -> Any:
        """What stands for a job that ended an actor that did nothing else.

        Raises:
            RunError: the run cannot do without it, or does without too much.
        """
        what = f"was lost {job.num_losses} times with its actor, the last time with nothing beside it"
        if job.give_up is None:
            raise RunError(f"{job.what} {what}; last: {loss}") from loss
        self._num_given_up += 1
        if self._num_given_up > self._cluster.max_losses:
            raise RunError(
                f"{self._num_given_up} in a row were given up, with nothing finished in between; {job.what} {what}; "
                f"last: {loss}"
            ) from loss
        self._note(Fault(who=job.what, what=f"{what}; last: {loss}", done="given up; the run goes on without"))
        # the losses before were its own too
        for other in (*self._waiting, *(other for seat in self._seats for other in seat.jobs.values())):
            other.num_losses = 0
        for seat in self._seats:
            seat.num_losses = 0
        return job.give_up()


def _told_jobs(jobs: list[Job]) -> str:
    """What an actor was at, to be added to its loss."""
    return f"; it was at {', '.join(job.what for job in jobs)}" if jobs else ""


def _num_jobs(seat: _Seat) -> int:
    return len(seat.jobs)


def _references(seat: _Seat) -> set[Any]:
    """What it was asked and has not answered."""
    return {*seat.jobs, *seat.pings, *(() if seat.starting is None else (seat.starting,))}
