"""Foreign environments with nested spaces; imported by env workers from this folder."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Arm(gymnasium.Env[Any, Any]):
    """Move a point to a target and say so; its observation has parts of every kind, its info what a vector one has."""

    action_space = spaces.Dict(
        {
            "move": spaces.Box(np.array([-1.0, -0.5], np.float32), np.array([1.0, 0.5], np.float32)),
            "grip": spaces.Tuple((spaces.MultiBinary(2), spaces.MultiDiscrete([3, 2], start=[-1, 0]))),
            "say": spaces.Text(5, min_length=0, charset="ho!"),
        }
    )
    observation_space = spaces.Dict(
        {
            "camera": spaces.Box(0, 255, (32, 32, 3), np.uint8),
            "place": spaces.Box(-9, 9, (2,), np.float64),
            "heard": spaces.Sequence(spaces.Text(5, min_length=0, charset="ho!")),
            "target": spaces.Tuple((spaces.Discrete(3), spaces.Discrete(3))),
        }
    )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._place = np.zeros(2)
        self._heard: tuple[str, ...] = ()
        self._target = tuple(self.np_random.integers(3, size=2).tolist())
        return self._see(), {"goal": np.array(self._target), "camera": self._see()["camera"]}

    def step(self, action: Any) -> tuple[Any, Any, Any, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        self._place = np.clip(self._place + action["move"], -9, 9)
        self._heard = (*self._heard, action["say"])[-3:]
        distance = np.abs(self._place - self._target).max()
        info = {"distance": np.array([distance]), "_distance": np.array([True]), "is_success": distance < 0.5}
        return self._see(), np.float32(-distance), distance < 0.5, False, info

    def _see(self) -> dict[str, Any]:
        camera = np.zeros((32, 32, 3), np.uint8)
        return {"camera": camera, "place": self._place, "heard": self._heard, "target": self._target}


gymnasium.register(id="Arm-v0", entry_point=Arm, max_episode_steps=20)
