"""What an engine counts about itself."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class Phase:
    """Time and work of one kind of forward."""

    num_forwards: int = 0
    num_tokens: int = 0
    """Tokens fed."""
    wall_s: float = 0.0
    cpu_s: float = 0.0
    """Of the whole process, all threads."""

    @contextmanager
    def measure(self, num_tokens: int) -> Iterator[None]:
        """Count what runs inside as one forward of so many tokens."""
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self.wall_s += time.perf_counter() - wall
        self.cpu_s += time.process_time() - cpu
        self.num_forwards += 1
        self.num_tokens += num_tokens


@dataclass(slots=True, kw_only=True)
class EngineStats:
    """Counters since the engine was built."""

    prefill: Phase = field(default_factory=Phase)
    """Forwards that feed given tokens."""
    decode: Phase = field(default_factory=Phase)
    """Forwards that sample a token for each token that they feed."""
    num_forked: int = 0
    """Times that a session began with a copy of its parent's state."""
    num_missed: int = 0
    """Times that a session whose state was gone was fed again from its tokens."""
    num_graphs: int = 0
    """Sizes of decoding steps that were captured as graphs, on a GPU."""
    num_eager_steps: int = 0
    """Decoding steps on a GPU that no graph could serve: with top-p or top-k, or in another type than bf16."""
