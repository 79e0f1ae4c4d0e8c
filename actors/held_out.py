"""Playing tasks that nothing trains on, on the rollout actors: which modes there are, and asking for one."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from segue.actors.episode import Episode
from segue.actors.evaluation import Evaluation, evaluate
from segue.actors.rollout_actor import EvaluationRequest
from segue.actors.rollout_pool import RolloutPool
from segue.actors.task import TaskKind, TaskStream
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
    request = EvaluationRequest(
        name=f"eval-{mode.name}",
        seeds=tuple(seeds),
        options=mode.options,
        temperature=config.eval.temperature,
        greedy=mode.greedy,
        keep_as=keep_as,
    )
    episodes = _play(pool, config, request, what=f"evaluating ({mode.name})", show=show)
    return evaluate(episodes)


def play_to_measure(pool: RolloutPool, config: SegueConfig, *, show: Callable[[str], None]) -> list[Episode]:
    """Play `train.effort.episodes` training tasks of their own once each, as training samples them."""
    stream = TaskStream(kind=TaskKind.measurement, run_seed=config.seed, seed_limit=config.eval.seed_start)
    request = EvaluationRequest(
        name=TaskKind.measurement.value,
        seeds=tuple(stream.draw().seed for _ in range(config.train.effort.episodes)),
        options={},
        temperature=config.rollout.temperature,
        greedy=False,
        keep_as=None,
    )
    return _play(pool, config, request, what="measuring what tasks take", show=show)


def _play(
    pool: RolloutPool, config: SegueConfig, request: EvaluationRequest, *, what: str, show: Callable[[str], None]
) -> list[Episode]:
    """Spread a request over the rollout actors."""
    jobs = [
        pool.submit(
            "evaluate",
            replace(request, seeds=request.seeds[i :: pool.size], keep_as=_part(request.keep_as, i)),
            what=f"{request.name} (share {i + 1} of {pool.size})",
        )
        for i in range(pool.size)
    ]
    num_before, num_wanted = pool.latest_stats.num_held_out, len(request.seeds)

    def show_progress() -> None:
        # a share that is played again counts again
        num_played = min(pool.latest_stats.num_held_out - num_before, num_wanted)
        if num_played:
            show(f"{what} {num_played}/{num_wanted}")

    show(what)
    waited_for = f"{num_wanted} held-out episodes"
    answers = pool.wait_all(jobs, timeout_s=config.eval.timeout_s, what=waited_for, meanwhile=show_progress)
    return [episode for episodes in answers for episode in episodes]


def _part(keep_as: Path | None, number: int) -> Path | None:
    return None if keep_as is None else keep_as.with_name(file_name(f"{keep_as.name}.{number}"))
