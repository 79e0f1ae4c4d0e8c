"""Playing held-out tasks on the rollout actors: which modes there are, and asking for one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from segue.actors.evaluation import Evaluation, evaluate
from segue.actors.rollout_actor import EvaluationRequest
from segue.actors.rollout_pool import RolloutPool
from segue.conf.rules import GREEDY_MODE, SAMPLED_MODE
from segue.conf.schema import SegueConfig
from segue.rollout.trajectory_file import file_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """One way of playing held-out tasks."""

    name: str
    """One of `EVALUATION_MODES`, or a variant of the environment's."""
    options: dict[str, Any]
    """Reset options."""
    greedy: bool = False


def standard_modes(config: SegueConfig) -> list[Mode]:
    """Sampled and greedy, on tasks like those of training."""
    options = config.env.eval_options
    return [Mode(name=SAMPLED_MODE, options=options), Mode(name=GREEDY_MODE, options=options, greedy=True)]


def variant_modes(config: SegueConfig) -> list[Mode]:
    """Sampled, on what the environment holds out: schemas, phrasings, levels."""
    return [Mode(name=name, options=options) for name, options in config.env.variants.items()]


def play_held_out(
    pool: RolloutPool, config: SegueConfig, mode: Mode, *, keep_as: Path | None, show: Callable[[str], None]
) -> Evaluation:
    """Play `eval.episodes` tasks in one mode, spread over the rollout actors.

    Args:
        keep_as: name of the trajectories' files, one for each actor's share, less its number; None keeps none.
        show: is told how far it is, in words.
    """
    seeds = range(config.eval.seed_start, config.eval.seed_start + config.eval.episodes)
    shares = [seeds[i :: pool.size] for i in range(pool.size)]
    jobs = [pool.submit("evaluate", _request(config, mode, share, _part(keep_as, i))) for i, share in enumerate(shares)]
    num_before = pool.latest_stats.num_held_out

    def show_progress() -> None:
        # a share that is played again counts again
        num_played = min(pool.latest_stats.num_held_out - num_before, len(seeds))
        if num_played:
            show(f"evaluating ({mode.name}) {num_played}/{len(seeds)}")

    show(f"evaluating ({mode.name})")
    what = f"{len(seeds)} held-out episodes"
    answers = pool.wait_all(jobs, timeout_s=config.eval.timeout_s, what=what, meanwhile=show_progress)
    return evaluate([episode for episodes in answers for episode in episodes])


def _part(keep_as: Path | None, number: int) -> Path | None:
    return None if keep_as is None else keep_as.with_name(file_name(f"{keep_as.name}.{number}"))


def _request(config: SegueConfig, mode: Mode, seeds: Sequence[int], keep_as: Path | None) -> EvaluationRequest:
    return EvaluationRequest(
        name=f"eval-{mode.name}",
        seeds=tuple(seeds),
        options=mode.options,
        temperature=config.eval.temperature,
        greedy=mode.greedy,
        keep_as=keep_as,
    )
