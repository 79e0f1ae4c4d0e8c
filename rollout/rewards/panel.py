"""The terms of a configuration, and what they say of an episode."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from segue.envs.clock import EpisodeClock
from segue.envs.errors import InfrastructureFailure
from segue.envs.tool_env import MAX_REWARD_TERM, NUMBERS
from segue.rollout.engine.base import EngineFailure
from segue.rollout.rewards.term import FinishedEpisode


@dataclass(slots=True, kw_only=True)
class RewardCounters:
    """What a rollout actor counts of its terms."""

    computed: int = 0
    """Values that were given."""
    failed: int = 0
    """Terms that raised, or gave no number within bounds."""
    expired: int = 0
    """Terms that gave no value in time."""
    wall_s: float = 0.0
    """Seconds between the beginning and the end of all these, waits included, added up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedTerm:
    """A term of a run."""

    name: str
    term: Callable[[FinishedEpisode], Awaitable[Any]]
    """Gives its value; may raise `InfrastructureFailure` or `EngineFailure`."""
    timeout_s: float
    """Deadline, the waits for a place in an engine not counted."""


class RewardPanel:
    """Rates finished episodes by all terms side by side.

    Example:
        Terms `brevity` and `polite` that give 0.1 and True: `rate` gives `{"brevity": 0.1, "polite": 1.0}`.
    """

    def __init__(self, terms: Sequence[NamedTerm]) -> None:
        self._terms = tuple(terms)
        self.counters = RewardCounters()

    async def rate(self, episode: FinishedEpisode) -> dict[str, float]:
        """Name to value of every term, in their order.

        Raises:
            InfrastructureFailure, EngineFailure: a term failed or was late; the others were called off.
        """
        try:
            async with asyncio.TaskGroup() as group:
                values = [group.create_task(self._value(term, episode)) for term in self._terms]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from errors
        return {term.name: value.result() for term, value in zip(self._terms, values, strict=True)}

    async def _value(self, named: NamedTerm, episode: FinishedEpisode) -> float:
        clock, start = EpisodeClock(named.timeout_s), time.perf_counter()
        try:
            async with clock:
                value = _checked(named.name, await named.term(episode))
        except TimeoutError as error:
            if not clock.has_expired:
                raise
            self.counters.expired += 1
            raise InfrastructureFailure(
                f"reward term {named.name} gave no value within {named.timeout_s:g} s"
            ) from error
        except (InfrastructureFailure, EngineFailure):
            self.counters.failed += 1
            raise
        finally:
            self.counters.wall_s += time.perf_counter() - start
        self.counters.computed += 1
        return value


def _checked(name: str, value: Any) -> float:
    number = float(value) if isinstance(value, NUMBERS) else math.nan
    if abs(number) <= MAX_REWARD_TERM:
        return number
    raise InfrastructureFailure(
        f"reward term {name} must give a number in [{-MAX_REWARD_TERM:g}, {MAX_REWARD_TERM:g}], got {value!r:.200}"
    )
