"""Episodes played and printed turn by turn: what `segue rollout` does."""

import tempfile
from pathlib import Path

from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from segue.actors.faults import FaultLog
from segue.actors.preflight import check_before_start, check_environment, trained_model
from segue.actors.rollout_actor import EvaluationRequest
from segue.actors.rollout_pool import RolloutPool
from segue.actors.supervise import supervised
from segue.actors.terminal import visible
from segue.conf.schema import SegueConfig
from segue.model.tokenizer.base import Tokenizer
from segue.model.tokenizer.load import load_tokenizer
from segue.rollout.trajectory import Int32Array, Trajectory


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
    check_environment(config.env, config.pretrain.skill if demonstrator else None)
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
        pool = RolloutPool(fleet, config, FaultLog(console.print).note)
        fleet.start()
        # a demonstrator has no weights
        pool.begin_start(1, exported_model=model, needs_weights=False)
        what = f"{num_episodes} episodes"
        job = pool.submit("demonstrate_held_out" if demonstrator else "sample", request, what=what)
        ((_, trajectories),) = pool.wait_any([job], timeout_s=config.eval.timeout_s, what=what)
    tokenizer = load_tokenizer(config.tokenizer)
    for trajectory in trajectories:
        print_trajectory(console, trajectory, tokenizer)


def print_trajectory(console: Console, trajectory: Trajectory, tokenizer: Tokenizer) -> None:
    """One episode: given text dim, written text bright, then rewards and outcome."""
    console.print(Rule(f"task {trajectory.task_id}, seed {trajectory.seed}"))
    text, start = Text(), 0
    for turn in trajectory.turns:
        text.append(visible(readable(trajectory.token_ids[start : turn.start], tokenizer)), "dim")
        text.append(visible(readable(trajectory.token_ids[turn.start : turn.end], tokenizer)), "bold cyan")
        start = turn.end
    text.append(visible(readable(trajectory.token_ids[start:], tokenizer)), "dim")
    console.print(text, soft_wrap=True)
    console.print(Text(visible(_verdict(trajectory)), "green"), soft_wrap=True)


def readable(token_ids: Int32Array, tokenizer: Tokenizer) -> str:
    """Text with structure tokens as XML marks: `<message role="user">…</message>`, a line break after each message."""
    special = tokenizer.special
    marks = {special.open: "<", special.close: "</", special.sep: ">", special.end_of_msg: "\n"}
    names = special.names
    parts: list[str] = []
    text: list[int] = []
    for token_id in token_ids.tolist():
        if token_id in names:
            parts += [tokenizer.decode(text), marks.get(token_id, names[token_id])]
            text = []
        else:
            text.append(token_id)
    return "".join([*parts, tokenizer.decode(text)])


def _verdict(trajectory: Trajectory) -> str:
    earned = [
        f"turn {number} {name} {value:+.2f}"
        for number, turn in enumerate(trajectory.turns, start=1)
        for name, value in turn.reward_terms.items()
    ]
    earned += [f"{name} {value:+.2f}" for name, value in trajectory.outcome_terms.items()]
    facts = ", ".join(f"{key} {value}" for key, value in trajectory.info.items())
    outcome = f"{trajectory.outcome.value}, {trajectory.num_tokens} tokens, reward {trajectory.reward:.2f}"
    return f"{outcome} ({'; '.join(earned) or 'nothing earned'}); {facts}"
