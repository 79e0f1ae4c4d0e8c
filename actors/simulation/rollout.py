"""A rollout actor in virtual time: seats for groups, an engine, and env workers that run one call at a time."""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from segue.actors.episode import Episode
from segue.actors.group_record import GroupRecord
from segue.actors.simulation.engine import Engine, VersionCounts
from segue.actors.simulation.events import Events
from segue.actors.simulation.workload import Script, Turn, draw_counts, draw_script
from segue.actors.task import Task
from segue.conf.schema import SegueConfig
from segue.rollout.trajectory import Outcome, PolicyVersion
from segue.rollout.trajectory_file import file_name


@dataclass(eq=False, slots=True, kw_only=True)
class _Session:
    """A member of a group."""

    script: Script
    worker: int = 0
    played: list[Turn] = field(default_factory=list)
    began_at: float = 0.0
    waited_s: float = 0.0
    """For its worker, while that was at another's call."""


@dataclass(eq=False, slots=True, kw_only=True)
class _Play:
    """A group that is played."""

    task: Task
    done: Callable[[GroupRecord], None]
    asked_at: float
    prompt_tokens: int
    sessions: list[_Session]
    num_open: int
    sampled: Counter[PolicyVersion] = field(default_factory=Counter)


class SimulatedActor:
    """See the module; what it does is decided by `simulate`, `env` and `rollout`."""

    def __init__(self, events: Events, config: SegueConfig, name: str) -> None:
        self._events = events
        self._config = config
        self._name = name
        self.engine = Engine(events, config.simulate, config.rollout.prefill_chunk_tokens)
        self._num_taken = 0
        self._waiting: deque[_Play] = deque()
        # of each env worker: when it has done what it was asked so far, and its open episodes
        self._free_at = [0.0] * config.env.workers
        self._num_episodes = [0] * config.env.workers

    def play(self, task: Task, done: Callable[[GroupRecord], None]) -> None:
        """Play a task's group, once it has its seats."""
        rng = np.random.default_rng(task.seed)
        (prompt_tokens,) = draw_counts(self._config.simulate.prompt_tokens, 1, rng)
        sessions = [
            _Session(script=draw_script(self._config, prompt_tokens, rng)) for _ in range(self._config.train.group_size)
        ]
        self._waiting.append(
            _Play(
                task=task, done=done, asked_at=self._events.now, prompt_tokens=prompt_tokens, sessions=sessions,
                num_open=len(sessions),
            )
        )  # fmt: skip
        self._admit()

    def _admit(self) -> None:
        while self._waiting:
            count = len(self._waiting[0].sessions)
            if self._num_taken + count > self._config.rollout.max_sessions:
                return
            play = self._waiting.popleft()
            self._num_taken += count
            # its members fork the one prompt
            self.engine.feed(play.prompt_tokens, partial(self._begin, play))

    def _begin(self, play: _Play) -> None:
        for session in play.sessions:
            session.began_at = self._events.now
            session.worker = self._num_episodes.index(min(self._num_episodes))
            self._num_episodes[session.worker] += 1
            self._ask(session, session.script.reset_s, partial(self._sample, play, session))

    def _ask(self, session: _Session, call_s: float, done: Callable[[], None]) -> None:
        """A call to the session's environment, behind what its worker has to do."""
        now, free_at = self._events.now, self._free_at
        wait_s = max(free_at[session.worker] - now, 0.0)
        session.waited_s += wait_s
        free_at[session.worker] = now + wait_s + call_s
        self._events.after(wait_s + call_s, done)

    def _sample(self, play: _Play, session: _Session) -> None:
        turn = session.script.turns[len(session.played)]
        self.engine.decode(turn.tokens, partial(self._call, play, session, turn))

    def _call(self, play: _Play, session: _Session, turn: Turn, counts: VersionCounts) -> None:
        for version, count in counts:
            play.sampled[version] += count
        session.played.append(turn)
        self._ask(session, turn.call_s, partial(self._hear, play, session, turn))

    def _hear(self, play: _Play, session: _Session, turn: Turn) -> None:
        """The environment has answered: on with the next turn, or that was the last."""
        elapsed_s = self._events.now - session.began_at - session.waited_s
        is_late = elapsed_s > self._config.rollout.max_episode_s
        if is_late or len(session.played) == len(session.script.turns):
            self._end(play, session)
        else:
            self.engine.feed(turn.observation_tokens, partial(self._sample, play, session))

    def _end(self, play: _Play, session: _Session) -> None:
        self._num_episodes[session.worker] -= 1
        play.num_open -= 1
        if play.num_open == 0:
            self._num_taken -= len(play.sessions)
            self._admit()
            play.done(self._record(play))

    def _record(self, play: _Play) -> GroupRecord:
        task = play.task
        return GroupRecord(
            number=task.number, task_id=task.task_id, group_id=task.group_id, file=file_name(task.group_id), digest="",
            tokens_by_version=tuple(sorted(play.sampled.items())), made_by=self._name,
            episodes=tuple(_episode(task, play.prompt_tokens, session.played) for session in play.sessions),
            rollout_s=self._events.now - play.asked_at,
        )  # fmt: skip


def _episode(task: Task, prompt_tokens: int, turns: list[Turn]) -> Episode:
    num_sampled = sum(turn.tokens for turn in turns)
    return Episode(
        seed=task.seed, outcome=Outcome.failure, reward=0.0, reward_terms={},
        num_tokens=prompt_tokens + num_sampled + sum(turn.observation_tokens for turn in turns[:-1]),
        num_sampled_tokens=num_sampled, num_turns=len(turns), attempt=0, info={},
    )  # fmt: skip
