"""Who plays, and how each of several tasks is played once: for rollout actors, and for a command that plays itself."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from segue.actors.admission import Admission
from segue.conf.schema import SegueConfig, Skill
from segue.rollout.agent import Agent
from segue.rollout.chat import Chat
from segue.rollout.demonstration import demonstration_script
from segue.rollout.engine.base import Sampling
from segue.rollout.engine.scripted import ScriptedEngine
from segue.rollout.environments import Environments
from segue.rollout.episode import TaskSpec
from segue.rollout.trajectory import PolicyVersion, Trajectory


def make_sampling(
    config: SegueConfig, chat: Chat, temperature: float, *, training: bool, greedy: bool = False
) -> Sampling:
    """How a turn is sampled."""
    return Sampling(
        temperature=temperature,
        max_new_tokens=config.rollout.max_turn_tokens,
        stop_ids=chat.stop_ids,
        seed=config.seed,
        training=training,
        greedy=greedy,
    )


def demonstrating_engine(environments: Environments, chat: Chat, skill: Skill) -> ScriptedEngine:
    """What says in a model's place what the environment's demonstrator does."""
    return ScriptedEngine(demonstration_script(environments, chat, skill), version=PolicyVersion(0, 0))


async def play_each(
    agent: Agent,
    admission: Admission,
    seeds: Sequence[int],
    options: dict[str, Any],
    *,
    name: str,
    made_by: str,
    note_end: Callable[[], None] = lambda: None,
) -> list[Trajectory]:
    """Play a task of each seed once, side by side as far as there are seats.

    Args:
        options: reset options.
        name: of the sessions.
        note_end: called with the end of each.
    """

    async def play(seed: int) -> Trajectory:
        spec = TaskSpec(id=f"{name}-{seed}", seed=seed, options=options)
        async with admission.seats(1):
            group = await agent.run_group(spec, group_id=name, size=1, made_by=made_by)
        note_end()
        return group.trajectories[0]

    return await asyncio.gather(*map(play, seeds))
