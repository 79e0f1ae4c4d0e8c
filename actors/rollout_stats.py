"""What a rollout actor counts, and sums over actors."""

from dataclasses import dataclass, field, fields

from segue.envs.client import EnvCounters


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

    def __add__(self, other: "RolloutStats") -> "RolloutStats":
        """Both together."""
        return RolloutStats(
            **{
                f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self) if f.name != "environments"
            },
            environments=EnvCounters(
                **{
                    f.name: getattr(self.environments, f.name) + getattr(other.environments, f.name)
                    for f in fields(EnvCounters)
                }
            ),
        )
