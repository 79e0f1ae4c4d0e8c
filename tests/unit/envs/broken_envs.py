"""Environments that break the contract in one place, which the name of the fault says, and those that keep it."""

import os
import random
import subprocess
import sys
import threading
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from segue.envs.errors import InfrastructureFailure
from segue.envs.tool import ToolSpec, object_schema, tool
from segue.envs.tool_env import Task, ToolEnv, ToolResult

_SLEEPER = ["sleep", "3600"]


class Walk(gymnasium.Env[Any, Any]):
    """Walk to a place that the seed names; foreign, and without a fault where none is given."""

    action_space = spaces.Discrete(2)
    observation_space: spaces.Space[Any] = spaces.Box(-21, 21, (3,), np.float32)
    _num_episodes = 0

    def __init__(self, *, fault: str = "none") -> None:
        self._fault = fault
        if fault == "raise in the constructor":
            raise RuntimeError("no such thing")
        if fault == "hang in the constructor":
            time.sleep(3600)
        if fault == "unknown action space":
            self.action_space = spaces.OneOf((spaces.Discrete(2),))  # type: ignore[assignment]
        if fault == "screen":
            self.observation_space = spaces.Box(0, 255, (64, 64, 3), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        match self._fault:
            case "raise in reset":
                raise RuntimeError("cannot begin")
            case "raise on the second seed" if seed == 1:
                raise RuntimeError("cannot begin with 1")
            case "options" if options:
                raise ValueError("no options here")
            case "hang in reset":
                time.sleep(3600)
            case "lack":
                raise InfrastructureFailure("the judge is down")
            case "old reset":
                return self._see()
        self._place, self._num_steps = 0, 0
        self._target = 3 if self._fault == "one task" else int(self.np_random.integers(2, 5))
        self._num_episodes += 1
        return self._see(), {}

    def step(self, action: Any) -> Any:
        self._num_steps += 1
        self._place += 1 if action == 1 else -1
        has_arrived = self._place == self._target
        reward: Any = float(has_arrived)
        terminated: Any = has_arrived
        truncated: Any = self._num_steps == 20 and not has_arrived
        info: dict[str, Any] | None = {"is_success": has_arrived}
        match self._fault:
            case "raise in step":
                raise RuntimeError("broken inside")
            case "exit in step":
                sys.exit(3)
            case "crash":
                os._exit(7)
            case "old step":
                return self._see(), reward, terminated, info
            case "hang in step":
                time.sleep(3600)
            case "no reward":
                reward = None
            case "nan reward":
                reward = float("nan")
            case "huge reward":
                reward = 1e9
            case "text flag":
                terminated = "no"
            case "limit in info":
                terminated, truncated = terminated or truncated, False
                assert info is not None
                info["TimeLimit.truncated"] = terminated and not has_arrived
            case "both flags":
                truncated = terminated
            case "no rule of success":
                info = {}
            case "no info":
                info = None
            case "unseeded":
                reward = random.random()
            case "clock":
                # of so many values that two episodes do not agree by chance
                self._place = time.monotonic_ns() % 10**6 / 10**5
            case "memory":
                reward = float(self._num_episodes)
            case "hash":
                # another one in each process
                reward = hash("a") % 1e6
            case "child":
                subprocess.Popen(_SLEEPER, start_new_session=True)
            case "endless":
                terminated = truncated = False
        return self._see(), reward, terminated, truncated, info

    def _see(self) -> Any:
        place = getattr(self, "_place", 0)
        seen = np.array([place, place / 3, 0], np.float32)
        match self._fault:
            case "outside":
                return seen + 22
            case "nan":
                return seen * np.nan
            case "shape":
                return seen[:1]
            case "doubles":
                return seen.astype(np.float64)
            case "screen":
                return np.zeros((64, 64, 3), np.uint8)
        return seen


class Counter(ToolEnv):
    """Count to a number; a tool environment with snapshots and a demonstrator, without a fault where none is given."""

    max_calls = 20
    _has_closed = False

    def __init__(self, *, fault: str = "none") -> None:
        self._fault = fault
        self._noise = random.Random()
        odd = ToolSpec(name="add", description="Again.", parameters=object_schema({}))
        if fault == "slow expert":
            self.max_calls = None
        if fault == "no tools":
            self.tools = ()
        if fault == "names":
            self.tools = (*self.tools, odd)
        if fault == "undescribed":
            self.tools = (ToolSpec(name="add", description="", parameters=self.tools[0].parameters), *self.tools[1:])

    def begin(self, seed: int, options: dict[str, Any]) -> Task:
        self.value, self.target = 0, int(self.np_random.integers(3, 6))
        self.hidden = 0
        if self._fault == "no task":
            return "go"  # type: ignore[return-value]
        return Task(user=f"count to {self.target}")

    @tool("Add.")
    def add(self, amount: int) -> ToolResult:
        self.value += amount
        self.hidden += 1
        match self._fault:
            case "picky" if amount < 0:
                raise ValueError("amount must be positive")
            case "text result":
                return "text"  # type: ignore[return-value]
            case "set in info":
                return ToolResult(observation="", info={"seen": {1, 2}})
            case "flood of info":
                return ToolResult(observation="", info={"big": "z" * 8_000_000})
            case "long":
                return ToolResult(observation="y" * 3000)
        shown = self.value + (self.hidden if self._fault == "forgets" else 0)
        return ToolResult(observation=str(shown), reward_terms={"step": -0.1})

    @tool("Say that it is done.")
    def stop(self) -> ToolResult:
        is_right = self.value == self.target
        verdict = None if self._fault == "no verdict" else is_right
        is_cut = self._fault == "unequal cuts"
        pay = self.target / 10 if is_cut else 1.0
        terms = {"success": pay * is_right}
        return ToolResult(
            observation="bye", reward_terms=terms, terminated=not is_cut, truncated=is_cut, is_success=verdict
        )

    def step(self, action: Any) -> Any:
        known = [spec.name for spec in self.tools]
        if self._fault == "raises on bad calls":
            assert action.name in known, "no such tool"
        if self._fault == "takes all" and action.name not in known:
            self._num_calls += 1
            return "fine", 0.0, False, False, {"reward_terms": {}}
        if self._fault == "moves on bad calls" and action.name not in known:
            self.value += 1
        return super().step(action)

    def expert(self, skill: str, rng: random.Random) -> dict[str, Any]:
        missing = self.target - self.value
        call = {"name": "add", "arguments": {"amount": missing}} if missing else {"name": "stop", "arguments": {}}
        match self._fault:
            case "fails":
                call = {"name": "stop", "arguments": {}}
            case "moves":
                self.value += 1
            case "own randomness":
                call = {"name": "add", "arguments": {"amount": self._noise.randint(0, 10**9)}}
            case "unknown tool":
                call = {"name": "multiply", "arguments": {}}
            case "expert raises":
                raise RuntimeError("no idea")
            case "slow expert":
                call = {"name": "add", "arguments": {"amount": 0}}
            case "no calls":
                return {"response": "done", "calls": []}
            case "only expert" if skill != "expert":
                raise ValueError("skill must be expert")
        return {"response": "", "calls": [call]}

    def snapshot(self) -> Any:
        match self._fault:
            case "no snapshots":
                return None
            case "snapshot of another type":
                return {"value": self.value}
            case "snapshot raises":
                raise RuntimeError("cannot be saved")
            case "forgets":
                return f"{self.value} {self.target} 0".encode()
        return f"{self.value} {self.target} {self.hidden}".encode()

    def restore(self, data: bytes) -> None:
        if self._fault == "restore raises":
            raise RuntimeError("cannot be taken up")
        self.value, self.target, self.hidden = map(int, data.split())

    def close(self) -> None:
        match self._fault:
            case "close raises":
                raise RuntimeError("cannot be closed")
            case "closes once" if self._has_closed:
                raise RuntimeError("closed already")
            case "close hangs" if hasattr(self, "value"):
                time.sleep(3600)
            case "thread":
                threading.Thread(target=time.sleep, args=(3600,), daemon=True, name="ticker").start()
        self._has_closed = True


class Silent(ToolEnv):
    """One tool, no demonstrator, and an end after each call."""

    def begin(self, seed: int, options: dict[str, Any]) -> Task:
        return Task(user=f"task {seed}")

    @tool("Answer.")
    def answer(self, value: str) -> ToolResult:
        return ToolResult(observation="", terminated=True, is_success=False)


gymnasium.register(id="Walk-v0", entry_point=Walk)
gymnasium.register(id="Counter-v0", entry_point=Counter)
gymnasium.register(id="Silent-v0", entry_point=Silent, max_episode_steps=1)
