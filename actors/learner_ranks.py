"""The ranks of the learner: started together, asked together, and together lost."""

import time
from pathlib import Path
from typing import Any

from segue.actors.errors import ActorLost, RunError, Silent
from segue.actors.fleet import Fleet, Member
from segue.conf.schema import OptimizerConfig, SegueConfig


class LearnerRanks:
    """Every question goes to all ranks, which meet in collectives inside.

    A rank that is lost, or overdue, ends all: the others hold half a step. `start` then makes new ones.
    """

    def __init__(self, fleet: Fleet, config: SegueConfig, optimizer: OptimizerConfig) -> None:
        self._fleet = fleet
        self._config = config
        self._optimizer = optimizer
        self._members: list[Member] = []

    def start(self, exported_model: Path | None) -> None:
        """Start every rank, in the place of those that there may be.

        Args:
            exported_model: folder of the model to start from; None draws weights.
        Raises:
            ActorLost: a rank died.
            Silent: one was not ready in time.
            RunError: a rank failed.
        """
        for member in self._members:
            self._fleet.kill(member)
        self._members = [self._fleet.spawn_learner(rank) for rank in range(self._config.cluster.num_learner_ranks)]
        timeout_s, what = self._config.cluster.start_timeout_s, "the learner to start"
        first = [self._fleet.call(self._members[0], "open_store")]
        address = self._wait(first, timeout_s, what, is_interruptible=True)[0]
        ready = [
            self._fleet.call(member, "start", address, self._optimizer, exported_model) for member in self._members
        ]
        self._wait(ready, timeout_s, what, is_interruptible=True)

    def ask(self, method: str, *arguments: Any, what: str) -> list[Any]:
        """Ask every rank the same, under the deadline of a step.

        Args:
            what: completes "waited for …" in the message.
        Returns:
            Each rank's answer.
        Raises:
            ActorLost: a rank died.
            Silent: one gave no answer in time.
            RunError: a rank failed.
        """
        references = [self._fleet.call(member, method, *arguments) for member in self._members]
        return self._wait(references, self._config.learner.step_timeout_s, what)

    def _wait(self, references: list[Any], timeout_s: float, what: str, *, is_interruptible: bool = False) -> list[Any]:
        deadline = time.monotonic() + timeout_s
        values: dict[Any, Any] = {}
        failure: RunError | None = None
        is_late = False
        waiting = list(references)
        while waiting:
            for answer in self._fleet.look(waiting, is_interruptible=is_interruptible):
                waiting.remove(answer.reference)
                values[answer.reference] = answer.value
                if isinstance(answer.error, ActorLost):
                    raise answer.error
                if answer.error is not None and failure is None:
                    failure = answer.error
                    # what waits as long as the controller for a rank that hangs fails a moment later
                    is_late = time.monotonic() > deadline
                    if not is_late:
                        # a rank that dies makes the others fail in their collectives, and they are heard first
                        deadline = time.monotonic() + self._fleet.loss_noticed_s()
            if waiting and time.monotonic() > deadline:
                break
        if failure is not None and not (waiting and is_late):
            raise failure
        if waiting:
            self._fleet.check_alive()
            silent = [member for member, r in zip(self._members, references, strict=False) if r in waiting]
            raise Silent(
                f"the controller waited {timeout_s:.0f} s for {what}, without an answer from "
                f"{', '.join(member.name for member in silent)}{self._fleet.explain_absence(silent)}"
            )
        return [values[reference] for reference in references]
