"""Muon: a matrix moves along its orthogonalised momentum, block by block.

    M <- mu M + G
    O = NewtonSchulz(G + mu M) * 0.2 sqrt(max(R, C))        with Nesterov's look ahead
    W <- W - lr (O + decay W)

Legend: N blocks, R rows and C columns of a block.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from segue.learner.muon_plan import Blocks, Bucket, Part, Plan, Shard, numel, plan_updates

MOMENTUM = "momentum_buffer"
"""What Muon keeps of each of its parameters."""

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_EPS = 1e-7
_UPDATE_RMS = 0.2

Exchange = Callable[[Tensor, list[int], list[int]], Callable[[], Tensor]]
"""Elements for the ranks in order, how many go to each, and how many come from each; what waits for those that come."""

Item = TypeVar("Item")


def orthogonalise(matrices_NRC: Tensor, num_steps: int) -> Tensor:
    """Each matrix with its singular vectors as they are and its singular values moved near 1.

    Args:
        matrices_NRC: any dtype; computed in at least float32.
        num_steps: of the iteration; after five, singular values that were above a hundredth of the Frobenius norm are
            in [0.68, 1.14].
    Returns:
        [N, R, C], zero where a matrix is zero.
    Example:
        diag(3, 4) has the norm 5, so singular values 0.6 and 0.8; one step takes s to
        3.4445 s - 4.775 s^3 + 2.0315 s^5: 1.1933 and 0.9765.
    Source:
        Keller Jordan, Muon, 2024 (coefficients); batched over blocks as Kimi K3 report, arXiv 2607.24653, sec. 2.5.
    """
    a, b, c = _COEFFICIENTS
    x = matrices_NRC.to(torch.promote_types(matrices_NRC.dtype, torch.float32))
    is_tall = x.shape[1] > x.shape[2]
    x = x.mT if is_tall else x
    x = x / (torch.linalg.matrix_norm(x, keepdim=True) + _EPS)
    for _ in range(num_steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if is_tall else x


class Muon(torch.optim.AdamW):
    """Muon for the groups whose `is_muon` is true, torch's AdamW for the others.

    Under ZeRO a group is one flat tensor, which holds the parts of its parameters that this rank updates (`place`). Its
    gradient arrives raw, averaged and clipped. Every matrix is made orthogonal on one rank: see `muon_plan`.

    Invariants:
        Updates equal the definition whatever the stage and number of ranks: tests/unit/learner/test_muon.py,
        tests/e2e/test_deepspeed_exactness.py.
    Source:
        Muon is Scalable for LLM Training, arXiv 2502.16982, sec. 2.2: the factor that gives the update AdamW's size.
    """

    def __init__(
        self, groups: Iterable[dict[str, Any]], names: Mapping[Tensor, str], blocks: Mapping[str, Blocks]
    ) -> None:
        """Args:
        groups: each with `is_muon`, and parameters of one dtype.
        names: of the parameters.
        blocks: of every parameter in a group with `is_muon`, by name.
        """
        super().__init__(groups)
        self.blocks = blocks
        self.row_factors: Mapping[str, Tensor] = {}
        """Name to a factor for each row, [N * R], by which the updated parameter is multiplied."""
        own = {
            parameter: [Shard(name=name, offset=0, borders=np.array([0, parameter.numel()]))]
            for parameter, name in names.items()
        }
        self.place(own, 0, lambda parts, *_: lambda: parts)

    def place(self, shards: Mapping[Tensor, Sequence[Shard]], rank: int, exchange: Exchange) -> None:
        """Say what the tensors that ZeRO puts into the groups hold.

        Args:
            shards: the parameters of each tensor, in the same order on all ranks.
            rank: of this process.
            exchange: between all ranks; returns at once.
        """
        # a group is AdamW's as a whole
        moved = {tensor: held for tensor, held in shards.items() if held[0].name in self.blocks}
        self._plans: Mapping[Tensor, Plan] = plan_updates(moved, self.blocks, rank)
        self._exchange = exchange

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter of the present groups; under ZeRO all ranks together."""
        groups = self.param_groups
        for group in groups:
            for tensor in group["params"] if group["is_muon"] else ():
                self._move(tensor, group)
        self.param_groups = [group for group in groups if not group["is_muon"]]
        super().step()
        self.param_groups = groups

    def _move(self, tensor: Tensor, group: Mapping[str, Any]) -> None:
        assert tensor.grad is not None, tensor.shape
        state = self.state[tensor]
        if MOMENTUM not in state:
            state[MOMENTUM] = torch.zeros_like(tensor)
        momentum = state[MOMENTUM].mul_(group["momentum"]).add_(tensor.grad)
        values, momentum, grad = tensor.view(-1), momentum.view(-1), tensor.grad.view(-1)

        def look_ahead(part: Part) -> Tensor:
            return grad[part.held].add(momentum[part.held], alpha=group["momentum"])

        plan = self._plans[tensor]
        # a bucket's directions travel back while the next one's are computed
        directions = _one_ahead(self._directions(plan.buckets, look_ahead, grad[:0], group["ns_steps"]))
        for bucket, arrive in zip(plan.buckets, directions, strict=True):
            own = arrive().split([numel(part.held) for part in bucket.parts])
            for part, direction in zip(bucket.parts, own, strict=True):
                self._add(values[part.held], part, direction, group)
        for part in plan.whole:
            _, num_rows, num_columns = self.blocks[part.name]
            matrices = look_ahead(part).view(-1, num_rows, num_columns)
            self._add(values[part.held], part, orthogonalise(matrices, group["ns_steps"]).reshape(-1), group)

    def _directions(
        self, buckets: Sequence[Bucket], look_ahead: Callable[[Part], Tensor], nothing: Tensor, num_steps: int
    ) -> Iterator[Callable[[], Tensor]]:
        """What waits for the directions of each bucket's parts, one after the other.

        Args:
            buckets: of one tensor.
            look_ahead: what a part gives to be orthogonalised.
            nothing: [0], of the dtype and device of what travels: a rank may hold no part.
            num_steps: of the iteration.
        """
        gathers = (
            self._exchange(torch.cat([nothing, *map(look_ahead, bucket.parts)]), bucket.num_sent, bucket.num_received)
            for bucket in buckets
        )
        for bucket, arrive in zip(buckets, _one_ahead(gathers), strict=True):
            arrived = arrive()
            matrices = torch.empty_like(arrived)
            sizes = [numel(place) for place in bucket.places]
            for place, part in zip(bucket.places, arrived.split(sizes), strict=True):
                matrices[place] = part
            batches = matrices.split([n * r * c for n, r, c in bucket.matrices])
            for batch, shape in zip(batches, bucket.matrices, strict=True):
                batch.copy_(orthogonalise(batch.view(shape), num_steps).reshape(-1))
            back = torch.cat([nothing, *(matrices[place] for place in bucket.places)])
            yield self._exchange(back, bucket.num_received, bucket.num_sent)

    def _add(self, values: Tensor, part: Part, direction: Tensor, group: Mapping[str, Any]) -> None:
        """Move the values of a part."""
        _, num_rows, num_columns = self.blocks[part.name]
        size = _UPDATE_RMS * max(num_rows, num_columns) ** 0.5
        values.mul_(1.0 - group["lr"] * group["weight_decay"]).add_(direction, alpha=-group["lr"] * size)
        if part.name in self.row_factors:
            rows = torch.arange(part.elements.start, part.elements.stop, device=values.device) // num_columns
            values.mul_(self.row_factors[part.name].to(values)[rows])


def _one_ahead(items: Iterator[Item]) -> Iterator[Item]:
    """The same, each drawn before the one in front of it is used."""
    return (item for item, _ in pairwise(chain(items, [None])))  # type: ignore[misc]
