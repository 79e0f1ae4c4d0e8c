"""Any gymnasium environment as a `ToolEnv` of one tool, `act`."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from segue.envs.errors import EnvironmentSetupError
from segue.envs.foreign_action import SUPPORTED_ACTIONS, TOOL_NAME, ActionCalls, ActionForm, find_unsupported_action
from segue.envs.foreign_fit import find_misfits
from segue.envs.foreign_info import plain_info
from segue.envs.foreign_observation import SUPPORTED_OBSERVATIONS, ObservationText, find_unsupported_observation
from segue.envs.reply import Inspection
from segue.envs.tool import ToolSpec
from segue.envs.tool_env import NUMBERS, Task, ToolEnv, ToolResult

_RESET = "observation and info from reset"
_STEP = "observation, reward, terminated, truncated and info from step"
# of an episode's info, where the base class says them
_RESERVED = ("is_success", "invalid_call")


class GymToolEnv(ToolEnv):
    """A foreign environment: its action space becomes the tool `act`, its observation becomes text.

    A discrete action is an integer of the space, or a name where the environment itself has `action_names`, one an
    action. Success, known when the episode ends: `info["is_success"]` of its last step, else return ≥ the spec's
    `reward_threshold`, else return ≥ `success_return`.
    """

    def __init__(
        self, env: gymnasium.Env[Any, Any], *, success_return: float | None, max_observation_chars: int
    ) -> None:
        """Wraps an environment.

        Args:
            env: as `gymnasium.make` builds it, wrappers included.
            success_return: return that counts as success where the environment itself says nothing; None where its spec
                has a `reward_threshold`.
            max_observation_chars: an array in an observation whose text may be longer stands in short.
        Raises:
            EnvironmentSetupError: a space is not supported, or two returns count as success.
        """
        self._env = env
        name = type(env.unwrapped).__name__
        threshold = None if env.spec is None else env.spec.reward_threshold
        if threshold is not None and success_return is not None:
            raise EnvironmentSetupError(
                f"env.success_return must be null for {name}, got {success_return:g}: it is registered with a "
                f"reward_threshold of {threshold:g}, which decides; register it under an id of your own for another"
            )
        self._needed_return = success_return if threshold is None else threshold
        _refuse(name, "actions", SUPPORTED_ACTIONS, find_unsupported_action(env.action_space))
        _refuse(name, "observations", SUPPORTED_OBSERVATIONS, find_unsupported_observation(env.observation_space))
        self._form = ActionForm(env.action_space, _action_names(env))
        self._text = ObservationText(env.observation_space, max_observation_chars)
        self.tools = (ToolSpec(name=TOOL_NAME, description="Take one action.", parameters=self._form.parameters),)
        self._return = 0.0
        self._observation: Any = None

    @property
    def action_space(self) -> ActionCalls:
        """Calls that mean an action of the foreign environment's space."""
        return ActionCalls(self.tools[0], self._form)

    def begin(self, seed: int, options: dict[str, Any]) -> Task:
        """Resets the foreign environment with the same seed."""
        with _told_by(_RESET):
            observation, info = self._env.reset(seed=seed, options=options or None)
        _check_info(info)
        self._return = 0.0
        return Task(user=self._see(observation), info=_unreserved(info))

    def call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        """Takes the action."""
        action = self._form.to_action(arguments)
        with _told_by(_STEP):
            observation, reward, terminated, truncated, info = self._env.step(action)
        _check_info(info)
        for name, flag in (("terminated", terminated), ("truncated", truncated)):
            if not isinstance(flag, NUMBERS):
                raise TypeError(f"{name} must be true or false, got {flag!r:.200}")
        reward = _to_float("reward", reward)
        self._return += reward
        has_ended = bool(terminated or truncated)
        return ToolResult(
            observation=self._see(observation),
            reward_terms={"reward": reward},
            terminated=bool(terminated),
            truncated=bool(truncated),
            is_success=self._is_success(info) if has_ended else None,
            info=_unreserved(info),
        )

    def expert(self, skill: str, rng: random.Random) -> dict[str, Any]:
        """An action that the space drew, whatever the skill: nobody here knows the task, but calls have their form."""
        return {"response": "", "calls": [{"name": TOOL_NAME, "arguments": self._form.sample(rng.getrandbits(31))}]}

    def inspect(self) -> Inspection:
        """How the last observation fits the foreign environment's own space."""
        misfits, form_misfits = find_misfits(self._env.observation_space, self._observation)
        return Inspection(
            is_foreign=True,
            has_demonstrator=False,
            max_calls=None if self._env.spec is None else self._env.spec.max_episode_steps,
            needed_return=self._needed_return,
            in_short=self._text.in_short(),
            cut=self._text.cut(self._observation),
            misfits=misfits,
            form_misfits=form_misfits,
        )

    def close(self) -> None:
        """Closes the foreign environment."""
        self._env.close()

    def _see(self, observation: Any) -> str:
        self._observation = observation
        return self._text.render(observation)

    def _is_success(self, info: dict[str, Any]) -> bool:
        if "is_success" in info:
            return bool(_to_float("info.is_success", info["is_success"]))
        if self._needed_return is None:
            raise ValueError(
                'success must be said by the environment, by info["is_success"] or a reward_threshold; '
                "else set env.success_return to the return that counts as one"
            )
        return self._return >= self._needed_return


@contextmanager
def _told_by(form: str) -> Iterator[None]:
    """Says what was to be returned where it cannot be taken apart, here or in one of gymnasium's own wrappers."""
    try:
        yield
    except (TypeError, ValueError) as error:
        if "unpack" not in str(error):
            raise
        raise ValueError(f"the environment must return {form}: {error}") from error


def _unreserved(info: dict[Any, Any]) -> dict[str, Any]:
    return {key: value for key, value in plain_info(info).items() if key not in _RESERVED}


def _to_float(path: str, number: Any) -> float:
    if isinstance(number, np.ndarray) and number.size == 1:
        number = number.item()
    if not isinstance(number, NUMBERS):
        raise TypeError(f"{path} must be a number, got {number!r:.200}")
    return float(number)


def _check_info(info: Any) -> None:
    if not isinstance(info, dict):
        raise TypeError(f"info must be a dictionary, got {info!r:.200}")


def _refuse(name: str, what: str, supported: str, found: str | None) -> None:
    if found is not None:
        # the path of a space without parts is what it is of
        raise EnvironmentSetupError(f"{what} of {name} must be {supported}; got {found.removeprefix(f'{what} ')}")


def _action_names(env: gymnasium.Env[Any, Any]) -> tuple[str, ...] | None:
    names = getattr(env.unwrapped, "action_names", None)
    if names is None or not isinstance(env.action_space, spaces.Discrete):
        return None
    names = tuple(names)
    num_actions = int(env.action_space.n)
    if len(set(names)) != num_actions or not all(isinstance(name, str) for name in names):
        raise EnvironmentSetupError(f"action_names must be {num_actions} different strings, got {names}")
    return names
