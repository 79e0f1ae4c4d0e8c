"""A fleet without processes: rollout actors that finish groups in any order, learners that remember what they trained.

Versions are as in a real run: a group's tokens are spread over the weights that were published while it was in flight.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from actor_cases import make_episode, make_trajectory

from segue.actors.errors import Interrupted
from segue.actors.group_record import file_name, make_record
from segue.actors.learner_actor import TrainRequest
from segue.actors.rollout_actor import RolloutStats
from segue.actors.supervise import Member
from segue.actors.task import Task
from segue.actors.weight_channel import WeightTicket
from segue.envs.client import EnvCounters
from segue.learner.staleness import is_fresh
from segue.rollout.trajectory import Group, Outcome, PolicyVersion
from segue.rollout.trajectory_file import load_group, save_group


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
    num_rollout: int = 2
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
    trained: list[TrainedStep] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    published: list[PolicyVersion] = field(default_factory=list)
    max_outstanding: int = 0
    _in_flight: dict[int, tuple[Task, int]] = field(default_factory=dict)
    _answers: dict[int, Any] = field(default_factory=dict)
    _count: int = 0
    _num_held_out: int = 0

    def __post_init__(self) -> None:
        self.rollout = [Member(f"rollout-{i}", None) for i in range(self.num_rollout)]
        self.learners = [Member("learner-0", None)]

    def call(self, member: Member, method: str, *arguments: Any) -> int:
        """See `Fleet`; a group is played when it is waited for, everything else at once."""
        self._count += 1
        if method in ("play", "demonstrate"):
            self._in_flight[self._count] = (arguments[0], len(self.published) - 1)
            self.max_outstanding = max(self.max_outstanding, len(self._in_flight))
        else:
            self._answers[self._count] = getattr(self, f"_{method}")(*arguments)
        return self._count

    def wait(
        self,
        references: list[int],
        *,
        is_interruptible: bool = False,
        meanwhile: Callable[[], None] = lambda: None,
        **_: Any,
    ) -> list[Any]:
        """See `Fleet`."""
        if is_interruptible:
            self._end_if_wished()
        # asks, then sees the answer
        meanwhile()
        meanwhile()
        return [self._answers.pop(reference) for reference in references]

    def take_if_ready(self, references: list[int]) -> list[Any] | None:
        """See `Fleet`."""
        return [self._answers.pop(reference) for reference in references]

    def ask_all(self, members: list[Member], method: str, *arguments: Any, **_: Any) -> list[Any]:
        """See `Fleet`."""
        return self.wait([self.call(member, method, *arguments) for member in members])

    def wait_any(self, references: list[int], *, is_interruptible: bool = True, **_: Any) -> list[tuple[int, Any]]:
        """See `Fleet`; any of the groups in flight finish."""
        if is_interruptible:
            self._end_if_wished()
        if self.prefers_newest:
            finished = [max(references)]
        else:
            finished = self.rng.sample(references, self.rng.randint(1, len(references)))
        return [(reference, self._finish(reference)) for reference in finished]

    def finish_unseen(self) -> None:
        """Groups in flight whose files are written while nobody waits: the controller is dead."""
        for reference in list(self._in_flight):
            if self.rng.random() < 0.5:
                self._finish(reference)

    def _end_if_wished(self) -> None:
        ends = self.ends_with is Interrupted and self.stop_after_step is not None
        if ends and len(self.trained) >= (self.stop_after_step or 0):
            raise Interrupted

    def _finish(self, reference: int) -> Any:
        task, first = self._in_flight.pop(reference)
        seen = self.published[first:]
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
        digest = save_group(self.groups_folder / file_name(task.group_id), group)
        self.events.append(f"group {task.number}")
        return make_record(group, number=task.number, digest=digest, rollout_s=0.0)

    def _train_step(self, request: TrainRequest) -> dict[str, float | None]:
        version = PolicyVersion(len(request.restored_steps) - 1, request.step)
        ages: list[int] = []
        masked: dict[str, int] = {}
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
        return {}

    def _imitate_step(self, request: TrainRequest) -> dict[str, float | None]:
        return self._train_step(request)

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
        self._num_held_out = len(request.seeds)
        return [make_episode(seed=seed) for seed in request.seeds]

    def _num_played(self) -> int:
        return self._num_held_out

    def _stats(self) -> RolloutStats:
        return RolloutStats(
            num_prefill_tokens=0,
            prefill_s=0.0,
            num_decode_tokens=0,
            decode_s=0.0,
            num_missed=0,
            environments=EnvCounters(),
        )

    def _save(self, folder: Path) -> None:
        (folder / "weights").write_text(str(len(self.trained)))
        self.events.append("save")

    def _load(self, folder: Path) -> None:
        assert (folder / "weights").is_file()
        self.events.append("load")

    def _export(self, folder: Path) -> None:
        assert not folder.exists()
        folder.mkdir()
        if self.dies_in == "export":
            raise self.ends_with("half of it is written")
        (folder / "steps").write_text(str(self.trained[-1].step + 1 if self.trained else 0))
        self.events.append("export")
