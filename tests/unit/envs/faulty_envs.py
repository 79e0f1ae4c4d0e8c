"""Environments that do what none should, by tool; imported by env workers from this folder."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

from segue.envs.errors import InfrastructureFailure
from segue.envs.tool import tool
from segue.envs.tool_env import Task, ToolEnv, ToolResult


class Faulty(ToolEnv):
    """A counter with faults to call; the seed is its first value. Closing it takes down the value, and raises."""

    closed: ClassVar[list[int]] = []

    def begin(self, seed: int, options: dict[str, Any]) -> Task:
        if options.get("fault") == "raise":
            raise RuntimeError("no such task")
        if options.get("fault") == "hang":
            time.sleep(3600)
        if options.get("fault") == "doze":
            time.sleep(0.5)
        self.value = seed
        return Task(user=f"count from {seed}", info={"seed": seed})

    @tool("Add.")
    def add(self, amount: int) -> ToolResult:
        self.value += amount
        return ToolResult(observation=str(self.value), reward_terms={"progress": float(amount)})

    @tool("Draw.")
    def draw(self) -> ToolResult:
        return ToolResult(observation=str(self.np_random.integers(1_000_000)))

    @tool("Finish.")
    def finish(self) -> ToolResult:
        return ToolResult(observation="done", terminated=True, is_success=True)

    @tool("Say the process id, and where it works.")
    def pid(self) -> ToolResult:
        return ToolResult(observation="same", info={"pid": os.getpid(), "folder": os.getcwd()})

    @tool("Raise.")
    def fail(self) -> ToolResult:
        raise RuntimeError("broken inside")

    @tool("Lack something.")
    def lack(self) -> ToolResult:
        raise InfrastructureFailure("the judge is down")

    @tool("Exit by an exception.")
    def leave(self) -> ToolResult:
        sys.exit(3)

    @tool("Exit at once.")
    def vanish(self) -> ToolResult:
        os._exit(7)

    @tool("Be killed.")
    def die(self) -> ToolResult:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("unreachable")

    @tool("Take half a second.")
    def doze(self) -> ToolResult:
        time.sleep(0.5)
        return ToolResult(observation="awake")

    @tool("Hang.")
    def hang(self) -> ToolResult:
        time.sleep(3600)
        raise AssertionError("unreachable")

    @tool("Start a program that outlives the call, then hang.")
    def hang_with_child(self) -> ToolResult:
        child = subprocess.Popen(["sleep", "3600"])
        print(f"child {child.pid}", file=sys.stderr, flush=True)
        time.sleep(3600)
        raise AssertionError("unreachable")

    @tool("Print.")
    def shout(self) -> ToolResult:
        print("x" * 100_000, flush=True)
        os.write(1, b"\x00\x00\x00\x02{}")
        return ToolResult(observation="printed")

    @tool("Print megabytes, on both outputs and by a child.")
    def spill(self, size: int) -> ToolResult:
        line = b"s" * 99 + b"\n"
        for descriptor in (1, 2):
            for _ in range(size * 10**4):
                os.write(descriptor, line)
        subprocess.run([sys.executable, "-c", f"print('s' * {size * 10**6})"], check=True)
        return ToolResult(observation="spilt")

    @tool("Leave programs behind: a child, one of another session, and an orphan of yet another.")
    def leave_behind(self) -> ToolResult:
        sleeper = ["sleep", "3600"]
        child = subprocess.Popen(sleeper)
        escaped = subprocess.Popen(sleeper, start_new_session=True)
        code = f"import subprocess; print(subprocess.Popen({sleeper}, start_new_session=True, stdout=2).pid)"
        orphan = subprocess.check_output([sys.executable, "-c", code], text=True)
        return ToolResult(observation="", info={"pids": [child.pid, escaped.pid, int(orphan)]})

    @tool("Orphan programs that end at once.")
    def orphan(self, number: int) -> ToolResult:
        # the shell does not wait for what it started
        subprocess.run(["sh", "-c", "true & " * number], check=True)
        return ToolResult(observation="", info={"keeper": os.getppid()})

    @tool("Tell all of one's own group to end.")
    def end_group(self) -> ToolResult:
        os.killpg(0, signal.SIGTERM)
        raise AssertionError("unreachable")

    @tool("Say something, and crash.")
    def crash(self) -> ToolResult:
        os.write(2, b"last words\n")
        os.abort()

    @tool("Flood.")
    def flood(self, size: int) -> ToolResult:
        return ToolResult(observation="y" * size)

    @tool("Flood info.")
    def flood_info(self) -> ToolResult:
        return ToolResult(observation="z", info={"big": "z" * 8_000_000})

    @tool("Return NaN.")
    def nan_reward(self) -> ToolResult:
        return ToolResult(observation="nan", reward_terms={"broken": float("nan")})

    @tool("Return NaN in info.")
    def nan_info(self) -> ToolResult:
        return ToolResult(observation="nan", info={"loss": np.float32("nan")})

    @tool("Return a wrong type.")
    def wrong_type(self) -> ToolResult:
        return "text"  # type: ignore[return-value]

    @tool("Hang, and make a file; where that is there, add one.")
    def hang_once(self, path: str) -> ToolResult:
        if Path(path).exists():
            return self.add(1)
        Path(path).touch()
        return self.hang()

    @tool("Say the time.")
    def clock(self) -> ToolResult:
        return ToolResult(observation=str(time.monotonic_ns()))

    def close(self) -> None:
        if hasattr(self, "value"):
            self.closed.append(self.value)
            raise RuntimeError("cannot be closed")


class Saved(Faulty):
    """The same with snapshots; every reset is counted in the observation, so that a replay from the seed shows."""

    num_resets = 0

    def begin(self, seed: int, options: dict[str, Any]) -> Task:
        type(self).num_resets += 1
        return super().begin(seed, options)

    def snapshot(self) -> bytes | None:
        return str(self.value).encode()

    def restore(self, data: bytes) -> None:
        self.value = int(data)


class SlowlySaved(Saved):
    """The same, whose first snapshot makes a file and hangs."""

    def __init__(self, *, mark: str) -> None:
        self._mark = Path(mark)

    def snapshot(self) -> bytes | None:
        if not self._mark.exists():
            self._mark.touch()
            time.sleep(3600)
        return super().snapshot()


class Demonstrated(Faulty):
    """The counter with a demonstrator, who hangs over one seed."""

    def __init__(self, *, hanging_seed: int) -> None:
        self._hanging_seed = hanging_seed

    def expert(self, skill: str, rng: random.Random) -> dict[str, Any]:
        if self.value == self._hanging_seed:
            time.sleep(3600)
        return {"response": skill, "calls": [{"name": "finish", "arguments": {}}]}


class Slow(ToolEnv):
    """Never ready."""

    def __init__(self) -> None:
        time.sleep(3600)


class Unknown(gymnasium.Space[Any]):
    """A space of nobody knows what."""

    def __repr__(self) -> str:
        return "Unknown"


class Corridor(gymnasium.Env[Any, Any]):
    """Three steps to the right; a foreign environment with names, info and configurable observations."""

    action_names = ("left", "right")
    action_space = spaces.Discrete(2)

    def __init__(
        self, *, says_success: bool = False, observations: str = "discrete", says: dict[str, Any] | None = None
    ) -> None:
        self._says_success = says_success
        self._says = says or {}
        self._observations = observations
        self.observation_space: spaces.Space[Any] = {
            "discrete": spaces.Discrete(4),
            "box": spaces.Box(-1.0, 9.0, (2, 2), np.float32),
            "text": spaces.Text(20),
            "nan": spaces.Box(-1.0, 9.0, (2,), np.float32),
            "outside": spaces.Discrete(2),
            "unknown": spaces.Dict({"map": spaces.Tuple((Unknown(),))}),
        }[observations]

    def _see(self) -> Any:
        match self._observations:
            case "box":
                return np.array([[self._place, -0.0], [1 / 3, 1.0]], np.float32)
            case "text":
                return f"you are at {self._place}"
            case "nan":
                return np.array([np.nan, self._place], np.float32)
        return self._place

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._place = 0
        return self._see(), {"place": np.int64(0), **self._says}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._place = max(0, self._place + (1 if action == 1 else -1))
        has_arrived = self._place == 3
        info: dict[str, Any] = {"is_success": True} if self._says_success and has_arrived else {}
        info |= {"action_type": type(action).__name__, **self._says}
        return self._see(), float(has_arrived), has_arrived, False, info


class Moving(Corridor):
    """The corridor with an action that is a velocity."""

    action_names = None  # type: ignore[assignment]
    action_space = spaces.Box(-1.0, 1.0, (1,))  # type: ignore[assignment]


class Choosing(Corridor):
    """The corridor with a part of its actions that no schema says."""

    action_names = None  # type: ignore[assignment]
    action_space = spaces.Tuple((spaces.Discrete(2), spaces.OneOf((spaces.Discrete(2),))))  # type: ignore[assignment]


class Careless(Corridor):
    """The corridor, with one thing returned in another form, told by the name of the fault."""

    def __init__(self, *, fault: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._fault = fault

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        observation, info = super().reset(seed=seed, options=options)
        return observation if self._fault == "old reset" else (observation, info)

    def step(self, action: int) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        match self._fault:
            case "old step":
                return observation, reward, terminated, info
            case "no reward":
                return observation, None, terminated, truncated, info
            case "nan reward":
                return observation, float("nan"), terminated, truncated, info
            case "text flag":
                return observation, reward, "no", truncated, info
            case "no info":
                return observation, reward, terminated, truncated, None
            case "shape":
                return [observation, observation], reward, terminated, truncated, info
        return observation, np.array([reward]), int(terminated), truncated, info


class Shifted(Corridor):
    """The corridor with actions that have no names, numbered from -1."""

    action_names = None  # type: ignore[assignment]
    action_space = spaces.Discrete(2, start=-1)


gymnasium.register(id="Faulty-v0", entry_point=Faulty)
gymnasium.register(id="ShortFaulty-v0", entry_point=Faulty, max_episode_steps=2)
gymnasium.register(id="Saved-v0", entry_point=Saved)
gymnasium.register(id="SlowlySaved-v0", entry_point=SlowlySaved)
gymnasium.register(id="Demonstrated-v0", entry_point=Demonstrated)
gymnasium.register(id="Slow-v0", entry_point=Slow)
gymnasium.register(id="Corridor-v0", entry_point=Corridor, max_episode_steps=5)
gymnasium.register(id="EasyCorridor-v0", entry_point=Corridor, max_episode_steps=5, reward_threshold=0.5)
gymnasium.register(id="HardCorridor-v0", entry_point=Corridor, max_episode_steps=5, reward_threshold=2.0)
gymnasium.register(id="Careless-v0", entry_point=Careless, max_episode_steps=5)
gymnasium.register(id="CarelessEndless-v0", entry_point=Careless)
gymnasium.register(id="Shifted-v0", entry_point=Shifted, max_episode_steps=5)
gymnasium.register(id="Moving-v0", entry_point=Moving)
gymnasium.register(id="Choosing-v0", entry_point=Choosing)
