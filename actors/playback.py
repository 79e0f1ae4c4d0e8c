"""Episodes played and printed turn by turn: what `segue rollout` does."""

import asyncio
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from segue.actors.admission import Admission
from segue.actors.episode_view import print_totals, print_trajectory
from segue.actors.errors import RunError
from segue.actors.faults import FaultLog
from segue.actors.patient_console import PatientConsole
from segue.actors.players import demonstrating_engine, make_sampling, play_each
from segue.actors.preflight import check_before_start, check_environment, trained_model
from segue.actors.rollout_actor import EvaluationRequest
from segue.actors.rollout_pool import RolloutPool
from segue.actors.supervise import supervised
from segue.conf.schema import SegueConfig
from segue.envs.client import EnvClient
from segue.envs.errors import EnvironmentSetupError, InfrastructureFailure
from segue.model.tokenizer.load import load_tokenizer
from segue.rollout.agent import Agent
from segue.rollout.chat import Chat
from segue.rollout.trajectory import Trajectory

_NAME = "rollout"


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
    if model is None:
        trajectories = asyncio.run(_demonstrate(config, seeds))
    else:
        trajectories = _sample(config, seeds, model, greedy=greedy, say=console.say)
    tokenizer = load_tokenizer(config.tokenizer)
    for trajectory in trajectories:
        print_trajectory(console, trajectory, tokenizer, is_raw=is_raw)
    if num_episodes > 1:
        print_totals(console, trajectories)


def _sample(
    config: SegueConfig, seeds: Sequence[int], model: Path, *, greedy: bool, say: Callable[[str], None]
) -> list[Trajectory]:
    """Have a rollout actor play with a model."""
    request = EvaluationRequest(
        name=_NAME,
        seeds=tuple(seeds),
        options=config.env.eval_options,
        temperature=config.eval.temperature,
        greedy=greedy,
        keep_as=None,
    )
    # nobody is told where it is, and its processes take seconds to start
    config = replace(config, cluster=replace(config.cluster, dashboard=False))
    with tempfile.TemporaryDirectory() as folder, supervised(config, Path(folder), say) as fleet:
        pool = RolloutPool(fleet, fleet.config, FaultLog(say).note)
        fleet.start()
        pool.begin_start(1, exported_model=model)
        what = f"{len(seeds)} episodes"
        job = pool.submit("sample", request, what=what)
        ((_, trajectories),) = pool.wait_any([job], timeout_s=config.eval.timeout_s, what=what)
    found: list[Trajectory] = trajectories
    return found


async def _demonstrate(config: SegueConfig, seeds: Sequence[int]) -> list[Trajectory]:
    """Play the demonstrator from here, on env workers: it needs neither a model nor, then, Ray."""
    chat = Chat(load_tokenizer(config.tokenizer))
    environments = EnvClient(config.env, config.env.workers)
    agent = Agent(
        engine=demonstrating_engine(environments, chat, config.pretrain.skill),
        chat=chat,
        environments=environments,
        config=config.rollout,
        sampling=make_sampling(config, chat, config.eval.temperature, training=False),
    )
    admission = Admission(config.rollout.max_sessions)
    try:
        await environments.start()
        return await play_each(agent, admission, seeds, config.env.eval_options, name=_NAME, made_by="demonstrator")
    except (EnvironmentSetupError, InfrastructureFailure) as error:
        raise RunError(f"the demonstrator could not play: {error}") from error
    finally:
        await environments.stop()
