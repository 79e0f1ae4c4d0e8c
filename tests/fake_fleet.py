"""A fleet without processes: rollout actors that finish groups in any order, learners that remember what they trained.

Versions are as in a real run: a group's tokens are spread over the weights that were published while it was in flight.
"""

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from actor_cases import make_episode, make_trajectory

from segue.actors.errors import ActorLost, Interrupted, NeverBegan, RunError
from segue.actors.fleet import Answer, Member
from segue.actors.group_record import make_record
from segue.actors.learner_actor import TrainRequest
from segue.actors.rollout_actor import HeldOutGroup, HeldOutRequest
from segue.actors.rollout_stats import RolloutStats
from segue.actors.stages import StepPlan
from segue.actors.task import Task
from segue.actors.weight_channel import WeightTicket
from segue.learner.curriculum import StagePlace
from segue.learner.failure import DamagedGroupsError
from segue.learner.staleness import is_fresh
from segue.rollout.trajectory import Group, Outcome, PolicyVersion
from segue.rollout.trajectory_file import TrajectoryFileError, file_name, load_group, save_group


class Killed(BaseException):
    """The controller is gone: nothing that it would still do happens."""


@dataclass
class TrainedStep:
    """What one learner step was given, and which of its tokens it would have trained."""

    step: int
    group_ids: list[str]
    ages: list[int]
    """Of the trained tokens."""
    masked: dict[str, int]
    """Group to its tokens beyond the bound."""

    @property
    def num_masked(self) -> int:
        return sum(self.masked.values())


