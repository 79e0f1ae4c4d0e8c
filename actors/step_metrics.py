"""From what a step yielded to the metrics of `metrics.py`: pure functions, and the clock that times a step's parts."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from segue.actors.episode import Episode
from segue.actors.evaluation import Evaluation, check_names, mean_reward_terms, share_odd_ends
from segue.actors.lineage import Staleness
from segue.actors.process_meter import Usage
from segue.actors.recall import RecallPoint
from segue.actors.recorder import Values
from segue.actors.rollout_stats import RolloutStats
from segue.actors.stages import Stages
from segue.conf.reward_term import OVER_BUDGET_TERM
from segue.envs.client import EnvCounters
from segue.rollout.rewards.effort import BUDGET_KEY
from segue.rollout.rewards.panel import RewardCounters

_ETA_STEPS = 10
# metric, counter of the env workers' client
_ENVIRONMENT_COUNTERS = (
    ("env/episodes/begun", "episodes"),
    ("env/episodes/failed", "environment_failures"),
    ("env/episodes/restored", "episodes_restored"),
    ("env/episodes/lost", "episodes_lost"),
    ("env/calls/answered", "calls"),
    ("env/calls/expired", "calls_expired"),
    ("env/workers/died", "workers_died"),
    ("env/workers/replaced", "workers_replaced"),
)


class StepClock:
    """Seconds of the parts of a step, and of whole steps.

    Args:
        now: the time, in seconds; a simulation has its own.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._start = now()
        self._parts: dict[str, float] = {}
        self._recent: deque[float] = deque(maxlen=_ETA_STEPS)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time what runs inside as one part of the step."""
        start = self._now()
        yield
        self._parts[name] = self._parts.get(name, 0.0) + self._now() - start

    def begin_step(self) -> None:
        """A step starts now; what lies between steps (evaluations, checkpoints) is not counted."""
        self._start = self._now()
        self._parts = {}

    def end_step(self, steps_left: int) -> dict[str, float]:
        """Metrics `loop/…` of the step that ends now."""
        wall_s = self._now() - self._start
        self._recent.append(wall_s)
        parts = {f"loop/{name}/wall_s": seconds for name, seconds in self._parts.items()}
        eta_s = steps_left * sum(self._recent) / len(self._recent)
        return {"loop/step/wall_s": wall_s, **parts, "loop/eta/s": eta_s}


def batch_metrics(episodes: Sequence[Episode]) -> dict[str, float | None]:
    """Metrics `batch/…` of the episodes of a step's groups."""
    judged = [episode for episode in episodes if not episode.outcome.is_infrastructure]
    rewards = [episode.reward for episode in judged]
    terms = {f"batch/reward_term/{_part(name)}": value for name, value in mean_reward_terms(judged).items()}
    checks = {
        f"batch/check/{_part(name)}": _mean([episode.info.get(name) is True for episode in judged])
        for name in check_names(judged)
    }
    return {
        "batch/success/mean": _mean([episode.is_success for episode in judged]),
        "batch/reward/mean": _mean(rewards),
        "batch/reward/std": float(np.std(rewards)) if rewards else None,
        **terms,
        **checks,
        "batch/tokens/mean": _mean([episode.num_tokens for episode in judged]),
        "batch/sampled_tokens/mean": _mean([episode.num_sampled_tokens for episode in judged]),
        "batch/turns/mean": _mean([episode.num_turns for episode in judged]),
        **{f"batch/{name}/share": share.value for name, share in share_odd_ends(episodes).items()},
        "batch/replayed/share": _mean([episode.attempt > 0 for episode in episodes]),
    }


def effort_metrics(episodes: Sequence[Episode]) -> dict[str, float | None]:
    """Metrics `effort/…` of the episodes of a step's groups; null where none has a budget."""
    bounded = [e for e in episodes if not e.outcome.is_infrastructure and BUDGET_KEY in e.info]
    return {
        "effort/budget/mean_tokens": _mean([episode.info[BUDGET_KEY] for episode in bounded]),
        "effort/over_budget/share": _mean([OVER_BUDGET_TERM in episode.reward_terms for episode in bounded]),
    }


def usage_metrics(usage: Usage) -> dict[str, float]:
    """Metrics `usage/…`."""
    return {
        "usage/cpu/s": usage.cpu_s,
        "usage/memory/bytes": usage.memory_bytes,
        "usage/memory/peak_bytes": usage.peak_memory_bytes,
    }


