"""A rollout actor: one engine, its env workers, and the episodes that they play side by side. Thin: it wires."""

import asyncio
import functools
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from segue.actors.admission import Admission
from segue.actors.episode import Episode, summarize
from segue.actors.errors import RunError
from segue.actors.group_record import GroupRecord, count_versions, make_record
from segue.actors.players import demonstrating_engine, make_sampling, play_each
from segue.actors.recall import answering_turn_only
from segue.actors.rollout_stats import RolloutStats
from segue.actors.run_folder import SESSIONS_NAME, TEXT_NAME
from segue.actors.shared_folder import FolderMark
from segue.actors.task import Task, member_seed
from segue.actors.text import open_corpus, text_trajectory
from segue.actors.weight_channel import WeightTicket, get_weights
from segue.conf.placement import device_type
from segue.conf.schema import SegueConfig, Skill
from segue.envs.client import EnvClient
from segue.learner.corpus import Corpus
from segue.model.checkpoint import import_checkpoint
from segue.model.device import open_device
from segue.model.network import SegueModel, build_model
from segue.model.precision import dtype_of
from segue.model.tokenizer.load import load_tokenizer
from segue.rollout.agent import Agent, TaskPrefix
from segue.rollout.chat import Chat
from segue.rollout.engine.native import build_native_engine
from segue.rollout.episode import TaskSpec
from segue.rollout.journal import delete_journals
from segue.rollout.rewards.build import build_panel
from segue.rollout.rewards.panel import RewardCounters
from segue.rollout.trajectory import Group, Outcome, PolicyVersion, Trajectory
from segue.rollout.trajectory_file import file_name, save_group

logger = logging.getLogger(__name__)

