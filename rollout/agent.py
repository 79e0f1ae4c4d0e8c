"""The agent: plays episodes of a task with an engine and an environment, a group of siblings at a time.

run_group      one prefix session holds the task's prompt; the siblings fork it and play side by side
run_episode    attempts, until infrastructure has not failed; each goes on from the journal, where there is one
_play          one attempt: whatever ends it becomes an outcome, in one place; our own errors rise
_converse      turns: generate -> parse -> a step a call -> results into the stream -> perhaps a part of the journal
_rate          terms beside the environment's, of an episode that came to an end of its own, and its budget
"""

import asyncio
import logging
import math
from collections.abc import Awaitable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from segue.conf.schema import RolloutConfig
from segue.envs.clock import EpisodeClock, present_clock
from segue.envs.errors import EnvironmentFailure, InfrastructureFailure, RestoreFailure
from segue.envs.reply import ResetReply, StepReply
from segue.envs.tool import ToolCall
from segue.rollout.chat import AssistantTurn, CallResult, Chat
from segue.rollout.engine.base import Engine, EngineFailure, FinishReason, Sampling
from segue.rollout.environments import Environments
from segue.rollout.episode import Episode, PlayedTurn, SavedEpisode, TaskSpec
from segue.rollout.journal import Journal
from segue.rollout.rewards.effort import charge
from segue.rollout.rewards.panel import RewardPanel
from segue.rollout.rewards.transcript import read_episode
from segue.rollout.session import Session, SessionId
from segue.rollout.trajectory import Group, Outcome, PolicyVersion, Source, Trajectory
from segue.rollout.xtml import MalformedTurn

logger = logging.getLogger(__name__)

# key of an episode's info: why it ended as it did
_CAUSE = "cause"


