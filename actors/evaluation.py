"""What a set of held-out episodes says: success, overall and per question class, tool use apart from answer form."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from segue.actors.episode import Episode
from segue.envs.reply import CLASS_KEY
from segue.rollout.trajectory import Outcome

SUCCESS_KEY = "is_success"
ODD_ENDS = ("malformed", "truncated", "environment_error", "infrastructure")
"""Ends other than success and failure, as metrics name them."""
_TRUNCATED = (Outcome.truncated_length, Outcome.truncated_turns, Outcome.truncated_time)


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """How many of how many."""

    count: int
    total: int

    @property
    def value(self) -> float | None:
        """The share; None of none."""
        return self.count / self.total if self.total else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Figures of one set of episodes."""

    num_episodes: int
    """Judged ones."""
    success: Share
    checks: dict[str, Share]
    """Name of a true-or-false entry of the environment's info, such as `query_correct`, to how often it held."""
    success_by_class: dict[str, Share]
    """Question class to its successes; empty where the environment names no classes."""
    reward: float | None
    """Mean; None, as every mean and share, where no episode was judged."""
    reward_terms: dict[str, float]
    """Name to mean, over all episodes."""
    num_tokens: float | None
    """Mean length of a trajectory."""
    num_turns: float | None
    """Mean."""
    odd_ends: dict[str, Share]
    """Each of `ODD_ENDS` to how many episodes came to it: of the judged ones, infrastructure's of all."""
    outcomes: dict[str, int]
    """Outcome to number of episodes."""
    num_breakdowns: int
    """Episodes that environment or infrastructure kept from an end of their own."""
    first_cause: str | None
    """What happened to the first of these; None where there is none."""

    def to_json(self) -> dict[str, Any]:
        """Plain values, shares as numbers."""
        return {
            "episodes": self.num_episodes,
            "success": self.success.value,
            "checks": {name: share.value for name, share in self.checks.items()},
            "success_by_class": {
                name: {"success": share.value, "episodes": share.total} for name, share in self.success_by_class.items()
            },
            "reward": self.reward,
            "reward_terms": self.reward_terms,
            "tokens": self.num_tokens,
            "turns": self.num_turns,
            "odd_ends": {name: share.value for name, share in self.odd_ends.items()},
            "outcomes": self.outcomes,
            "first_cause": self.first_cause,
        }


def evaluate(episodes: Sequence[Episode]) -> Evaluation:
    """Add up episodes. Those that infrastructure ended are no verdict on the policy: only `outcomes` counts them."""
    judged = [episode for episode in episodes if not episode.outcome.is_infrastructure]
    broken = [episode for episode in episodes if episode.outcome.is_breakdown]
    classes = sorted({str(e.info[CLASS_KEY]) for e in judged if CLASS_KEY in e.info})
    return Evaluation(
        num_episodes=len(judged),
        success=_share(judged, lambda episode: episode.is_success),
        checks={name: _share(judged, lambda e, name=name: e.info.get(name) is True) for name in check_names(judged)},
        success_by_class={
            name: _share([e for e in judged if str(e.info.get(CLASS_KEY)) == name], lambda e: e.is_success)
            for name in classes
        },
        reward=_mean([episode.reward for episode in judged]),
        reward_terms=mean_reward_terms(judged),
        num_tokens=_mean([episode.num_tokens for episode in judged]),
        num_turns=_mean([episode.num_turns for episode in judged]),
        odd_ends=share_odd_ends(episodes),
        outcomes=dict(sorted(Counter(episode.outcome.value for episode in episodes).items())),
        num_breakdowns=len(broken),
        first_cause=broken[0].cause if broken else None,
    )


def share_odd_ends(episodes: Sequence[Episode]) -> dict[str, Share]:
    """How many came to each of `ODD_ENDS`: of those that were judged, infrastructure's of all."""
    judged = [episode for episode in episodes if not episode.outcome.is_infrastructure]
    return {
        "malformed": _share(judged, lambda episode: episode.outcome is Outcome.malformed),
        "truncated": _share(judged, lambda episode: episode.outcome in _TRUNCATED),
        "environment_error": _share(judged, lambda episode: episode.outcome is Outcome.environment_error),
        "infrastructure": _share(episodes, lambda episode: episode.outcome.is_infrastructure),
    }


def check_names(episodes: Sequence[Episode]) -> list[str]:
    """Names of true-or-false entries in the episodes' info, success apart."""
    names = {name for e in episodes for name, value in e.info.items() if isinstance(value, bool)}
    return sorted(names - {SUCCESS_KEY})


def mean_reward_terms(episodes: Sequence[Episode]) -> dict[str, float]:
    """Name to mean over all episodes, those that did not earn it included."""
    names = sorted({name for episode in episodes for name in episode.reward_terms})
    return {name: sum(e.reward_terms.get(name, 0.0) for e in episodes) / len(episodes) for name in names}


def _share(episodes: Sequence[Episode], holds: Any) -> Share:
    return Share(count=sum(map(bool, map(holds, episodes))), total=len(episodes))


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
