"""Episodes played and printed turn by turn: what `segue rollout` does."""

import tempfile
from pathlib import Path

from segue.actors.episode_view import print_totals, print_trajectory
from segue.actors.faults import FaultLog
from segue.actors.patient_console import PatientConsole
from segue.actors.preflight import check_before_start, check_environment, trained_model
from segue.actors.rollout_actor import EvaluationRequest
from segue.actors.rollout_pool import RolloutPool
from segue.actors.supervise import supervised
from segue.conf.schema import SegueConfig
from segue.model.tokenizer.load import load_tokenizer


def play_and_print(config: SegueConfig, *, num_episodes: int, greedy: bool, demonstrator: bool, is_raw: bool) -> None:
    """Play held-out tasks and print what was read, said and earned.

    Args:
        num_episodes: tasks, from `eval.seed_start` on.
        greedy: take the likeliest tokens.
        demonstrator: `pretrain.skill` plays instead of the model.
        is_raw: print the token streams as they are.
    Raises:
        ConfigError, RunError, Interrupted: as `run.run`.
    """
    model = None if demonstrator else trained_model(config)
    config.run.init_from = None if model is None else str(model)
    check_before_start(config)
    console = PatientConsole()
    check_environment(config.env, config.pretrain.skill if demonstrator else None, say=console.say)
    seeds = range(config.eval.seed_start, config.eval.seed_start + num_episodes)
    request = EvaluationRequest(
        name="rollout",
        seeds=tuple(seeds),
        options=config.env.eval_options,
        temperature=config.eval.temperature,
        greedy=greedy,
        keep_as=None,
    )
    with tempfile.TemporaryDirectory() as folder, supervised(config, Path(folder), console.say) as fleet:
        pool = RolloutPool(fleet, fleet.config, FaultLog(console.say).note)
        fleet.start()
        # a demonstrator has no weights
        pool.begin_start(1, exported_model=model, needs_weights=False)
        what = f"{num_episodes} episodes"
        job = pool.submit("demonstrate_held_out" if demonstrator else "sample", request, what=what)
        ((_, trajectories),) = pool.wait_any([job], timeout_s=config.eval.timeout_s, what=what)
    tokenizer = load_tokenizer(config.tokenizer)
    for trajectory in trajectories:
        print_trajectory(console, trajectory, tokenizer, is_raw=is_raw)
    if num_episodes > 1:
        print_totals(console, trajectories)
