"""What a rollout actor counts, and sums over actors."""

from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from segue.envs.client import EnvCounters
from segue.rollout.rewards.panel import RewardCounters


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutStats:
    """Counters of a rollout actor since its start, or of several."""

    num_prefill_tokens: int = 0
    prefill_s: float = 0.0
    num_decode_tokens: int = 0
    decode_s: float = 0.0
    num_missed: int = 0
    """States rebuilt from their tokens."""
    num_held_out: int = 0
    """Episodes of evaluations that were played."""
    environments: EnvCounters = field(default_factory=EnvCounters)
    reward_terms: RewardCounters = field(default_factory=RewardCounters)
    first_failures: dict[str, str] = field(default_factory=dict)
    """Name of a reward term that has failed to what happened the first time, at one of the actors."""

    def __add__(self, other: "RolloutStats") -> "RolloutStats":
        """Both together."""
        mine, theirs = _counts(self), _counts(other)
        sums = {name: mine[name] + theirs[name] for name in mine}
        return RolloutStats(
            **sums,
            environments=_add(self.environments, other.environments),
            reward_terms=_add(self.reward_terms, other.reward_terms),
            first_failures=other.first_failures | self.first_failures,
        )


_Counters = TypeVar("_Counters", EnvCounters, RewardCounters)


def _add(one: _Counters, other: _Counters) -> _Counters:
    return type(one)(**{f.name: getattr(one, f.name) + getattr(other, f.name) for f in fields(one)})


def _counts(stats: RolloutStats) -> dict[str, Any]:
    """The plain ones."""
    values = ((f.name, getattr(stats, f.name)) for f in fields(stats))
    return {name: value for name, value in values if isinstance(value, (int, float))}