def staleness_metrics(staleness: Staleness) -> dict[str, float]:
    """Metrics `staleness/…` of a step's batch."""
    return {
        "staleness/age/mean_steps": staleness.mean_steps,
        "staleness/age/max_steps": staleness.max_steps,
        "staleness/masked/share": staleness.num_old / max(staleness.num_old + staleness.num_fresh, 1),
    }


def rollout_metrics(before: RolloutStats, after: RolloutStats) -> dict[str, float | None]:
    """Metrics `rollout/…` of a step, from the rollout actors' counters around it."""

    def gained(name: str) -> float:
        return getattr(after, name) - getattr(before, name)

    return {
        "rollout/prefill/tokens_per_s": _rate(gained("num_prefill_tokens"), gained("prefill_s")),
        "rollout/decode/tokens_per_s": _rate(gained("num_decode_tokens"), gained("decode_s")),
        "rollout/missed/sessions": gained("num_missed"),
    }


def environment_metrics(before: EnvCounters, after: EnvCounters) -> dict[str, float]:
    """Metrics `env/…`: what was counted between two readings of the rollout actors' env clients."""
    return {metric: getattr(after, name) - getattr(before, name) for metric, name in _ENVIRONMENT_COUNTERS}


def reward_term_metrics(before: RewardCounters, after: RewardCounters) -> dict[str, float | None]:
    """Metrics `reward/…`: what was counted between two readings of the rollout actors' panels."""
    computed, failed, expired = (
        getattr(after, name) - getattr(before, name) for name in ("computed", "failed", "expired")
    )
    return {
        "reward/terms/computed": computed,
        "reward/terms/failed": failed,
        "reward/terms/expired": expired,
        "reward/term/wall_s": _rate(after.wall_s - before.wall_s, computed + failed + expired),
    }


def evaluation_metrics(mode: str, evaluation: Evaluation, wall_s: float) -> Values:
    """Metrics `eval/…` of one mode."""
    prefix = f"eval/{mode}"
    return {
        "eval/wall/s": wall_s,
        f"{prefix}/success": evaluation.success.value,
        f"{prefix}/reward": evaluation.reward,
        f"{prefix}/tokens": evaluation.num_tokens,
        f"{prefix}/turns": evaluation.num_turns,
        **{f"{prefix}/{name}": share.value for name, share in evaluation.odd_ends.items()},
        **{f"{prefix}/check/{_part(name)}": share.value for name, share in evaluation.checks.items()},
        **{f"{prefix}/class/{_part(name)}": share.value for name, share in evaluation.success_by_class.items()},
    }


def stage_metrics(stages: Stages, losses: Mapping[str, float], wall_s: float) -> dict[str, float | None]:
    """Metrics `curriculum/…` and `held_out/…` of the measurement that the stages have just taken up.

    Args:
        losses: name of each kind of sequence to its loss, nats a token.
    """
    step = stages.measurements[-1].step
    # where a stage has ended, its own comes first and the next one's follows
    latest = next(measurement for measurement in stages.measurements if measurement.step == step)
    return {
        "curriculum/stage/number": latest.stage + 1,
        "curriculum/loss/nats": latest.loss,
        "curriculum/slope/share": latest.slope,
        "curriculum/short_loss/nats": latest.short_loss,
        "curriculum/short/share": stages.short_share(),
        "curriculum/longest/tokens": stages.longest_trained,
        "curriculum/wall/s": wall_s,
        **{f"held_out/{name}/nats": loss for name, loss in losses.items()},
    }


def recall_metrics(points: Sequence[RecallPoint]) -> dict[str, float | None]:
    """Metrics `recall/…`."""
    values: dict[str, float | None] = {}
    for point in points:
        prefix = f"recall/{point.length}/{point.quarter}"
        values[f"{prefix}/distance_tokens"] = point.distance_tokens
        values[f"{prefix}/probability"] = point.probability
        values[f"{prefix}/logprob_nats"] = point.logprob
    return values


def _part(name: str) -> str:
    """An environment's own name as one part of a metric's."""
    return name.replace("/", "_")


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _rate(amount: float, per: float) -> float | None:
    return amount / per if per > 0 else None
