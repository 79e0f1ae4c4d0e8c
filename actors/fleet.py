"""What a run asks of the processes that it is made of, whoever they are: Ray's actors, or a simulation's."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from segue.actors.errors import RunError


@dataclass(frozen=True, slots=True)
class Member:
    """One actor."""

    name: str
    handle: Any
    """Ray's handle."""
    demand: dict[str, float] = field(default_factory=dict, compare=False)
    """What it asks a node of the cluster for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What became of a question."""

    reference: Any
    value: Any = None
    error: RunError | None = None
    """`ActorLost` where the process is gone; else what its code raised."""

    def or_raise(self) -> Any:
        """The value, or the error raised."""
        if self.error is not None:
            raise self.error
        return self.value


class Fleet(Protocol):
    """The actors of one run."""

    def spawn_rollout(self, name: str) -> Member:
        """Start a rollout actor; it is to be asked to `start`."""

    def spawn_learner(self, rank: int) -> Member:
        """Start a rank of the learner; it is to be asked to `start`."""

    def call(self, member: Member, method: str, *arguments: Any) -> Any:
        """Ask an actor for something.

        Returns:
            A reference, whose answer is to be waited for.
        """

    def look(self, references: Sequence[Any], *, is_interruptible: bool = False) -> list[Answer]:
        """The answers that are there, after a short wait for a first one.

        Args:
            references: of `call`, at least one.
            is_interruptible: raise `Interrupted` once the user asks the run to end.
        Raises:
            RayLost: Ray is gone.
        """

    def heed_interrupt(self) -> None:
        """Raise `Interrupted` once the user asks the run to end."""

    def cancel(self, reference: Any) -> None:
        """Ask an actor to leave off; the reference is answered with an error then, or with what was done already."""

    def kill(self, member: Member) -> None:
        """End an actor at once, also one that does not answer; what it was asked is answered with a loss."""

    def check_alive(self) -> None:
        """Tell a lost actor from a lost Ray.

        Raises:
            RayLost: Ray is gone.
        """

    def loss_noticed_s(self) -> float:
        """Seconds that a loss may take to be told: an actor that fails for another's loss is heard before it."""

    def explain_absence(self, members: Sequence[Member]) -> str:
        """Why actors may not have come, to be added to who did not; empty where nothing is known."""


def rollout_name(index: int) -> str:
    """Of a rollout actor."""
    return f"rollout-{index}"


def learner_name(rank: int) -> str:
    """Of a learner rank."""
    return f"learner-{rank}"
