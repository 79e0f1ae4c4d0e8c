"""A rollout actor in virtual time: seats for groups, an engine, and env workers that run one call at a time."""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from segue.actors.episode import Episode
from segue.actors.group_record import GroupRecord
from segue.actors.simulation.engine import Engine, VersionCounts
from segue.actors.simulation.events import Events
from segue.actors.simulation.workload import Rng, Script, draw_counts, draw_script
from segue.actors.task import Task
from segue.conf.schema import SegueConfig
from segue.rollout.trajectory import Outcome, PolicyVersion
from segue.rollout.trajectory_file import file_name


@dataclass(eq=False, slots=True, kw_only=True)
class _Play:
    """A group that is played."""

    task: Task
    done: Callable[[GroupRecord], None]
    began_at: float
    prompt_tokens: int
    scripts: list[Script]
    num_open: int
    sampled: Counter[PolicyVersion] = field(default_factory=Counter)


class SimulatedActor:
    """See the module; what it does is decided by `simulate`, `env.workers` and `rollout`."""

    def __init__(self, events: Events, config: SegueConfig, name: str) -> None:
        self._events = events
        self._config = config
        self._name = name
        self.engine = Engine(events, config.simulate, config.rollout.prefill_chunk_tokens)
        self._num_taken = 0
        self._waiting: deque[_Play] = deque()
        # when each worker has done what it was asked so far
        self._free_at = [0.0] * config.env.workers
        self._num_calls = 0

    def play(self, task: Task, done: Callable[[GroupRecord], None]) -> None:
        """Play a task's group, once it has its seats."""
        rng = np.random.default_rng(task.seed)
        config = self._config
        scripts = [draw_script(config.simulate, config.rollout.max_turns, rng) for _ in range(config.train.group_size)]
        play = _Play(
            task=task, done=done, began_at=self._events.now, scripts=scripts, num_open=len(scripts),
            prompt_tokens=_draw_prompt(config, rng),
        )  # fmt: skip
        self._waiting.append(play)
        self._admit()

    def _admit(self) -> None:
        while self._waiting:
            count = len(self._waiting[0].scripts)
            if self._num_taken and self._num_taken + count > self._config.rollout.max_sessions:
                return
            play = self._waiting.popleft()
            self._num_taken += count
            # its members fork the one prompt
            self.engine.feed(play.prompt_tokens, lambda play=play: self._begin(play))  # type: ignore[misc]

    def _begin(self, play: _Play) -> None:
        for script in play.scripts:
            self._sample(play, script, 0)

    def _sample(self, play: _Play, script: Script, turn: int) -> None:
        self.engine.decode(script.turn_tokens[turn], lambda counts: self._call(play, script, turn, counts))

    def _call(self, play: _Play, script: Script, turn: int, counts: VersionCounts) -> None:
        """The environment's turn: on one of the workers, behind what that has to do."""
        for version, count in counts:
            play.sampled[version] += count
        worker = self._num_calls % len(self._free_at)
        self._num_calls += 1
        self._free_at[worker] = max(self._free_at[worker], self._events.now) + script.call_s[turn]
        delay_s = self._free_at[worker] - self._events.now
        if turn + 1 == len(script.turn_tokens):
            self._events.after(delay_s, lambda: self._end(play))
        else:
            self._events.after(delay_s, lambda: self._observe(play, script, turn))

    def _observe(self, play: _Play, script: Script, turn: int) -> None:
        self.engine.feed(script.observation_tokens[turn], lambda: self._sample(play, script, turn + 1))

    def _end(self, play: _Play) -> None:
        play.num_open -= 1
        if play.num_open:
            return
        self._num_taken -= len(play.scripts)
        self._admit()
        play.done(self._record(play))

    def _record(self, play: _Play) -> GroupRecord:
        task = play.task
        return GroupRecord(
            number=task.number, task_id=task.task_id, group_id=task.group_id, file=file_name(task.group_id), digest="",
            tokens_by_version=tuple(sorted(play.sampled.items())), made_by=self._name,
            episodes=tuple(_episode(task, play.prompt_tokens, script) for script in play.scripts),
            rollout_s=self._events.now - play.began_at,
        )  # fmt: skip


def _draw_prompt(config: SegueConfig, rng: Rng) -> int:
    return draw_counts(config.simulate.prompt_tokens, 1, rng)[0]


def _episode(task: Task, prompt_tokens: int, script: Script) -> Episode:
    num_sampled = sum(script.turn_tokens)
    return Episode(
        seed=task.seed, outcome=Outcome.failure, reward=0.0, reward_terms={},
        num_tokens=prompt_tokens + num_sampled + sum(script.observation_tokens[:-1]), num_sampled_tokens=num_sampled,
        num_turns=len(script.turn_tokens), attempt=0, info={},
    )  # fmt: skip
