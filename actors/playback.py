"""Episodes played and printed turn by turn: what `segue rollout` does."""

import tempfile
from pathlib import Path

from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from segue.actors.preflight import check_before_start, trained_model
from segue.actors.rollout_actor import EvaluationRequest
from segue.actors.supervise import supervised
from segue.conf.schema import SegueConfig
from segue.model.tokenizer.base import Tokenizer
from segue.model.tokenizer.load import load_tokenizer
from segue.rollout.trajectory import Trajectory


def play_and_print(config: SegueConfig, *, num_episodes: int, greedy: bool, demonstrator: bool) -> None:
    """Play held-out tasks and print what was read, said and earned.

    Args:
        num_episodes: tasks, from `eval.seed_start` on.
        greedy: take the likeliest tokens.
        demonstrator: `pretrain.skill` plays instead of the model.
    Raises:
        ConfigError, RunError, Interrupted: as `run.run`.
    """
    model = None if demonstrator else trained_model(config)
    config.run.init_from = None if model is None else str(model)
    check_before_start(config)
    console = Console()
    seeds = range(config.eval.seed_start, config.eval.seed_start + num_episodes)
    request = EvaluationRequest(
        name="rollout",
        seeds=tuple(seeds),
        options=config.env.eval_options,
        temperature=config.eval.temperature,
        greedy=greedy,
        keep_as=None,
    )
    with tempfile.TemporaryDirectory() as folder, supervised(config, Path(folder), console.print) as fleet:
        fleet.start(num_rollout=1, num_learners=0, exported_model=model)
        call = fleet.call(fleet.rollout[0], "demonstrate_held_out" if demonstrator else "sample", request)
        what = f"{num_episodes} episodes"
        (trajectories,) = fleet.wait([call], timeout_s=config.eval.timeout_s, what=what, is_interruptible=True)
    tokenizer = load_tokenizer(config.tokenizer)
    for trajectory in trajectories:
        print_trajectory(console, trajectory, tokenizer)


def print_trajectory(console: Console, trajectory: Trajectory, tokenizer: Tokenizer) -> None:
    """One episode: given text plain, written text marked, rewards and outcome at the end."""
    console.print(Rule(f"task {trajectory.task_id}, seed {trajectory.seed}"))
    start = 0
    for turn in trajectory.turns:
        _print_tokens(console, trajectory, tokenizer, start, turn.start, "dim")
        _print_tokens(console, trajectory, tokenizer, turn.start, turn.end, "bold cyan")
        start = turn.end
    _print_tokens(console, trajectory, tokenizer, start, trajectory.num_tokens, "dim")
    earned = [
        f"turn {i + 1} {name} {value:+.2f}"
        for i, t in enumerate(trajectory.turns)
        for name, value in t.reward_terms.items()
    ]
    earned += [f"{name} {value:+.2f}" for name, value in trajectory.outcome_terms.items()]
    facts = ", ".join(f"{key} {value}" for key, value in trajectory.info.items())
    summary = f"{trajectory.outcome.value}, {trajectory.num_tokens} tokens, reward {trajectory.reward:.2f}"
    console.print(Text(f"{summary} ({'; '.join(earned) or 'nothing earned'}); {facts}", style="green"))


def _print_tokens(
    console: Console, trajectory: Trajectory, tokenizer: Tokenizer, start: int, end: int, style: str
) -> None:
    if end > start:
        console.print(Text(tokenizer.decode(trajectory.token_ids[start:end].tolist()), style=style))
