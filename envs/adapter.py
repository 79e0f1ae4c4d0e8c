"""Any gymnasium environment with discrete actions and small observations as a `ToolEnv` of one tool, `act`."""

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from segue.envs.errors import EnvironmentSetupError
from segue.envs.tool import ToolSpec, object_schema
from segue.envs.tool_env import NUMBERS, Task, ToolEnv, ToolResult

MAX_BOX_ENTRIES = 64
_RESET = "observation and info from reset"
_STEP = "observation, reward, terminated, truncated and info from step"
_SUPPORTED = f"Discrete actions, and Discrete, Text or Box (at most {MAX_BOX_ENTRIES} entries) observations"


class GymToolEnv(ToolEnv):
    """A foreign environment: its action space becomes the tool `act`, its observation becomes text.

    The action is an integer of the space, or a name where the environment itself has `action_names`, one an action.
    Success, known when the episode ends: `info["is_success"]` of its last step, else return ≥ the spec's
    `reward_threshold`, else return ≥ `success_return`.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], *, success_return: float | None) -> None:
        """Wraps an environment.

        Args:
            env: as `gymnasium.make` builds it, wrappers included.
            success_return: return that counts as success where the environment itself says nothing.
        Raises:
            EnvironmentSetupError: a space is not supported.
        """
        self._env = env
        self._success_return = success_return
        name = type(env.unwrapped).__name__
        if not isinstance(env.action_space, spaces.Discrete):
            raise EnvironmentSetupError(f"{name} must have {_SUPPORTED}, got actions {env.action_space}")
        if not _is_supported_observation(env.observation_space):
            raise EnvironmentSetupError(f"{name} must have {_SUPPORTED}, got observations {env.observation_space}")
        self._first_action = int(env.action_space.start)
        self._action_names = _action_names(env, int(env.action_space.n))
        self.tools = (ToolSpec(name="act", description="Take one action.", parameters=self._schema(env.action_space)),)
        self._return = 0.0

    def begin(self, seed: int, options: dict[str, Any]) -> Task:
        """Resets the foreign environment with the same seed."""
        with _told_by(_RESET):
            observation, info = self._env.reset(seed=seed, options=options or None)
        _check_info(info)
        self._return = 0.0
        return Task(user=self._render(observation), info=dict(info))

    def call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        """Takes the action."""
        chosen = arguments["action"]
        action = chosen if self._action_names is None else self._first_action + self._action_names.index(chosen)
        with _told_by(_STEP):
            observation, reward, terminated, truncated, info = self._env.step(action)
        _check_info(info)
        for name, flag in (("terminated", terminated), ("truncated", truncated)):
            if not isinstance(flag, NUMBERS):
                raise TypeError(f"{name} must be true or false, got {flag!r:.200}")
        reward = _to_float(reward)
        self._return += reward
        has_ended = bool(terminated or truncated)
        return ToolResult(
            observation=self._render(observation),
            reward_terms={"reward": reward},
            terminated=bool(terminated),
            truncated=bool(truncated),
            is_success=self._is_success(info) if has_ended else None,
            info={key: value for key, value in info.items() if key != "is_success"},
        )

    def expert(self, skill: str, rng: random.Random) -> dict[str, Any]:
        """One action drawn evenly, whatever the skill: nobody here knows the task, but its calls have their form."""
        (spec,) = self.tools
        schema = spec.parameters["properties"]["action"]
        action = rng.choice(schema["enum"]) if "enum" in schema else rng.randint(schema["minimum"], schema["maximum"])
        return {"response": "", "calls": [{"name": spec.name, "arguments": {"action": action}}]}

    def close(self) -> None:
        """Closes the foreign environment."""
        self._env.close()

    def _schema(self, space: "spaces.Discrete") -> dict[str, Any]:
        if self._action_names is not None:
            return object_schema({"action": {"type": "string", "enum": list(self._action_names)}})
        first, last = int(space.start), int(space.start + space.n - 1)
        return object_schema({"action": {"type": "integer", "minimum": first, "maximum": last}})

    def _is_success(self, info: dict[str, Any]) -> bool:
        if "is_success" in info:
            return bool(info["is_success"])
        threshold = None if self._env.spec is None else self._env.spec.reward_threshold
        needed = self._success_return if threshold is None else threshold
        if needed is None:
            raise ValueError(
                'the environment must say success by info["is_success"] or a reward_threshold; '
                "else set env.success_return to the return that counts as one"
            )
        return self._return >= needed

    def _render(self, observation: Any) -> str:
        space = self._env.observation_space
        if isinstance(space, spaces.Text):
            # a wrong alphabet is what gymnasium itself only warns of
            if not isinstance(observation, str):
                raise TypeError(f"observation must be a string, got {observation!r}")
            return observation
        array = np.asarray(observation)
        if array.shape != space.shape:
            raise ValueError(f"observation must have shape {space.shape}, got {array.shape}")
        if not np.isfinite(array).all():
            raise ValueError(f"observation must be finite, got {array}")
        if isinstance(space, spaces.Discrete) and not space.contains(observation):
            raise ValueError(f"observation must be in {space}, got {observation!r}")
        return _render_array(array)


@contextmanager
def _told_by(form: str) -> Iterator[None]:
    """Says what was to be returned where it cannot be taken apart, here or in one of gymnasium's own wrappers."""
    try:
        yield
    except (TypeError, ValueError) as error:
        if "unpack" not in str(error):
            raise
        raise ValueError(f"the environment must return {form}: {error}") from error


def _to_float(reward: Any) -> float:
    if isinstance(reward, np.ndarray) and reward.size == 1:
        reward = reward.item()
    if not isinstance(reward, NUMBERS):
        raise TypeError(f"reward must be a number, got {reward!r:.200}")
    return float(reward)


def _check_info(info: Any) -> None:
    if not isinstance(info, dict):
        raise TypeError(f"info must be a dictionary, got {info!r:.200}")


def _is_supported_observation(space: Any) -> bool:
    if isinstance(space, spaces.Box):
        return math.prod(space.shape) <= MAX_BOX_ENTRIES
    return isinstance(space, (spaces.Discrete, spaces.Text))


def _action_names(env: gymnasium.Env[Any, Any], num_actions: int) -> tuple[str, ...] | None:
    names = getattr(env.unwrapped, "action_names", None)
    if names is None:
        return None
    names = tuple(names)
    if len(set(names)) != num_actions or not all(isinstance(name, str) for name in names):
        raise EnvironmentSetupError(f"action_names must be {num_actions} different strings, got {names}")
    return names


def _render_array(array: np.ndarray) -> str:
    """Entries apart by spaces, rows of the last axis on lines; reals with four significant digits."""
    if array.ndim > 1:
        return "\n".join(_render_array(row) for row in array)
    # adding zero turns -0.0 into 0.0
    texts = [f"{float(x) + 0.0:.4g}" if isinstance(x, np.floating) else str(int(x)) for x in np.atleast_1d(array)]
    return " ".join(texts)
