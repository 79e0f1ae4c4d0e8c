"""What the controller keeps of a trajectory: the figures, without the tokens."""

from dataclasses import dataclass
from typing import Any

from segue.rollout.trajectory import Outcome, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """Figures of one played episode."""

    seed: int
    outcome: Outcome
    reward: float
    reward_terms: dict[str, float]
    """Name to reward, added up over turns and outcome."""
    num_tokens: int
    num_sampled_tokens: int
    num_turns: int
    attempt: int
    """Times it was played before, after infrastructure failures."""
    info: dict[str, Any]
    """What the environment said at the end: question class, which checks held."""

    @property
    def is_success(self) -> bool:
        """The task was solved."""
        return self.outcome is Outcome.success

    @property
    def cause(self) -> str:
        """Why it broke down, in words."""
        return str(self.info.get("cause", self.outcome.value))


def summarize(trajectory: Trajectory) -> Episode:
    """The figures of a trajectory."""
    terms: dict[str, float] = {}
    for earned in (*(turn.reward_terms for turn in trajectory.turns), trajectory.outcome_terms):
        for name, value in earned.items():
            terms[name] = terms.get(name, 0.0) + value
    return Episode(
        seed=trajectory.seed,
        outcome=trajectory.outcome,
        reward=trajectory.reward,
        reward_terms=terms,
        num_tokens=trajectory.num_tokens,
        num_sampled_tokens=sum(turn.end - turn.start for turn in trajectory.turns),
        num_turns=len(trajectory.turns),
        attempt=trajectory.attempt,
        info=trajectory.info,
    )
