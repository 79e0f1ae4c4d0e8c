"""Playing held-out tasks on the rollout actors: which modes there are, and asking for one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from segue.actors.evaluation import Evaluation, evaluate
from segue.actors.rollout_actor import EvaluationRequest
from segue.actors.supervise import Fleet
from segue.conf.rules import GREEDY_MODE, SAMPLED_MODE
from segue.conf.schema import SegueConfig


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
    fleet: Fleet, config: SegueConfig, mode: Mode, *, keep_as: Path | None, show: Callable[[str], None]
) -> Evaluation:
    """Play `eval.episodes` tasks in one mode, spread over the rollout actors.

    Args:
        keep_as: name of the trajectories' files, less the actors' names; None keeps none.
        show: is told how far it is, in words.
    """
    seeds = range(config.eval.seed_start, config.eval.seed_start + config.eval.episodes)
    num_actors = len(fleet.rollout)
    calls = [
        fleet.call(member, "evaluate", _request(config, mode, seeds[i::num_actors], keep_as))
        for i, member in enumerate(fleet.rollout)
    ]

    asked: list[Any] = []

    def show_progress() -> None:
        # never waited for: an actor that is busy must not hold back the user's wish to end
        counts = fleet.take_if_ready(asked) if asked else None
        if counts is not None:
            show(f"evaluating ({mode.name}) {sum(counts)}/{len(seeds)}")
        if counts is not None or not asked:
            asked[:] = [fleet.call(member, "num_played") for member in fleet.rollout]

    show(f"evaluating ({mode.name})")
    answers = fleet.wait(
        calls,
        timeout_s=config.eval.timeout_s,
        what=f"{len(seeds)} held-out episodes",
        is_interruptible=True,
        meanwhile=show_progress,
    )
    return evaluate([episode for episodes in answers for episode in episodes])


def _request(config: SegueConfig, mode: Mode, seeds: Sequence[int], keep_as: Path | None) -> EvaluationRequest:
    return EvaluationRequest(
        name=f"eval-{mode.name}",
        seeds=tuple(seeds),
        options=mode.options,
        temperature=config.eval.temperature,
        greedy=mode.greedy,
        keep_as=keep_as,
    )
