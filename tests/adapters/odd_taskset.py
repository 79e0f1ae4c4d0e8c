"""A taskset of `verifiers` for tests whose tasks need what is not here, or fail in scoring; `kind` says which."""

import asyncio
from collections.abc import Iterator

from verifiers import v1 as vf

__all__ = ["OddTaskset"]


class FailingTask(vf.Task[vf.TaskData]):
    """Fails as the answer tells it to."""

    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        """One, if nothing is wrong."""
        match trace.last_reply:
            case "raise":
                raise ValueError("no such reward")
            case "judge":
                raise vf.ProviderError("down")
            case "hang":
                await asyncio.sleep(60)
        return 1.0


class BoxedTask(FailingTask):
    """Wants a container."""

    NEEDS_CONTAINER = True


class LookingTask(FailingTask):
    """Has a reward that reads what an agent left."""

    @vf.reward
    async def look(self, trace: vf.Trace, runtime: vf.Runtime) -> float:
        """Its files."""
        return float(len(await runtime.read("answer.txt")))


class PreparedTask(FailingTask):
    """Wants something done before it begins."""

    async def setup(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        """A file."""
        await runtime.write("question.txt", b"?")


class Found(vf.State):
    """What was found."""

    found: int = 0


class Search(vf.Toolset[vf.ToolsetConfig, Found]):
    """A tool server with a state that it shares with the task."""


class ToolTask(FailingTask):
    """Wants that server."""

    @classmethod
    def toolsets(cls, config: vf.TaskConfig) -> list[vf.Toolset]:
        """One."""
        return [Search(vf.ToolsetConfig())]


class FarTask(FailingTask):
    """Wants a server of another machine."""

    @classmethod
    def toolsets(cls, config: vf.TaskConfig) -> list[vf.Toolset]:
        """One."""
        return [Near(vf.ToolsetConfig(url="http://127.0.0.1:1"))]


class Near(vf.Toolset[vf.ToolsetConfig]):
    """A tool server without a state."""


class SilentTask(FailingTask):
    """Says nothing."""


class OddConfig(vf.TasksetConfig):
    """What is odd."""

    kind: str


class OddTaskset(vf.Taskset[FailingTask, OddConfig]):
    """One task of a kind, or no end of them."""

    def __init__(self, config: OddConfig) -> None:
        super().__init__(config)
        self.INFINITE = config.kind == "endless"

    def load(self) -> Iterator[FailingTask]:
        """The task."""
        kinds = {
            "boxed": BoxedTask,
            "far": FarTask,
            "looking": LookingTask,
            "prepared": PreparedTask,
            "silent": SilentTask,
            "tools": ToolTask,
        }
        task = kinds.get(self.config.kind, FailingTask)
        prompt = None if task is SilentTask else "what?"
        yield task(vf.TaskData(prompt=prompt), self.config.task)
        while self.INFINITE:
            yield task(vf.TaskData(prompt=prompt), self.config.task)
