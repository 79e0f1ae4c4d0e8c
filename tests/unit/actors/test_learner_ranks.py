"""Who is blamed where ranks fail, are lost or hang, on a fleet and a clock of the test's own."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from segue.actors import learner_ranks
from segue.actors.errors import ActorLost, RunError
from segue.actors.fleet import Answer, Member
from segue.actors.learner_ranks import LearnerRanks
from segue.conf.schema import ClusterConfig, SegueConfig

TIMEOUT_S = 1000.0


@dataclass
class Clock:
    """What the ranks take for the time."""

    now: float = 0.0

    def monotonic(self) -> float:
        return self.now


@dataclass
class TimedFleet:
    """Two ranks whose answers come at times that the test sets; each look takes a second."""

    clock: Clock
    noticed_s: float
    errors: dict[str, tuple[float, RunError]] = field(default_factory=dict)
    """Rank to when its answer comes, and what it is; others give none."""
    is_asked: bool = False

    def spawn_learner(self, rank: int) -> Member:
        return Member(f"learner-{rank}", object())

    def kill(self, member: Member) -> None:
        pass

    def check_alive(self) -> None:
        pass

    def explain_absence(self, members: list[Member]) -> str:
        return ""

    def loss_noticed_s(self) -> float:
        return self.noticed_s

    def call(self, member: Member, method: str, *arguments: Any) -> tuple[str, str]:
        return member.name, method

    def look(self, references: list[tuple[str, str]], *, is_interruptible: bool = False) -> list[Answer]:
        self.clock.now += 1.0
        if references[0][1] != "train_step":
            return [Answer(reference=reference) for reference in references]
        due = [name for name, (time, _) in self.errors.items() if time <= self.clock.now]
        return [Answer(reference=r, error=self.errors[r[0]][1]) for r in references if r[0] in due]


def ask(monkeypatch: pytest.MonkeyPatch, noticed_s: float, **errors: tuple[float, RunError]) -> float:
    """Seconds from the question to what it ends in, which is raised where the test expects it."""
    clock = Clock()
    monkeypatch.setattr(learner_ranks, "time", clock)
    config = SegueConfig(cluster=ClusterConfig(learner_ranks=2))
    config.learner.step_timeout_s = TIMEOUT_S
    fleet = TimedFleet(clock, noticed_s)
    ranks = LearnerRanks(fleet, config, config.learner.optimizer)  # type: ignore[arg-type]
    ranks.start(None)
    clock.now = 0.0
    fleet.errors = {name.replace("_", "-"): error for name, error in errors.items()}
    ranks.ask("train_step", what="a step")
    return clock.now


BROKEN = RunError("learner-0 failed: connection closed by peer")
LOST = ActorLost("learner-1 died: its node is gone")


@pytest.mark.parametrize("failed_at", [10.0, TIMEOUT_S - 5.0])
def test_a_lost_node_is_blamed_as_long_as_ray_takes_to_notice_it(
    monkeypatch: pytest.MonkeyPatch, failed_at: float
) -> None:
    # on a cluster a silent node is noticed a minute after its neighbours' connections break
    with pytest.raises(ActorLost, match="learner-1 died: its node is gone"):
        ask(monkeypatch, 70.0, learner_0=(failed_at, BROKEN), learner_1=(failed_at + 62.0, LOST))


def test_a_failure_beside_which_nobody_is_lost_is_told_when_a_loss_would_be_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(RunError, match="connection closed by peer"):
        ask(monkeypatch, 30.0, learner_0=(10.0, BROKEN), learner_1=(72.0, LOST))


def test_who_does_not_answer_in_time_is_blamed_before_who_fails_later(monkeypatch: pytest.MonkeyPatch) -> None:
    message = "the controller waited 1000 s for a step, without an answer from learner-1"
    with pytest.raises(ActorLost, match=message):
        # heard by the look in which the deadline passes
        ask(monkeypatch, 30.0, learner_0=(TIMEOUT_S + 1.0, BROKEN))
