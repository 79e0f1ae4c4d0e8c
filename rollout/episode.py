"""An episode's bookkeeping: the task that it plays, the turns so far, and the trajectory that it becomes."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from segue.envs.episode_record import EpisodeRecord
from segue.rollout.engine.base import Completion
from segue.rollout.session import Session, SessionId
from segue.rollout.trajectory import Int32Array, Outcome, Source, Trajectory, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """What a group is about."""

    id: str
    """Unique among the tasks that are played at the same time; noise is keyed by it."""
    seed: int
    """The environment's."""
    options: dict[str, Any] | None = None
    """The environment's reset options."""
    budgets: dict[str, int] = field(default_factory=dict)
    """Class of tasks to the tokens that an episode may sample; a class that is not among them has no bound."""


@dataclass(slots=True, kw_only=True)
class PlayedTurn:
    """One model call as it happened."""

    start: int
    """Index of its first token in the session."""
    completion: Completion
    reward_terms: dict[str, float] = field(default_factory=dict)
    num_calls: int = 0

    def add_reward(self, terms: dict[str, float]) -> None:
        """Add terms of a call, or of the run; terms of one name are summed."""
        for name, value in terms.items():
            self.reward_terms[name] = self.reward_terms.get(name, 0.0) + value


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SavedEpisode:
    """An unfinished episode at the end of a turn, as its journal keeps it."""

    attempt: int
    """The one that played it so far."""
    token_ids: Int32Array
    """[T] int32: the session's stream."""
    turns: list[PlayedTurn]
    info: dict[str, Any]
    used_s: float
    """Seconds of the episode's own time."""
    environment: EpisodeRecord


@dataclass(slots=True, kw_only=True)
class Episode:
    """One attempt at a task, while it is played."""

    task: TaskSpec
    group_id: str
    session_id: SessionId
    session: Session | None = None
    """None until the environment has begun."""
    saved: SavedEpisode | None = None
    """What an earlier player left of it; None where it begins anew."""
    turns: list[PlayedTurn] = field(default_factory=list)
    info: dict[str, Any] = field(default_factory=dict)
    outcome_terms: dict[str, float] = field(default_factory=dict)
    """Name to reward for the episode as a whole; empty until it has ended."""

    def save(self, environment: EpisodeRecord, *, used_s: float) -> SavedEpisode:
        """The episode at the end of its last turn.

        Args:
            environment: what brings its environment back.
            used_s: seconds of its own time.
        """
        assert self.session is not None, "a turn has ended"
        return SavedEpisode(
            attempt=self.session_id.attempt,
            token_ids=self.session.token_ids,
            turns=self.turns,
            info=self.info,
            used_s=used_s,
            environment=environment,
        )

    def take_up(self, saved: SavedEpisode) -> None:
        """Go on with the turns of an earlier attempt, whose tokens the session holds."""
        self.turns += saved.turns
        self.info |= saved.info

    def to_trajectory(self, outcome: Outcome, *, source: Source, temperature: float) -> Trajectory:
        """What the episode leaves behind.

        After an infrastructure failure nothing is trainable and nothing was earned. An episode that never began holds
        the single token 0.

        Args:
            outcome: how it ended.
            source: who wrote the turns.
            temperature: of the sampled distributions.
        """
        session = self.session
        token_ids = np.zeros(1, np.int32) if session is None or not len(session) else session.token_ids.copy()
        num_tokens = len(token_ids)
        trainable = np.zeros(num_tokens, np.bool_)
        logprob = np.zeros(num_tokens, np.float32)
        incarnation = np.zeros(num_tokens, np.int32)
        step = np.zeros(num_tokens, np.int32)
        turns = []
        counts = not outcome.is_infrastructure
        for played in self.turns:
            completion = played.completion
            own = slice(played.start, played.start + len(completion.token_ids))
            trainable[own] = counts
            if counts and source is Source.policy:
                logprob[own] = completion.logprobs
                incarnation[own] = completion.policy_incarnation
                step[own] = completion.policy_step
            turns.append(
                Turn(
                    start=own.start,
                    end=own.stop,
                    temperature=temperature,
                    reward_terms=played.reward_terms if counts else {},
                    num_calls=played.num_calls,
                )
            )
        assert self.session_id.index is not None, "a prefix is no episode"
        return Trajectory(
            token_ids=token_ids,
            trainable=trainable,
            source=source,
            behaviour_logprob=logprob,
            policy_incarnation=incarnation,
            policy_step=step,
            turns=tuple(turns),
            outcome_terms=self.outcome_terms if counts else {},
            outcome=outcome,
            task_id=self.task.id,
            group_id=self.group_id,
            index=self.session_id.index,
            attempt=self.session_id.attempt,
            seed=self.task.seed,
            expert_ids=None if session is None else session.expert_ids,
            info=self.info,
        )
