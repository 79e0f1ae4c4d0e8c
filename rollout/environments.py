"""What an agent asks of environments; `EnvClient` answers it from worker processes."""

from typing import Any, Protocol

from segue.envs.episode_record import EpisodeRecord
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

    async def record(self, episode_id: str) -> EpisodeRecord:
        """What `restore` needs to go on from here."""

    async def restore(self, episode_id: str, seed: int, record: EpisodeRecord) -> None:
        """Go on with a recorded episode under a new name.

        Raises:
            RestoreFailure: it does not come back as it was, and never will.
        """

    async def close(self, episode_id: str) -> None:
        """End an episode, if it is open."""
