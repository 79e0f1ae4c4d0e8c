"""A taskset of `verifiers` for tests whose tasks have tools: how many mint are there?"""

import asyncio
from collections.abc import Iterator

from verifiers import v1 as vf

__all__ = ["StockTaskset"]


class StockData(vf.TaskData):
    """What there is."""

    mint: int


class Stock(vf.Toolset[vf.ToolsetConfig]):
    """Counts."""

    async def setup_task(self, task: StockData) -> None:
        """Of a task."""
        self.left = {"mint": task.mint}

    @vf.tool
    async def count(self, item: str) -> int:
        """How many are there."""
        return self.left[item]


class SlowStock(Stock):
    """Counts, and waits."""

    TOOL_PREFIX = "stock"

    @vf.tool
    async def wait(self, seconds: float) -> str:
        """Waits."""
        await asyncio.sleep(seconds)
        return "waited"


class StockTaskConfig(vf.TaskConfig):
    """With which tools."""

    waits: bool = True


class StockTask(vf.Task[StockData, vf.State, StockTaskConfig]):
    """Pays for the right number, and for having looked."""

    @classmethod
    def toolsets(cls, config: StockTaskConfig) -> list[vf.Toolset]:
        """One."""
        return [(SlowStock if config.waits else Stock)(vf.ToolsetConfig())]

    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        """The number."""
        return float(trace.last_reply == str(self.data.mint))

    @vf.reward
    async def looked(self, trace: vf.Trace) -> float:
        """Calls of tools."""
        return float(sum(node.message.role == "tool" for node in trace.nodes))


class StockConfig(vf.TasksetConfig):
    """With which tools."""

    task: StockTaskConfig = StockTaskConfig()


class StockTaskset(vf.Taskset[StockTask, StockConfig]):
    """As many as the place in the taskset says."""

    def load(self) -> Iterator[StockTask]:
        """One after the other."""
        for mint in range(5):
            yield StockTask(StockData(prompt="how many?", mint=mint), self.config.task)