@dataclass
class FakeFleet:
    """See the module; `rng` decides the order of everything that a real run leaves open."""

    groups_folder: Path
    rng: random.Random
    max_staleness: int
    tokens_per_group: int = 6
    stop_after_step: int | None = None
    """Learner steps of this launch after which it ends: at the next wait by the user's wish, or at once if killed."""
    ends_with: type[BaseException] = Interrupted
    dies_in: str = "publish"
    """Where it is killed."""
    fails_with: Outcome | None = None
    """How every episode ends, for no fault of the policy's; without a token where infrastructure failed."""
    prefers_newest: bool = False
    """Of the groups in flight, the one that was asked for last finishes first."""
    rollout_loss_rate: float = 0.0
    """How likely a look at groups in flight sees a rollout actor die."""
    leaves_rate: float = 0.3
    """How likely the file of a group that such an actor played stands."""
    poison: Collection[int] = ()
    """Numbers of tasks that end the rollout actor that is at them, when it comes to them."""
    learner_loss_rate: float = 0.0
    """How likely a question to the learner kills it."""
    learner_dies_at: Collection[int] = ()
    """Which of its steps, counted from 1 over all that it is asked to take, kill it."""
    learner_dies_in: list[str] = field(default_factory=list)
    """What kills it when it is next asked for that, each once."""
    misplaced_starts: int = 0
    """How many of its next starts go to a node that is gone."""
    before_death: Callable[[], object] = lambda: None
    """Happens just before it dies as it was told."""
    held_out_loss: Callable[[str, int], float] = lambda name, step: 1.0
    """Loss on held-out sequences of a name, by the learner's steps."""
    damages: Collection[str] = ()
    """Groups whose files are spoilt once they are written, the first time."""
    trained: list[TrainedStep] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    published: list[PolicyVersion] = field(default_factory=list)
    max_outstanding: int = 0
    _owners: dict[int, Member] = field(default_factory=dict)
    _in_flight: dict[int, tuple[Task, int]] = field(default_factory=dict)
    _answers: dict[int, Any] = field(default_factory=dict)
    _count: int = 0
    _num_asked: int = 0
    _damaged: set[str] = field(default_factory=set)
    _num_held_out: int = 0

    def __post_init__(self) -> None:
        self.killed: list[str] = []
        self._steps = 0
        self.places: list[StagePlace | None] = []
        """Of each imitation step, also of those that failed."""
        self.plans: dict[int, StepPlan | None] = {}
        """Task to what its group is to hold."""
        self.cancelled: list[int] = []
        """Numbers of the tasks that were called off."""

    def spawn_rollout(self, name: str) -> Member:
        """See `Fleet`."""
        return Member(name, object())

    def spawn_learner(self, rank: int) -> Member:
        """See `Fleet`."""
        return Member(f"learner-{rank}", object())

    def kill(self, member: Member) -> None:
        """See `Fleet`; nothing that it was asked is answered any more."""
        self.killed.append(member.name)
        for reference in [r for r, owner in self._owners.items() if owner is member]:
            self._in_flight.pop(reference, None)
            self._answers.pop(reference, None)

    def cancel(self, reference: int) -> None:
        """See `Fleet`; what is called off may have left its file."""
        if reference in self._answers:
            return
        self.cancelled.append(self._in_flight[reference][0].number)
        if self.rng.random() < 0.5:
            self._finish(reference)
        self._in_flight.pop(reference, None)
        self._answers[reference] = RunError("called off")

    def check_alive(self) -> None:
        """See `Fleet`."""

    def loss_noticed_s(self) -> float:
        """See `Fleet`; every loss is told at once."""
        return 0.0

    def explain_absence(self, members: list[Member]) -> str:
        """See `Fleet`; nothing is known."""
        return ""

    def call(self, member: Member, method: str, *arguments: Any) -> int:
        """See `Fleet`; a group is played when it is looked for, everything else at once."""
        self._count += 1
        self._owners[self._count] = member
        if method in ("play", "demonstrate"):
            assert arguments[0].number not in [task.number for task, _ in self._in_flight.values()], "played twice"
            self._in_flight[self._count] = (arguments[0], len(self.published) - 1)
            self.plans[arguments[0].number] = arguments[0].plan
            self.max_outstanding = max(self.max_outstanding, len(self._in_flight))
        else:
            self._answers[self._count] = self._answer_to(member, method, arguments)
        return self._count

    def look(self, references: list[int], *, is_interruptible: bool = False) -> list[Answer]:
        """See `Fleet`; any of the groups in flight finish, and actors may be lost with theirs."""
        if is_interruptible:
            self.heed_interrupt()
        there = [reference for reference in references if reference in self._answers]
        if there:
            return [self._take(reference) for reference in there]
        if self.rng.random() < self.rollout_loss_rate:
            return self._lose(self._owners[self.rng.choice(references)], references)
        if self.prefers_newest:
            finished = [max(references)]
        else:
            finished = self.rng.sample(references, self.rng.randint(1, len(references)))
        for reference in finished:
            if self._in_flight[reference][0].number in self.poison:
                return self._lose(self._owners[reference], references)
        return [Answer(reference=reference, value=self._finish(reference)) for reference in finished]

    def _answer_to(self, member: Member, method: str, arguments: tuple[Any, ...]) -> Any:
        if method == "start" and member.name.startswith("learner") and self.misplaced_starts:
            self.misplaced_starts -= 1
            return NeverBegan(f"{member.name} never began: as told")
        if method == "start":
            return None
        if member.name.startswith("learner") and self.rng.random() < self.learner_loss_rate:
            return self._die(member, "chance")
        if method in ("train_step", "imitate_step"):
            self._num_asked += 1
            if self._num_asked in self.learner_dies_at:
                return self._die(member, "as told")
        if method in self.learner_dies_in:
            self.learner_dies_in.remove(method)
            return self._die(member, "as told")
        return getattr(self, f"_{method}")(*arguments)

    def _die(self, member: Member, why: str) -> ActorLost:
        """The learner dies; rollout went on while it was asked, and nobody has heard yet of what finished."""
        self.before_death()
        for reference in list(self._in_flight):
            if self.rng.random() < 0.5:
                self._answers[reference] = self._finish(reference)
        return ActorLost(f"{member.name} died: {why}")

    def _take(self, reference: int) -> Answer:
        answer = self._answers.pop(reference)
        if isinstance(answer, RunError):
            return Answer(reference=reference, error=answer)
        return Answer(reference=reference, value=answer)

    def _lose(self, member: Member, references: list[int]) -> list[Answer]:
        """An actor dies, and of what it played some files stand."""
        own = [reference for reference in references if self._owners[reference] is member]
        for reference in own:
            is_poison = self._in_flight[reference][0].number in self.poison
            if not is_poison and self.rng.random() < self.leaves_rate:
                self._finish(reference)
        return [Answer(reference=r, error=ActorLost(f"{member.name} died: chance")) for r in own]

    def finish_unseen(self) -> None:
        """Groups in flight whose files are written while nobody waits: the controller is dead."""
        for reference in list(self._in_flight):
            if self.rng.random() < 0.5:
                self._finish(reference)

    def heed_interrupt(self) -> None:
        """See `Fleet`."""
        ends = self.ends_with is Interrupted and self.stop_after_step is not None
        if ends and len(self.trained) >= (self.stop_after_step or 0):
            raise Interrupted

    def _finish(self, reference: int) -> Any:
        task, first = self._in_flight.pop(reference)
        # demonstrations are of no policy
        seen = self.published[first:] if task.plan is None else [PolicyVersion(0, 0)]
        picks = sorted(self.rng.choice(seen) for _ in range(self.tokens_per_group))
        versions = [(version.incarnation, version.step) for version in picks]
        outcome = self.fails_with or Outcome.success
        member = make_trajectory(
            [] if outcome.is_infrastructure else versions,
            task_id=task.task_id,
            group_id=task.group_id,
            outcome=outcome,
            info={} if self.fails_with is None else {"cause": f"cause {self.rng.randint(0, 9) // 9}"},
        )
        group = Group(
            task_id=task.task_id,
            group_id=task.group_id,
            trajectories=(member,),
            first_version=seen[0],
            last_version=seen[-1],
            made_by="rollout-0",
        )
        path = self.groups_folder / file_name(task.group_id)
        digest = save_group(path, group)
        if task.group_id in self.damages and task.group_id not in self._damaged:
            self._damaged.add(task.group_id)
            path.write_bytes(path.read_bytes()[:-1])
        self.events.append(f"group {task.number}")
        return make_record(group, number=task.number, digest=digest, rollout_s=0.0)

    def _train_step(self, request: TrainRequest) -> dict[str, float | None] | RunError:
        version = PolicyVersion(len(request.restored_steps) - 1, request.step)
        ages: list[int] = []
        masked: dict[str, int] = {}
        damaged = tuple(path.stem for path, digest in request.files if not _is_whole(path, digest))
        if damaged:
            error = RunError("learner-0 failed")
            error.__cause__ = DamagedGroupsError(damaged)
            return error
        groups = [load_group(path, digest=digest) for path, digest in request.files]
        for group in groups:
            for t in group.trajectories:
                fresh = is_fresh(
                    t.policy_incarnation, t.policy_step, version, request.restored_steps, self.max_staleness
                )
                ages += (request.step - t.policy_step[t.trainable & fresh]).tolist()
                masked[group.group_id] = masked.get(group.group_id, 0) + int(np.sum(t.trainable & ~fresh))
        self.trained.append(
            TrainedStep(step=request.step, group_ids=[g.group_id for g in groups], ages=ages, masked=masked)
        )
        self.events.append(f"step {request.step + 1}")
        self._steps = request.step + 1
        return {}

    def _imitate_step(self, request: TrainRequest) -> dict[str, float | None] | RunError:
        self.places.append(request.place)
        return self._train_step(request)

    def _keep_demonstrations(self, request: HeldOutRequest) -> HeldOutGroup:
        path = request.folder / file_name(request.name)
        return HeldOutGroup(path=path, digest="", num_labels=2, distances=(100, 200) if request.recalls else ())

    def _score(self, file: tuple[Path, str]) -> list[float]:
        self.events.append(f"score {file[0].stem}")
        loss = self.held_out_loss(file[0].stem, self._steps)
        return [-loss, -loss]

    def _open_store(self) -> tuple[str, int]:
        return "", 0

    def _publish(self, version: PolicyVersion) -> WeightTicket:
        if self.ends_with is Killed and self.dies_in == "publish" and len(self.trained) == self.stop_after_step:
            raise Killed
        self.published.append(version)
        self.events.append(f"publish {version.step}")
        return WeightTicket(version=version, size_bytes=1, reference=None)

    def _set_weights(self, ticket: WeightTicket) -> None:
        assert ticket.version == self.published[-1]

    def _evaluate(self, request: Any) -> list[Any]:
        self.events.append(f"evaluate {request.name}")
        self._num_held_out += len(request.seeds)
        return [make_episode(seed=seed) for seed in request.seeds]

    def _stats(self) -> RolloutStats:
        return RolloutStats(num_held_out=self._num_held_out)

    def _save(self, folder: Path) -> None:
        (folder / "weights").write_text(str(len(self.trained)))
        (folder / "steps").write_text(str(self._steps))
        self.events.append("save")

    def _load(self, folder: Path) -> None:
        assert (folder / "weights").is_file()
        self._steps = int((folder / "steps").read_text())
        self.events.append("load")

    def _export(self, folder: Path) -> None:
        assert not folder.exists()
        folder.mkdir()
        if self.dies_in == "export":
            raise self.ends_with("half of it is written")
        (folder / "steps").write_text(str(self.trained[-1].step + 1 if self.trained else 0))
        self.events.append("export")


def _is_whole(path: Path, digest: str) -> bool:
    try:
        load_group(path, digest=digest)
    except TrajectoryFileError:
        return False
    return True