class TaskPrefix:
    """The prompt of a task, rendered and fed once for all siblings.

    The first sibling to hear from its environment sets the prompt. One whose environment says something else, though
    the seed is the same, gets a session of its own, and so does an only child.
    """

    def __init__(self, task_id: str, engine: Engine, chat: Chat, *, num_siblings: int) -> None:
        self._task_id = task_id
        self._engine = engine
        self._chat = chat
        self._num_siblings = num_siblings
        self._session: Session | None = None
        self._said: tuple[Any, ...] = ()

    def open(self, session_id: SessionId, reply: ResetReply) -> Session:
        """A session that holds the prompt."""
        said = (reply.system, reply.tools, reply.observation)
        if self._session is None and self._num_siblings > 1:
            self._said = said
            self._session = self._engine.open(SessionId(task_id=self._task_id, index=None, attempt=0))
            self._engine.extend(self._session, self._chat.render_task(*said))
        if said == self._said:
            return self._engine.open(session_id, fork_of=self._session)
        session = self._engine.open(session_id)
        self._engine.extend(session, self._chat.render_task(*said))
        return session

    def close(self) -> None:
        """Release the prefix; sessions that forked it go on."""
        if self._session is not None:
            self._engine.close(self._session)


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """What episodes are played with.

    An episode ends where its environment says so; with a turn that leaves the grammar (`malformed`); with a turn that
    calls no tool, which is the policy's last word and no success; at a bound on turns, tokens or seconds; or with a
    failure, typed by the boundary that it crossed. Results that no turn would follow are not put into the stream, and
    neither is the turn that was being sampled when time ran out. Time is the episode's own: its clock stands still
    while it waits for its worker, for its place in the engine or for its journal. What rates it has time of its own.

    Invariants:
        Every way to end, and what is trainable then: tests/unit/rollout/test_agent.py.
    """

    engine: Engine
    chat: Chat
    environments: Environments
    config: RolloutConfig
    """Its bounds on an episode."""
    sampling: Sampling
    """How turns are sampled; `max_new_tokens` is replaced by what the bounds leave."""
    panel: RewardPanel | None = None
    """Rates what the policy plays; None adds nothing to what environments pay."""

    async def run_group(
        self, task: TaskSpec, *, group_id: str, size: int, made_by: str, journals: Path | None = None
    ) -> Group:
        """Play a task `size` times side by side.

        Args:
            task: not to be played by another group of the same engine at the same time.
            group_id: recorded.
            size: number of siblings, at least 1.
            made_by: recorded: name of the actor that plays.
            journals: folder of the run's journals, from which unfinished episodes of this task go on, whatever their
                group's id was; whoever saves the group deletes them then (`delete_journals`). None keeps none.
        Raises:
            Exception: whatever an episode raises that is not an outcome; its siblings are cancelled.
        """
        first_version = self.engine.version
        prefix = TaskPrefix(task.id, self.engine, self.chat, num_siblings=size)
        try:
            async with asyncio.TaskGroup() as siblings:
                episodes = [
                    siblings.create_task(
                        self.run_episode(task, group_id=group_id, index=index, prefix=prefix, journals=journals)
                    )
                    for index in range(size)
                ]
        except ExceptionGroup as errors:
            # the first is what went wrong; its siblings were cancelled or fail alike
            raise errors.exceptions[0] from errors
        finally:
            prefix.close()
        trajectories = tuple(episode.result() for episode in episodes)
        return Group(
            task_id=task.id,
            group_id=group_id,
            trajectories=trajectories,
            # tokens from journals were sampled before
            first_version=min([first_version, *filter(None, map(_first_version, trajectories))]),
            last_version=self.engine.version,
            made_by=made_by,
        )

    async def run_episode(
        self, task: TaskSpec, *, group_id: str, index: int, prefix: TaskPrefix, journals: Path | None = None
    ) -> Trajectory:
        """Play one episode, and again while infrastructure fails; the last attempt is recorded, whatever came of it.

        Each attempt has noise of its own. A failure that remains is masked: nothing is trainable, nothing was earned.
        """
        journal = None if journals is None else Journal(journals, task, index)
        attempt = 0
        while True:
            saved = await asyncio.to_thread(journal.load) if journal is not None and journal.has_begun else None
            if saved is not None:
                # another process may have made them
                attempt = max(attempt, saved.attempt)
            session_id = SessionId(task_id=task.id, index=index, attempt=attempt)
            episode = Episode(task=task, group_id=group_id, session_id=session_id, saved=saved)
            trajectory = await self._play(episode, prefix, journal)
            attempt += 1
            if not trajectory.outcome.is_infrastructure or attempt >= self.config.max_attempts:
                return trajectory

    async def _play(self, episode: Episode, prefix: TaskPrefix, journal: Journal | None) -> Trajectory:
        try:
            clock = EpisodeClock(self.config.max_episode_s)
            outcome = await _to_outcome(episode, self._converse(episode, prefix, journal), clock)
        finally:
            if episode.session is not None:
                self.engine.close(episode.session)
            await self.environments.close(episode.session_id.episode_id)
        if not outcome.is_infrastructure:
            # its session has ended: a judge that waits for memory must not wait for what it rates
            outcome = await _to_outcome(episode, self._rate(episode, outcome), EpisodeClock(math.inf))
        return episode.to_trajectory(outcome, source=self.engine.source, temperature=self.sampling.temperature)

    async def _converse(self, episode: Episode, prefix: TaskPrefix, journal: Journal | None) -> Outcome:
        max_tokens = self.config.max_episode_tokens
        session = await self._begin(episode, prefix, journal)
        for num_turns_left in reversed(range(self.config.max_turns - len(episode.turns))):
            if len(session) >= max_tokens:
                return Outcome.truncated_length
            room = min(max_tokens - len(session), self.config.max_turn_tokens)
            start = len(session)
            completion = await self.engine.generate(session, replace(self.sampling, max_new_tokens=room))
            turn = PlayedTurn(start=start, completion=completion)
            episode.turns.append(turn)
            if completion.finish_reason is FinishReason.length:
                return Outcome.truncated_length
            try:
                said = self.chat.parse_assistant(completion.token_ids)
            except MalformedTurn as error:
                # said here, since the policy's turn is what it is said of and nothing else that is read
                episode.info[_CAUSE] = str(error)
                return Outcome.malformed
            if not said.calls:
                return Outcome.failure
            results, end = await self._run_calls(episode, turn, said)
            if end is not None:
                return end
            if not num_turns_left:
                break
            observation = self.chat.render_tool_results(results)
            if len(session) + len(observation) >= max_tokens:
                return Outcome.truncated_length
            self.engine.extend(session, observation)
            if journal is not None and 0 < self.config.journal_tokens <= len(session) - journal.num_tokens:
                await self._write_part(episode, journal)
        return Outcome.truncated_turns

    async def _rate(self, episode: Episode, outcome: Outcome) -> Outcome:
        """Have an episode rated that ended so."""
        if self.panel is not None:
            # a long one takes a while to read, and environments want answers meanwhile
            finished = await asyncio.to_thread(read_episode, episode, outcome, self.chat)
            rating = await self.panel.rate(finished)
            episode.outcome_terms.update(rating.outcome_terms)
            for turn, terms in zip(episode.turns, rating.turn_terms, strict=True):
                turn.add_reward(terms)
        charge(episode)
        return outcome

    async def _begin(self, episode: Episode, prefix: TaskPrefix, journal: Journal | None) -> Session:
        """The session before its first turn, or before the one that its journal lacks."""
        task, name = episode.task, episode.session_id.episode_id
        if journal is not None and episode.saved is not None:
            try:
                return await self._go_on(episode, episode.saved)
            except RestoreFailure as error:
                logger.warning("%s begins anew, without its %d tokens: %s", name, journal.num_tokens, error)
                await asyncio.to_thread(journal.delete)
        reply = await self.environments.reset(name, task.seed, task.options)
        episode.info.update(reply.info)
        session = episode.session = prefix.open(episode.session_id, reply)
        return session

    async def _go_on(self, episode: Episode, saved: SavedEpisode) -> Session:
        await self.environments.restore(episode.session_id.episode_id, episode.task.seed, saved.environment)
        present_clock().spend(saved.used_s)
        session = episode.session = self.engine.open(episode.session_id)
        self.engine.extend(session, saved.token_ids)
        episode.take_up(saved)
        logger.info("%s goes on from its %d tokens", episode.session_id.episode_id, len(session))
        return session

    async def _write_part(self, episode: Episode, journal: Journal) -> None:
        clock = present_clock()
        with clock.wait():
            environment = await self.environments.record(episode.session_id.episode_id)
            # a disk may be slow, and environments want answers meanwhile
            await asyncio.to_thread(journal.write, episode.save(environment, used_s=clock.used_s))

    async def _run_calls(
        self, episode: Episode, turn: PlayedTurn, said: AssistantTurn
    ) -> tuple[list[CallResult], Outcome | None]:
        """Run a turn's calls in order, until one ends the episode; the outcome is None where none did."""
        results = []
        for index, call in enumerate(said.calls, start=1):
            if call.error is not None:
                results.append(CallResult(tool=call.tool, index=index, text=f"error: {call.error}"))
                continue
            reply = await self.environments.step(
                episode.session_id.episode_id, ToolCall(name=call.tool, arguments=call.arguments)
            )
            turn.num_calls += 1
            turn.add_reward(reply.reward_terms)
            episode.info.update(reply.info)
            if reply.terminated or reply.truncated:
                return results, _outcome_of(reply)
            results.append(CallResult(tool=call.tool, index=index, text=reply.observation))
        return results, None


