"""A server of the `openenv` package with two environments: `python openenv_server.py guess|store <port>`."""

import sys
from random import Random
from typing import Any

import uvicorn
from openenv.core.env_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field


class Guess(Action):
    """An action of one number."""

    number: int = Field(ge=1, le=15, description="The guess.")


class Answer(Observation):
    """What is said of it."""

    message: str


class GuessEnvironment(Environment[Guess, Answer, State]):
    """A number from 1 to 15 to be found; 1 for finding it, and the end at the fourth guess."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._state = State()

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        most: int = 15,
        unlucky: int | None = None,
        **kwargs: Any,
    ) -> Answer:
        """Thinks of the seed's number; an unlucky one raises when it is guessed."""
        self._unlucky = unlucky
        self._number = Random(seed).randint(1, most)
        self._state = State(episode_id=episode_id, step_count=0)
        return Answer(message=f"a number from 1 to {most}")

    def step(self, action: Guess, timeout_s: float | None = None, **kwargs: Any) -> Answer:
        """Says whether it is higher."""
        if action.number == self._unlucky:
            raise RuntimeError("no luck")
        self._state.step_count += 1
        if action.number == self._number:
            return Answer(message="right", reward=1.0, done=True)
        words = "higher" if action.number < self._number else "lower"
        return Answer(message=words, reward=0.0, done=self._state.step_count == 4)

    @property
    def state(self) -> State:
        """Counts."""
        return self._state


class StoreEnvironment(MCPEnvironment):
    """Tools of an MCP server inside of the environment."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        from fastmcp import FastMCP

        server = FastMCP("store")
        self._state = State()
        self._left = 0

        @server.tool
        def count() -> int:
            """How many are there."""
            return self._left

        @server.tool
        def take(number: int, why: str | None = None) -> str:
            """Takes some."""
            if number > self._left:
                raise ValueError("not so many")
            self._left -= number
            return f"took {number}"

        super().__init__(server)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Observation:
        """Fills the store."""
        self._left = Random(seed).randint(1, 9)
        return Observation(done=False, reward=0.0, metadata={"task": "empty the store"})

    def _step_impl(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        raise NotImplementedError

    def step(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        """Pays when it is empty."""
        return self._paid(super().step(action, timeout_s=timeout_s, **kwargs))

    async def step_async(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        """The same, as the server calls it."""
        return self._paid(await super().step_async(action, timeout_s=timeout_s, **kwargs))

    def _paid(self, observation: Observation) -> Observation:
        observation.done = self._left == 0
        observation.reward = float(observation.done)
        return observation

    @property
    def state(self) -> State:
        """Counts."""
        return self._state


if sys.argv[1] == "guess":
    app = create_app(GuessEnvironment, Guess, Answer, env_name="guess", max_concurrent_envs=3)
else:
    app = create_app(StoreEnvironment, CallToolAction, CallToolObservation, env_name="store", max_concurrent_envs=3)
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[2]), log_level="warning")
