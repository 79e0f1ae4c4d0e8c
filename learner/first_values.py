"""What a critic said of trajectories when they were first trained: the centre of its clip at later uses.

Legend: P places of a trajectory where values are learnt, as in `critic.py`.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

_PREFIX = "first_value/"


@dataclass(frozen=True, slots=True, eq=False)
class _Entry:
    step: int
    size: int
    """No less than P."""
    values: Tensor | None
    """[P] float32; None where another rank keeps them."""


class FirstValues:
    """By trajectory, each kept by the rank that ran it first; all ranks know of all.

    An entry is of no use, and forgotten, when all of its trajectory's tokens are older than the staleness bound: tokens
    of its first use were sampled by then.
    """

    def __init__(self, max_staleness: int, sum_over_ranks: Callable[[Tensor], Tensor]) -> None:
        """Args:
        max_staleness: `train.max_staleness`.
        sum_over_ranks: elementwise, in place.
        """
        self._max_staleness = max_staleness
        self._sum_over_ranks = sum_over_ranks
        self._entries: dict[str, _Entry] = {}

    def of(self, names: Iterable[str], own: Collection[str]) -> dict[str, Tensor]:
        """Values at their first use of trajectories that have had one; all ranks together.

        Args:
            names: of all trajectories of the step, in the same order on every rank.
            own: those that this rank runs.
        Returns:
            Of `own`; at least [P], what is behind is padding.
        """
        known = {name: self._entries[name] for name in names if name in self._entries}
        if not known:
            return {}
        flat = self._sum_over_ranks(torch.cat([_padded(entry) for entry in known.values()]))
        parts = dict(zip(known, flat.split([entry.size for entry in known.values()]), strict=True))
        return {name: parts[name] for name in own if name in parts}

    def keep(self, sizes: Mapping[str, int], own: Mapping[str, Tensor], step: int) -> None:
        """Keep values of the trajectories that have none yet.

        Args:
            sizes: of all trajectories of the step: no less than P.
            own: [P] of those that this rank ran.
            step: of this use.
        """
        self._entries = {n: e for n, e in self._entries.items() if step - e.step <= self._max_staleness}
        for name, size in sizes.items():
            if name not in self._entries:
                values = own[name].float().clone() if name in own else None
                self._entries[name] = _Entry(step, size, values)

    def layout(self) -> dict[str, Tensor]:
        """Tensors of a checkpoint, without values; the same on every rank."""
        return {f"{_PREFIX}{name}": torch.empty(entry.size, device="meta") for name, entry in self._entries.items()}

    def tensor(self, name: str) -> Tensor:
        """One of them; all ranks together."""
        return self._sum_over_ranks(_padded(self._entries[name.removeprefix(_PREFIX)]))

    def steps(self) -> dict[str, int]:
        """Of each trajectory's first use, for a checkpoint."""
        return {name: entry.step for name, entry in self._entries.items()}

    def load(self, read: Callable[[str], Tensor], steps: Mapping[str, int], *, rank: int, num_ranks: int) -> None:
        """Take up what a checkpoint holds, and nothing else: each rank its share."""
        self._entries = {}
        for number, (name, step) in enumerate(steps.items()):
            values = read(f"{_PREFIX}{name}")
            self._entries[name] = _Entry(step, len(values), values if number % num_ranks == rank else None)


def _padded(entry: _Entry) -> Tensor:
    values = torch.zeros(entry.size)
    if entry.values is not None:
        values[: len(entry.values)] = entry.values
    return values
