"""What an agent asks of environments: `EnvClient` answers from worker processes, `LocalEnvironments` from this one."""

from typing import Any, Protocol

from segue.conf.schema import EnvConfig
from segue.envs.episodes import EpisodeTable
from segue.envs.factory import EnvFactory
from segue.envs.reply import ResetReply, StepReply
from segue.envs.tool import ToolCall


class Environments(Protocol):
    """Episodes by name. Calls of one episode come one after another.

    Every method but `close` may raise `EnvironmentFailure` (the episode's own fault) or `InfrastructureFailure`.
    """

    async def reset(self, episode_id: str, seed: int, options: dict[str, Any] | None) -> ResetReply:
        """Begin an episode under a new name."""

    async def step(self, episode_id: str, call: ToolCall) -> StepReply:
        """Run one call."""

    async def expert(self, episode_id: str, skill: str) -> dict[str, Any]:
        """The demonstrator's next turn: `{"response": str, "calls": [{"name": str, "arguments": dict}, ...]}`."""

    async def close(self, episode_id: str) -> None:
        """End an episode, if it is open."""


class LocalEnvironments:
    """Environments in this process: fast, and for trusted calls only, such as a demonstrator's."""

    def __init__(self, config: EnvConfig) -> None:
        self._episodes = EpisodeTable(EnvFactory(config, isolate=False), config.max_observation_chars)

    async def reset(self, episode_id: str, seed: int, options: dict[str, Any] | None) -> ResetReply:
        """See `Environments`."""
        return self._episodes.reset(episode_id, seed, options)

    async def step(self, episode_id: str, call: ToolCall) -> StepReply:
        """See `Environments`."""
        return self._episodes.step(episode_id, call)

    async def expert(self, episode_id: str, skill: str) -> dict[str, Any]:
        """See `Environments`."""
        return self._episodes.expert(episode_id, skill)

    async def close(self, episode_id: str) -> None:
        """See `Environments`."""
        self._episodes.close(episode_id)
