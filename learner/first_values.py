"""What a critic said of trajectories when they were first trained: the centre of its clip at later uses.

Legend: P places of a trajectory where values are learnt, as in `critic.py`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

_PREFIX = "first_value/"


@dataclass(frozen=True, slots=True, eq=False)
class _Entry:
    step: int
    values: Tensor
    """At least [P] float32; what is behind is padding."""


class FirstValues:
    """By trajectory; the same on every rank, since any of them may be given it the next time.

    An entry is of no use, and forgotten, when all of its trajectory's tokens are older than the staleness bound: tokens
    of its first use were sampled by then.
    """

    def __init__(self, max_staleness: int) -> None:
        self._max_staleness = max_staleness
        self._entries: dict[str, _Entry] = {}

    def of(self, name: str) -> Tensor | None:
        """Values at a trajectory's first use; None at the first one."""
        entry = self._entries.get(name)
        return None if entry is None else entry.values

    def keep(
        self,
        sizes: Mapping[str, int],
        own: Mapping[str, Tensor],
        step: int,
        sum_over_ranks: Callable[[Tensor], Tensor],
    ) -> None:
        """Keep values of the trajectories that have none yet; all ranks together.

        Args:
            sizes: of all trajectories of the step, in the same order on every rank: no fewer than P.
            own: [P] of those that this rank ran.
            step: of this use.
            sum_over_ranks: elementwise.
        """
        self._entries = {n: e for n, e in self._entries.items() if step - e.step <= self._max_staleness}
        new = {name: size for name, size in sizes.items() if name not in self._entries}
        flat = torch.zeros(sum(new.values()))
        parts = dict(zip(new, flat.split(list(new.values())), strict=True))
        for name in own.keys() & new.keys():
            parts[name][: len(own[name])] = own[name]
        sum_over_ranks(flat)
        # each of its own memory, so that one that is forgotten is freed
        self._entries |= {name: _Entry(step, part.clone()) for name, part in parts.items()}

    def state(self) -> tuple[dict[str, Tensor], dict[str, int]]:
        """Tensors for a checkpoint, and the step of each trajectory's first use."""
        tensors = {f"{_PREFIX}{name}": entry.values for name, entry in self._entries.items()}
        return tensors, {name: entry.step for name, entry in self._entries.items()}

    def load(self, read: Callable[[str], Tensor], steps: Mapping[str, int]) -> None:
        """Take up what `state` gave, and nothing else."""
        self._entries = {name: _Entry(step, read(f"{_PREFIX}{name}")) for name, step in steps.items()}