# between two tries to write a group's file
_SAVE_AGAIN_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRequest:
    """Held-out tasks to play once each."""

    name: str
    """Names the sessions: the same name, seed and weights sample the same tokens."""
    seeds: tuple[int, ...]
    options: dict[str, Any]
    """Reset options."""
    temperature: float
    greedy: bool
    keep_as: Path | None
    """File for the trajectories; None keeps none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutRequest:
    """Held-out demonstrations, to be kept."""

    name: str
    """Of the group, and of its file."""
    seeds: tuple[int, ...]
    options: dict[str, Any]
    """Reset options."""
    folder: Path
    recalls: bool
    """The expert plays, and only the turns that answer are kept trainable (`recall.answering_turn_only`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutGroup:
    """A file of held-out sequences."""

    path: Path
    digest: str
    """SHA-256, in hexadecimal."""
    num_labels: int
    """Trainable tokens."""
    distances: tuple[int, ...] = ()
    """Where recall is measured: each episode's, in tokens."""


class RolloutActor:
    """Plays tasks; see `controller.py` for who asks for what."""

    def __init__(self, config: SegueConfig, *, name: str, run_folder: Path, mark: FolderMark | None) -> None:
        """`mark` is of the run folder; None where nothing is written to it."""
        self._mark = mark
        self._config = config
        self._name = name
        self._groups_folder = run_folder / "groups"
        self._text_folder = run_folder / TEXT_NAME
        self._journals_folder = run_folder / SESSIONS_NAME
        self._admission = Admission(config.rollout.max_sessions)
        self._num_held_out = 0

    async def start(self, exported_model: Path | None) -> None:
        """Build the engine and start the env workers.

        Args:
            exported_model: folder of weights to play with; None waits for the learner's.
        """
        if self._mark is not None:
            self._mark.look()
        config = self._config
        torch.set_num_threads(config.cluster.threads)
        self._chat = Chat(load_tokenizer(config.tokenizer))
        model = _empty_model(config) if exported_model is None else import_checkpoint(exported_model)[1]
        device = open_device(device_type(config.cluster.rollout_resources))
        model.to(device)
        self._engine = build_native_engine(model, config.rollout, version=PolicyVersion(0, 0))
        self._environments = EnvClient(config.env, config.env.workers)
        await self._environments.start()
        self._panel = build_panel(config, self._engine, self._chat, device)
        self._agent = Agent(
            engine=self._engine,
            chat=self._chat,
            environments=self._environments,
            config=config.rollout,
            sampling=make_sampling(config, self._chat, config.rollout.temperature, training=True),
            panel=self._panel,
        )
        self._demonstrator = _demonstrator(self._agent, config.pretrain.skill)

    async def set_weights(self, ticket: WeightTicket) -> None:
        """Take up published weights between two decode steps."""
        await self._engine.load_weights(await get_weights(ticket), ticket.version)

    async def play(self, task: Task) -> GroupRecord:
        """Play a task's group with the policy, from its journals where there are any; its file stands then."""
        size = self._config.train.group_size
        async with self._admission.seats(size):
            start = time.perf_counter()
            spec = TaskSpec(id=task.task_id, seed=task.seed, budgets=task.budgets)
            group = await self._agent.run_group(
                spec, group_id=task.group_id, size=size, made_by=self._name, journals=self._journals_folder
            )
            record = await self._save(task, group, time.perf_counter() - start)
            await asyncio.to_thread(delete_journals, self._journals_folder, task.task_id)
            return record

    async def demonstrate(self, task: Task) -> GroupRecord:
        """Have a step's demonstrations played, and its text cut: a group whose members have seeds of their own."""
        assert task.plan is not None, task
        start = time.perf_counter()
        agent, lengths = self._demonstrator, task.plan.demonstrations
        # an only child each: they share no prompt
        prefix = TaskPrefix(task.task_id, agent.engine, agent.chat, num_siblings=1)

        async def play(index: int) -> Trajectory:
            seed = member_seed(task, index, self._config.eval.seed_start)
            spec = TaskSpec(id=task.task_id, seed=seed, options=length_options(self._config, lengths[index]))
            async with self._admission.seats(1):
                return await agent.run_episode(spec, group_id=task.group_id, index=index, prefix=prefix)

        trajectories = await asyncio.gather(*map(play, range(len(lengths))))
        pieces = [piece for span in task.plan.text for piece in self._corpus.pieces(span)]
        group = Group(
            task_id=task.task_id,
            group_id=task.group_id,
            trajectories=(
                *trajectories,
                *(
                    text_trajectory(piece, task_id=task.task_id, group_id=task.group_id, index=index)
                    for index, piece in enumerate(pieces, start=len(lengths))
                ),
            ),
            first_version=agent.engine.version,
            last_version=agent.engine.version,
            made_by=self._name,
        )
        return await self._save(task, group, time.perf_counter() - start)

    async def evaluate(self, request: EvaluationRequest) -> list[Episode]:
        """Play held-out tasks with the present weights."""
        trajectories = await self.sample(request)
        if request.keep_as is not None:
            version = self._engine.version
            group = collect_group(request.name, trajectories, made_by=self._name, version=version)
            await asyncio.to_thread(save_group, request.keep_as, group)
        return [summarize(trajectory) for trajectory in trajectories]

    async def sample(self, request: EvaluationRequest) -> list[Trajectory]:
        """Play held-out tasks and return the trajectories."""
        sampling = make_sampling(self._config, self._chat, request.temperature, training=False, greedy=request.greedy)
        return await self._play_each(replace(self._agent, sampling=sampling), request)

    async def keep_demonstrations(self, request: HeldOutRequest) -> HeldOutGroup:
        """Have held-out tasks demonstrated, and keep them in a file.

        Raises:
            RunError: one did not come to its own end, or its fact was not found.
        """
        skill = Skill.expert if request.recalls else self._config.pretrain.skill
        trajectories = await self._play_each(_demonstrator(self._agent, skill), request)
        for trajectory in trajectories:
            _refuse_unfinished(trajectory, request)
        if request.recalls:
            trajectories = [answering_turn_only(trajectory, self._chat.tokenizer) for trajectory in trajectories]
        kept = await asyncio.to_thread(keep_held_out, request.folder, request.name, trajectories, made_by=self._name)
        if not request.recalls:
            return kept
        return replace(kept, distances=tuple(t.info["distance_tokens"] for t in trajectories))

    async def stats(self) -> RolloutStats:
        """Counters so far."""
        stats = self._engine.stats
        return RolloutStats(
            num_prefill_tokens=stats.prefill.num_tokens,
            prefill_s=stats.prefill.wall_s,
            num_decode_tokens=stats.decode.num_tokens,
            decode_s=stats.decode.wall_s,
            num_missed=stats.num_missed,
            num_held_out=self._num_held_out,
            environments=replace(self._environments.counters),
            reward_terms=RewardCounters() if self._panel is None else replace(self._panel.counters),
            first_failures={} if self._panel is None else dict(self._panel.first_failures),
        )

    async def stop(self) -> None:
        """End the env workers."""
        await self._environments.stop()

    @functools.cached_property
    def _corpus(self) -> Corpus:
        return open_corpus(self._config, self._text_folder)

    async def _play_each(self, agent: Agent, request: EvaluationRequest | HeldOutRequest) -> list[Trajectory]:
        return await play_each(
            agent,
            self._admission,
            request.seeds,
            request.options,
            name=request.name,
            made_by=self._name,
            note_end=self._note_held_out,
        )

    def _note_held_out(self) -> None:
        self._num_held_out += 1

    async def _save(self, task: Task, group: Group, rollout_s: float) -> GroupRecord:
        path, patience_s = self._groups_folder / file_name(group.group_id), self._config.train.wait_timeout_s
        # a disk may be slow, and environments want answers meanwhile
        saving = asyncio.ensure_future(asyncio.to_thread(save_when_there_is_room, path, group, patience_s))
        try:
            digest = await asyncio.shield(saving)
        except asyncio.CancelledError:
            # what is called off must not appear later
            await asyncio.wait([saving])
            raise
        return make_record(group, number=task.number, digest=digest, rollout_s=rollout_s)


def save_when_there_is_room(path: Path, group: Group, patience_s: float) -> str:
    """Write a group's file, again while it fails: a disk may be full for a while, and hours may be in a group."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return save_group(path, group)
        except OSError as error:
            # a folder that is gone does not come back
            if time.monotonic() > deadline or not path.parent.is_dir():
                raise
            logger.warning("%s could not be written, and is tried again: %s", path, error)
            time.sleep(_SAVE_AGAIN_S)


def collect_group(name: str, trajectories: Sequence[Trajectory], *, made_by: str, version: PolicyVersion) -> Group:
    """Trajectories of several tasks in one file: a group whose members have seeds of their own.

    Args:
        version: of the present weights, for a group in which nothing was sampled.
    """
    members = tuple(replace(t, task_id=name, group_id=name, index=i) for i, t in enumerate(trajectories))
    versions = [version for version, _ in count_versions(members)] or [version]
    return Group(
        task_id=name,
        group_id=name,
        trajectories=members,
        first_version=versions[0],
        last_version=versions[-1],
        made_by=made_by,
    )


def keep_held_out(folder: Path, name: str, trajectories: Sequence[Trajectory], *, made_by: str) -> HeldOutGroup:
    """Write held-out sequences, in which no policy sampled anything, to a file of their own.

    Args:
        name: of the group, and of its file.
    """
    group = collect_group(name, trajectories, made_by=made_by, version=PolicyVersion(0, 0))
    path = folder / file_name(name)
    num_labels = sum(trajectory.num_trainable for trajectory in trajectories)
    return HeldOutGroup(path=path, digest=save_group(path, group), num_labels=num_labels)


def length_options(config: SegueConfig, length: int | None) -> dict[str, Any] | None:
    """Reset options of a demonstration of a length in tokens; None where the environment chooses it."""
    option = config.pretrain.curriculum.length_option
    return None if option is None or length is None else {option: length}


def _refuse_unfinished(trajectory: Trajectory, request: HeldOutRequest) -> None:
    if trajectory.outcome not in (Outcome.success, Outcome.failure):
        cause = trajectory.info.get("cause", "a bound")
        raise RunError(
            f"a demonstration with the reset options {request.options} must come to its own end, got "
            f"{trajectory.outcome.value} after {trajectory.num_tokens} tokens ({cause}); rollout.max_turns, "
            "rollout.max_episode_tokens and rollout.max_episode_s have to fit its length"
        )


def _empty_model(config: SegueConfig) -> SegueModel:
    return build_model(config.model, dtype_of(config.learner.precision))


def _demonstrator(agent: Agent, skill: Skill) -> Agent:
    # what is imitated earns nothing
    return replace(agent, engine=demonstrating_engine(agent.environments, agent.chat, skill), panel=None)