async def _to_outcome(episode: Episode, conversation: Awaitable[Outcome], clock: EpisodeClock) -> Outcome:
    """The one place where a failure becomes an outcome; its cause stands in the episode's info."""
    try:
        async with clock:
            return await conversation
    except TimeoutError:
        if not clock.has_expired:
            raise
        return Outcome.truncated_time
    except EnvironmentFailure as error:
        outcome, cause = Outcome.environment_error, str(error)
    except InfrastructureFailure as error:
        outcome, cause = Outcome.infrastructure_error, str(error)
    except EngineFailure as error:
        outcome, cause = Outcome.engine_error, str(error)
    episode.info[_CAUSE] = cause
    return outcome


def _first_version(trajectory: Trajectory) -> PolicyVersion | None:
    """Version of the first sampled token, which no later one is older than; None where no policy sampled any."""
    if trajectory.source is not Source.policy or not trajectory.trainable.any():
        return None
    first = int(trajectory.trainable.argmax())
    return PolicyVersion(int(trajectory.policy_incarnation[first]), int(trajectory.policy_step[first]))


def _outcome_of(reply: StepReply) -> Outcome:
    """What the environment's last word means."""
    if reply.info.get("is_success"):
        return Outcome.success
    return Outcome.failure if reply.terminated else Outcome.truncated_turns
