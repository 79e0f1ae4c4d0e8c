"""Muon: a matrix moves along its orthogonalised momentum, block by block.

    M <- mu M + G
    O = NewtonSchulz(G + mu M) * 0.2 sqrt(max(R, C))        with Nesterov's look ahead
    W <- W - lr (O + decay W)

Legend: N blocks, R rows and C columns of a block.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

MOMENTUM = "momentum_buffer"
"""What Muon keeps of each of its parameters."""

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_EPS = 1e-7
_UPDATE_RMS = 0.2

Blocks = tuple[int, int, int]
"""(N, R, C): a parameter's rows in order, cut into N matrices, each orthogonalised by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """What one of the optimiser's tensors holds of a parameter; both are meant flat."""

    name: str
    """Of the parameter."""
    offset: int
    """Where in the optimiser's tensor it begins."""
    start: int
    """Where in the parameter."""
    numel: int
    """0 where another rank holds all of it."""
    is_split: bool
    """Several ranks hold parts of the parameter; the same on all of them."""


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
    gradient arrives raw, averaged and clipped; matrices are made whole here, those of one rank without communication.

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
        self._shards: Mapping[Tensor, Sequence[Shard]] = {
            parameter: [Shard(name=name, offset=0, start=0, numel=parameter.numel(), is_split=False)]
            for parameter, name in names.items()
        }
        self._sum_over_ranks: Callable[[Tensor], Tensor] = lambda tensor: tensor

    def place(self, shards: Mapping[Tensor, Sequence[Shard]], sum_over_ranks: Callable[[Tensor], Tensor]) -> None:
        """Say what the tensors that ZeRO puts into the groups hold.

        Args:
            shards: the parameters of each tensor, in the same order on all ranks.
            sum_over_ranks: elementwise, in place.
        """
        self._shards, self._sum_over_ranks = shards, sum_over_ranks

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
        for shard in self._shards[tensor]:
            held = slice(shard.offset, shard.offset + shard.numel)
            ahead = self._whole(grad[held].add(momentum[held], alpha=group["momentum"]), shard)
            if not shard.numel:
                continue
            _, num_rows, num_columns = self.blocks[shard.name]
            part = slice(shard.start, shard.start + shard.numel)
            # of many ranks that share a stack of experts each holds a few
            first, last = part.start // (num_rows * num_columns), -(-part.stop // (num_rows * num_columns))
            own = slice(part.start - first * num_rows * num_columns, part.stop - first * num_rows * num_columns)
            direction = orthogonalise(ahead[first:last], group["ns_steps"]).reshape(-1)[own]
            size = _UPDATE_RMS * max(num_rows, num_columns) ** 0.5
            values[held].mul_(1.0 - group["lr"] * group["weight_decay"]).add_(direction, alpha=-group["lr"] * size)
            if shard.name in self.row_factors:
                values[held].mul_(self.row_factors[shard.name].to(values).repeat_interleave(num_columns)[part])

    def _whole(self, part: Tensor, shard: Shard) -> Tensor:
        """A parameter's blocks [N, R, C] from the parts that the ranks hold."""
        blocks = self.blocks[shard.name]
        if shard.is_split:
            num_blocks, num_rows, num_columns = blocks
            whole = part.new_zeros(num_blocks * num_rows * num_columns)
            whole[shard.start : shard.start + shard.numel] = part
            part = self._sum_over_ranks(whole)
        return part.view(blocks) if part.numel() else part
