"""`ToolEnv`: the contract of an environment whose actions are tool calls and whose observations are text.

An author marks methods with `@tool`, says in `begin` what the task is, and returns a `ToolResult` from each tool:

    reset(seed) -> begin(seed, options) -> Task
    step(call)  -> the method named by the call -> ToolResult

The base class answers calls that cannot be run (they are observations, never exceptions), sums the named reward terms,
keeps `terminated` and `truncated` apart and refuses results that break the contract.
"""

import io
import math
import random
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np

from segue.envs.frames import encode_frame, read_frame
from segue.envs.space import AnyText, ToolCalls
from segue.envs.tool import ToolCall, ToolSpec, collect_tools

MAX_REWARD_TERM = 1e6
"""Largest magnitude of a reward term: anything beyond would drown every other episode of its group."""
NUMBERS = (int, float, np.integer, np.floating, np.bool_)
"""What may stand where an environment says a number."""
_FLAGS = (bool, np.bool_)
_TASK_TYPES = (("user", str, "a string"), ("system", str, "a string"), ("info", dict, "a dictionary"))
_RESULT_TYPES: tuple[tuple[str, tuple[type, ...], str], ...] = (
    ("observation", (str,), "a string"),
    ("reward_terms", (dict,), "a dictionary"),
    ("terminated", _FLAGS, "true or false"),
    ("truncated", _FLAGS, "true or false"),
    ("is_success", (*_FLAGS, type(None)), "true, false or None"),
    ("info", (dict,), "a dictionary"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """What an episode is about."""

    user: str
    """The user's message: the first observation."""
    system: str = ""
    """The system message; empty for none."""
    info: dict[str, Any] = field(default_factory=dict)
    """JSON values for records and metrics; the policy never sees them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolResult:
    """What a tool call led to."""

    observation: str
    reward_terms: dict[str, float] = field(default_factory=dict)
    """Named, each in [-1e6, 1e6]; the step's reward is their sum."""
    terminated: bool = False
    """The task is over: what follows is worth nothing."""
    truncated: bool = False
    """The episode was cut: the task might have gone on."""
    is_success: bool | None = None
    """Given with `terminated`; a truncated episode that does not say so has failed."""
    info: dict[str, Any] = field(default_factory=dict)


class ToolEnv(gymnasium.Env[str, ToolCall]):
    """A gymnasium environment of named tools.

    Invariants (tests/contract/test_env_contract.py):
        The same seed and calls give the same observations, rewards and flags.
        A call that no tool accepts is answered with the reason and changes nothing but the number of calls.
        The reward is the sum of `info["reward_terms"]`; `info["is_success"]` stands in the last step's info.
    """

    tools: tuple[ToolSpec, ...] = ()
    """Collected from the methods marked with `@tool`; an instance may set its own and override `call`."""
    max_calls: int | None = None
    """Calls after which an episode is truncated; None for no bound."""
    observation_space = AnyText()

    _num_calls = 0
    _is_running = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.tools = collect_tools(cls)

    @property
    def action_space(self) -> ToolCalls:
        """Calls that the tools accept."""
        return ToolCalls(self.tools)

    def begin(self, seed: int, options: dict[str, Any]) -> Task:
        """Starts the episode that belongs to a seed.

        Args:
            seed: names the task; all randomness of the episode follows from it (`self.np_random` is seeded with it).
            options: the environment's own; unknown ones should be refused with a ValueError.
        """
        raise NotImplementedError

    def call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        """Runs one call that fits its schema; the default runs the method of that name."""
        result: ToolResult = getattr(self, name)(**arguments)
        return result

    def progress(self) -> dict[str, Any]:
        """What every step's info says about the episode so far, whatever the call was."""
        return {}

    def expert(self, skill: str, rng: random.Random) -> dict[str, Any]:
        """The next turn of a demonstrator, given the episode so far; changes nothing.

        Args:
            skill: `expert` (flawless) or `fallible`.
            rng: the demonstrator's own randomness; the fallible one draws its mistakes from it.
        Returns:
            `{"response": str, "calls": [{"name": str, "arguments": dict}, ...]}`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no demonstrator")

    def snapshot(self) -> bytes | None:
        """The author's part of the episode as data, never a pickle; None where only replaying its calls restores it."""
        return None

    def restore(self, data: bytes) -> None:
        """Takes up what `snapshot` gave, in this or another instance of the same construction."""
        raise NotImplementedError(f"{type(self).__name__} has no snapshots")

    def capture(self) -> bytes | None:
        """The whole episode as data: the author's snapshot, the generator's state and the calls so far."""
        data = self.snapshot()
        if data is None:
            return None
        if not isinstance(data, bytes):
            raise TypeError(f"snapshot must return bytes or None, got {data!r:.200}")
        generator = self.np_random.bit_generator.state
        header = {"num_calls": self._num_calls, "is_running": self._is_running, "generator": generator}
        return encode_frame(header, (data,))

    def resume(self, data: bytes) -> None:
        """Goes on from what `capture` gave."""
        frame = read_frame(io.BytesIO(data))
        assert frame is not None, "a captured episode is one frame"
        self.restore(frame.attachments[0])
        self.np_random.bit_generator.state = frame.header["generator"]
        self._num_calls, self._is_running = frame.header["num_calls"], frame.header["is_running"]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Starts an episode; None draws a seed from the generator at hand.

        Returns:
            The user's message, and the task's info with its `system` text.
        """
        super().reset(seed=seed)
        if seed is None:
            seed = int(self.np_random.integers(2**31))
        task = self.begin(seed, options or {})
        if not isinstance(task, Task):
            raise TypeError(f"begin must return a Task, got {task!r:.200}")
        for name, kind, words in (
            ("user", str, "a string"),
            ("system", str, "a string"),
            ("info", dict, "a dictionary"),
        ):
            value = getattr(task, name)
            if not isinstance(value, kind):
                raise TypeError(f"{name} of the Task that begin returns must be {words}, got {value!r:.200}")
        self._num_calls, self._is_running = 0, True
        return task.user, {**task.info, "system": task.system}

    def step(self, action: ToolCall) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Runs one call.

        Raises:
            RuntimeError: no episode is running.
            TypeError, ValueError: the environment broke its contract (not: the model wrote a bad call).
        """
        if not self._is_running:
            raise RuntimeError("step needs a running episode; call reset first")
        self._num_calls += 1
        problem = self.action_space.find_problem(action)
        if problem is None:
            result = self.call(action.name, action.arguments)
            _check_result(action.name, result)
        else:
            result = ToolResult(observation=f"error: {problem}", info={"invalid_call": problem})
        is_spent = self.max_calls is not None and self._num_calls >= self.max_calls
        truncated = result.truncated or (is_spent and not result.terminated)
        info = {**self.progress(), **result.info, "reward_terms": dict(result.reward_terms)}
        if result.terminated or truncated:
            self._is_running = False
            info["is_success"] = bool(result.is_success)
        reward = math.fsum(result.reward_terms.values())
        return result.observation, reward, result.terminated, truncated, info


def _check_result(name: str, result: Any) -> None:
    if not isinstance(result, ToolResult):
        raise TypeError(f"tool {name} must return a ToolResult, got {result!r:.200}")
    for field_name, kinds, words in _RESULT_TYPES:
        value = getattr(result, field_name)
        if not isinstance(value, kinds):
            raise TypeError(f"{field_name} of tool {name} must be {words}, got {value!r:.200}")
    for term, value in result.reward_terms.items():
        if not isinstance(term, str) or not isinstance(value, NUMBERS):
            raise TypeError(f"reward terms of tool {name} must be numbers by name, got {term!r}: {value!r:.200}")
        if not abs(value) <= MAX_REWARD_TERM:
            raise ValueError(
                f"reward term {term} of tool {name} must lie in [{-MAX_REWARD_TERM:g}, {MAX_REWARD_TERM:g}], "
                f"got {value}"
            )
    if result.terminated and result.is_success is None:
        raise ValueError(f"is_success of tool {name}, which ended the episode, must be true or false, got None")
