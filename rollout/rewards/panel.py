"""The terms of a configuration, and what they say of an episode."""

import asyncio
import logging
import math
import reprlib
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from segue.envs.clock import EpisodeClock
from segue.envs.errors import InfrastructureFailure
from segue.envs.tool_env import MAX_REWARD_TERM, NUMBERS
from segue.rollout.engine.base import EngineFailure
from segue.rollout.rewards.term import FinishedEpisode

logger = logging.getLogger(__name__)

# between a try that failed and the next
_PAUSE_S = 1.0


@dataclass(slots=True, kw_only=True)
class RewardCounters:
    """What a rollout actor counts of its terms."""

    computed: int = 0
    """Values that were given."""
    failed: int = 0
    """Tries that raised, or gave no number within bounds."""
    expired: int = 0
    """Tries that gave no value in time."""
    wall_s: float = 0.0
    """Seconds between the beginning and the end of all these, waits included, added up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rating:
    """What the terms gave an episode."""

    outcome_terms: dict[str, float]
    """Of the terms that rated it as a whole."""
    turn_terms: tuple[dict[str, float], ...]
    """For each turn, of the terms that rated turn by turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedTerm:
    """A term of a run."""

    name: str
    term: Callable[[FinishedEpisode], Awaitable[Any]]
    """Gives its value; may raise `InfrastructureFailure` or `EngineFailure`."""
    timeout_s: float
    """Deadline of a try, the waits for a place in an engine not counted."""
    attempts: int
    """Tries at most, 1 or more, of which the first that gives a value counts."""


class RewardPanel:
    """Rates finished episodes by all terms side by side.

    Example:
        Of an episode of two turns `brevity` gives 0.1, `polite` True and `steps` [0, 0.5]: its outcome earned
        `{"brevity": 0.1, "polite": 1.0}`, its turns `{"steps": 0.0}` and `{"steps": 0.5}`.
    """

    def __init__(self, terms: Sequence[NamedTerm]) -> None:
        self._terms = tuple(terms)
        self.counters = RewardCounters()
        self.first_failures: dict[str, str] = {}
        """Name of a term that has failed to what happened the first time."""

    async def rate(self, episode: FinishedEpisode) -> Rating:
        """What every term gives, in their order.

        Raises:
            InfrastructureFailure, EngineFailure: a term failed or was late in its last try; the others were called off.
        """
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._value(term, episode)) for term in self._terms]
        except ExceptionGroup as errors:
            own = [e for e in errors.exceptions if not isinstance(e, InfrastructureFailure | EngineFailure)]
            # a fault of ours is not hidden behind a term's
            if own:
                raise own[0] from errors
            kind = EngineFailure if isinstance(errors.exceptions[0], EngineFailure) else InfrastructureFailure
            raise kind("; ".join(map(str, errors.exceptions))) from errors
        values = {term.name: task.result() for term, task in zip(self._terms, tasks, strict=True)}
        by_turn = {name: value for name, value in values.items() if isinstance(value, list)}
        return Rating(
            outcome_terms={name: value for name, value in values.items() if not isinstance(value, list)},
            turn_terms=tuple(
                {name: value[number] for name, value in by_turn.items()} for number in range(len(episode.turns))
            ),
        )

    async def _value(self, named: NamedTerm, episode: FinishedEpisode) -> float | list[float]:
        num_left = named.attempts
        while True:
            num_left -= 1
            try:
                return await self._try(named, episode)
            except (InfrastructureFailure, EngineFailure) as error:
                self.first_failures.setdefault(named.name, str(error))
                if not num_left:
                    raise
                # the episode took longer to play than its rating takes
                logger.warning("%s is rated again: %s", episode.task_id, error)
                await asyncio.sleep(_PAUSE_S)

    async def _try(self, named: NamedTerm, episode: FinishedEpisode) -> float | list[float]:
        clock, start = EpisodeClock(named.timeout_s), time.perf_counter()
        try:
            async with clock:
                value = _checked(named.name, await named.term(episode), len(episode.turns))
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


def _checked(name: str, value: Any, num_turns: int) -> float | list[float]:
    """The value for the episode, or those for its turns.

    Raises:
        InfrastructureFailure: it is neither.
    """
    if isinstance(value, np.ndarray):
        # of no axis it is a number
        value = value.tolist()
    is_by_turn = isinstance(value, list | tuple)
    numbers = [_number(v) for v in (value if is_by_turn else [value])]
    if all(abs(number) <= MAX_REWARD_TERM for number in numbers) and (not is_by_turn or len(numbers) == num_turns):
        return numbers if is_by_turn else numbers[0]
    raise InfrastructureFailure(
        f"reward term {name} must give a number in [{-MAX_REWARD_TERM:g}, {MAX_REWARD_TERM:g}], or one for each of "
        f"{num_turns} turns, got {reprlib.repr(value)}"
    )


def _number(value: Any) -> float:
    """The value, NaN where it is no number, infinity where no float holds it."""
    try:
        return float(value) if isinstance(value, NUMBERS) else math.nan
    except OverflowError:
        return math.inf
