"""The episodes that one process runs: environments are built once and reused, an episode at a time each."""

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from segue.envs.adapter import GymToolEnv
from segue.envs.demonstrator import check_turn, demonstrator_rng
from segue.envs.errors import EnvironmentFailure, InfrastructureFailure, boundary
from segue.envs.factory import EnvFactory
from segue.envs.leftovers import Leftovers, watch_leftovers
from segue.envs.reply import Inspection, ResetReply, StepReply, cut_text, to_json
from segue.envs.tool import ToolCall, check_tools
from segue.envs.tool_env import ToolEnv


class EpisodeTable:
    """Named episodes; what an environment raises comes out as `EnvironmentFailure` and ends its episode."""

    def __init__(self, factory: EnvFactory, max_observation_chars: int) -> None:
        self._factory = factory
        self._max_observation_chars = max_observation_chars
        self._free: list[ToolEnv] = []
        self._episodes: dict[str, _Episode] = {}

    def reset(self, episode_id: str, seed: int, options: dict[str, Any] | None) -> ResetReply:
        """Begins an episode under a new name."""
        assert episode_id not in self._episodes, f"episode {episode_id} is open already"
        with self._boundary("reset", episode_id):
            env = self._begin(episode_id, seed=seed, num_steps=0)
            observation, info = env.reset(seed=seed, options=options)
            if not isinstance(observation, str):
                raise TypeError(f"observation must be a string, got {observation!r}")
            info = to_json(info, "info")
            system = info.pop("system")
            return ResetReply(
                observation=self._cut(observation), system=system, tools=check_tools(env.tools), info=info
            )

    def step(self, episode_id: str, call: ToolCall) -> StepReply:
        """Runs one call of an episode."""
        episode = self._episodes[episode_id]
        with self._boundary("step", episode_id):
            observation, _, terminated, truncated, info = episode.env.step(call)
            info = to_json(info, "info")
            terms = {name: float(value) for name, value in info.pop("reward_terms").items()}
            episode.num_steps += 1
            return StepReply(
                observation=self._cut(observation),
                reward_terms=terms,
                terminated=bool(terminated),
                truncated=bool(truncated),
                info=info,
            )

    def expert(self, episode_id: str, skill: str) -> dict[str, Any]:
        """The demonstrator's next turn; the same for the same seed, calls and skill."""
        episode = self._episodes[episode_id]
        rng = demonstrator_rng(episode.seed, episode.num_steps)
        with self._boundary("demonstrator", episode_id):
            turn = episode.env.expert(skill, rng)
            check_turn(turn)
            return turn

    def capture(self, episode_id: str) -> bytes | None:
        """The episode as data, where its environment can say it."""
        episode = self._episodes[episode_id]
        with self._boundary("snapshot", episode_id):
            return episode.env.capture()

    def resume(self, episode_id: str, seed: int, num_steps: int, data: bytes) -> None:
        """Opens an episode from what `capture` gave."""
        assert episode_id not in self._episodes, f"episode {episode_id} is open already"
        with self._boundary("restore", episode_id):
            self._begin(episode_id, seed=seed, num_steps=num_steps).resume(data)

    def inspect(self, episode_id: str) -> Inspection:
        """What a check asks of an episode's environment beyond what the episode shows."""
        env = self._episodes[episode_id].env
        if not isinstance(env, GymToolEnv):
            has_demonstrator = type(env).expert is not ToolEnv.expert
            return Inspection(is_foreign=False, has_demonstrator=has_demonstrator, max_calls=env.max_calls)
        with self._boundary("inspection", episode_id):
            return env.inspect()

    def try_close(self, seed: int, calls: Sequence[ToolCall]) -> Leftovers:
        """Plays calls in an environment of its own, and closes it twice."""
        with boundary(f"close of episode {seed}"), watch_leftovers() as leftovers:
            env = self._factory.make()
            env.reset(seed=seed)
            for call in calls:
                *_, terminated, truncated, _ = env.step(call)
                if terminated or truncated:
                    break
            env.close()
            env.close()
        return leftovers

    def close(self, episode_id: str) -> None:
        """Ends an episode, if it is open; its environment is free for another."""
        episode = self._episodes.pop(episode_id, None)
        if episode is not None:
            self._free.append(episode.env)

    def discard(self, episode_id: str) -> None:
        """Ends an episode that failed, if it is open; nobody knows its environment's state, so that is closed."""
        episode = self._episodes.pop(episode_id, None)
        if episode is not None:
            with contextlib.suppress(Exception, SystemExit):
                episode.env.close()

    @contextmanager
    def _boundary(self, call: str, episode_id: str) -> Iterator[None]:
        try:
            with boundary(f"{call} of episode {episode_id}"):
                yield
        except (EnvironmentFailure, InfrastructureFailure):
            self.discard(episode_id)
            raise

    def _begin(self, episode_id: str, *, seed: int, num_steps: int) -> ToolEnv:
        env = self._free.pop() if self._free else self._factory.make()
        self._episodes[episode_id] = _Episode(env=env, seed=seed, num_steps=num_steps)
        return env

    def _cut(self, text: str) -> str:
        return cut_text(text, self._max_observation_chars)


class _Episode:
    """An environment in use."""

    __slots__ = ("env", "num_steps", "seed")

    def __init__(self, *, env: ToolEnv, seed: int, num_steps: int) -> None:
        self.env = env
        self.seed = seed
        self.num_steps = num_steps
