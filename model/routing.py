"""The router's record of one forward: which experts each token took, and the statistics that balance them.

Legend: T tokens of a packed row, L layers with routed experts, k experts a token takes, E experts, B bins.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from segue.conf.schema import BalanceConfig
from segue.kernels.moe.op import Routes
from segue.kernels.quantile.op import margin_histogram


@dataclass(kw_only=True, slots=True)
class Routing:
    """One per forward, never used twice.

    Whether statistics are counted is told, never guessed from grad mode: a segment runs forward more than once but
    counts once. A layer records its first run only; when activation checkpointing runs it again, it takes the experts
    of that record and counts nothing.
    """

    count: bool = False
    """Fill the histogram from this forward's tokens (all of them)."""
    replay_ids: Tensor | None = None
    """[T, L, k] int64: experts to take instead of the router's own choice; weights are still the router's."""
    num_bins: int = field(default_factory=lambda: BalanceConfig().num_bins)
    """B of the histogram."""
    _expert_ids: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False)
    _histograms: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False)
    _num_experts: int = field(default=0, init=False, repr=False)

    def ids_to_replay(self, index: int) -> Tensor | None:
        """Experts that the index-th MoE layer must take, [T, k] int64; None lets its router choose."""
        if index in self._expert_ids:
            return self._expert_ids[index]
        return None if self.replay_ids is None else self.replay_ids[:, index]

    def record(self, index: int, routes: Routes, bias: Tensor) -> None:
        """Keep what the index-th MoE layer did; a later run of the same layer changes nothing."""
        if index in self._expert_ids:
            return
        self._expert_ids[index] = routes.expert_ids
        self._num_experts = bias.numel()
        if self.count:
            self._histograms[index] = margin_histogram(routes.scores.detach(), routes.cutoff, bias, self.num_bins)

    @property
    def expert_ids(self) -> Tensor:
        """Experts of each token, [T, L, k] int64."""
        return torch.stack([self._expert_ids[index] for index in sorted(self._expert_ids)], dim=1)

    @property
    def histogram(self) -> Tensor:
        """Router margins per expert, [L, E, B] int64; zeros when not counted."""
        if self.count:
            return torch.stack([self._histograms[index] for index in sorted(self._histograms)])
        # one zero seen everywhere: at full size most forwards would allocate what nobody reads
        zero = torch.zeros((), dtype=torch.int64, device=self._expert_ids[0].device)
        return zero.expand(len(self._expert_ids), self._num_experts, self.num_bins)
