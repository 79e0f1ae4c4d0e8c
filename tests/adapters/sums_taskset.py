"""A taskset of `verifiers` for tests: sums, with two rewards and a metric."""

from collections.abc import Iterator

from verifiers import v1 as vf

__all__ = ["SumTaskset"]


class SumData(vf.TaskData):
    """A sum and what it comes to."""

    answer: int


class SumTask(vf.Task[SumData]):
    """Pays for the right number, and a little for a number at all."""

    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        """The number."""
        return float(trace.last_reply == str(self.data.answer))

    @vf.reward(weight=0.1)
    async def is_number(self, trace: vf.Trace) -> float:
        """Its form."""
        return float(trace.last_reply.isdigit())

    @vf.metric
    async def length(self, trace: vf.Trace) -> float:
        """Characters of the answer."""
        return float(len(trace.last_reply))


class SumConfig(vf.TasksetConfig):
    """How many."""

    count: int = 10


class SumTaskset(vf.Taskset[SumTask, SumConfig]):
    """i + 2·i for each i."""

    def load(self) -> Iterator[SumTask]:
        """One after the other."""
        for i in range(self.config.count):
            yield SumTask(
                SumData(prompt=f"{i} + {2 * i}?", system_prompt="Answer with a number.", answer=3 * i), self.config.task
            )
