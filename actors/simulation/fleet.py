"""A fleet whose actors only take time: what the controller asks is answered when it would be done."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from segue.actors.fleet import Answer, Member, learner_name
from segue.actors.group_record import GroupRecord
from segue.actors.learner_actor import TrainRequest
from segue.actors.rollout_actor import EvaluationRequest
from segue.actors.rollout_stats import RolloutStats
from segue.actors.simulation.events import Events
from segue.actors.simulation.rollout import SimulatedActor
from segue.actors.task import Task
from segue.actors.weight_channel import WeightTicket
from segue.conf.schema import SegueConfig
from segue.rollout.trajectory import PolicyVersion


class SimulatedFleet:
    """See `Fleet`; nobody dies, and evaluations and checkpoints take no time."""

    def __init__(self, config: SegueConfig) -> None:
        self._config = config
        self.events = Events()
        self.actors: dict[str, SimulatedActor] = {}
        """Rollout actors by name."""
        self._answers: dict[int, Any] = {}
        self._num_calls = 0
        self._tokens: dict[str, int] = {}

    def now(self) -> float:
        """Seconds since the start."""
        return self.events.now

    def spawn_rollout(self, name: str) -> Member:
        """See `Fleet`."""
        self.actors[name] = SimulatedActor(self.events, self._config, name)
        return Member(name, None)

    def spawn_learner(self, rank: int) -> Member:
        """See `Fleet`."""
        return Member(learner_name(rank), None)

    def call(self, member: Member, method: str, *arguments: Any) -> int:
        """See `Fleet`."""
        self._num_calls += 1
        reference = self._num_calls
        if method == "play":
            (task,) = arguments
            self._play(member, task, reference)
        else:
            seconds, value = getattr(self, f"_{method}")(member, *arguments)
            self.events.after(seconds, lambda: self._answers.update({reference: value}))
        return reference

    def look(self, references: Sequence[int], *, is_interruptible: bool = False) -> list[Answer]:
        """See `Fleet`; time goes on until one is answered."""
        while True:
            there = [reference for reference in references if reference in self._answers]
            if there:
                return [Answer(reference=reference, value=self._answers.pop(reference)) for reference in there]
            if not self.events.advance():
                raise AssertionError("somebody is waited for who has nothing to do")

    def heed_interrupt(self) -> None:
        """See `Fleet`; Ctrl-C ends a simulation at once."""

    def cancel(self, reference: int) -> None:
        """See `Fleet`; nothing is called off where nothing fails."""
        raise AssertionError("nothing is called off in a simulation")

    def kill(self, member: Member) -> None:
        """See `Fleet`; nobody is killed where nobody dies."""
        raise AssertionError("nobody is killed in a simulation")

    def check_alive(self) -> None:
        """See `Fleet`."""

    def loss_noticed_s(self) -> float:
        """See `Fleet`."""
        return 0.0

    def explain_absence(self, members: Sequence[Member]) -> str:
        """See `Fleet`."""
        return ""

    def _play(self, member: Member, task: Task, reference: int) -> None:
        def done(record: GroupRecord) -> None:
            self._tokens[record.file] = sum(episode.num_tokens for episode in record.episodes)
            self._answers[reference] = record

        self.actors[member.name].play(task, done)

    def _open_store(self, member: Member) -> tuple[float, tuple[str, int]]:
        return 0.0, ("", 0)

    def _start(self, member: Member, *arguments: Any) -> tuple[float, None]:
        return 0.0, None

    def _train_step(self, member: Member, request: TrainRequest) -> tuple[float, dict[str, float]]:
        config = self._config.simulate
        num_tokens = sum(self._tokens[path.name] for path, _ in request.files)
        return config.learner_step_s + num_tokens / config.learner_tokens_per_s, {}

    def _publish(self, member: Member, version: PolicyVersion) -> tuple[float, WeightTicket]:
        ticket = WeightTicket(version=version, size_bytes=0, reference=None)
        return self._config.simulate.publish_s if version.step else 0.0, ticket

    def _set_weights(self, member: Member, ticket: WeightTicket) -> tuple[float, None]:
        self.actors[member.name].engine.swap(ticket.version)
        return 0.0, None

    def _evaluate(self, member: Member, request: EvaluationRequest) -> tuple[float, list[Any]]:
        return 0.0, []

    def _stats(self, member: Member) -> tuple[float, RolloutStats]:
        return 0.0, RolloutStats()

    def _save(self, member: Member, folder: Path) -> tuple[float, None]:
        return 0.0, None

    def _export(self, member: Member, folder: Path) -> tuple[float, None]:
        folder.mkdir(exist_ok=True)
        return 0.0, None
