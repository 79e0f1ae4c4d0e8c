"""Where packed sequences begin: the tokens whose window reaches before their sequence.

T tokens, N sequences, W taps, M head tokens (the first W-1 of each sequence).
"""

import itertools
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class ConvLayout:
    """Indices of the head tokens and of all that they and the states touch.

    `edge` numbers refer to the rows [states, oldest first, sequence by sequence; then `edge_tokens`].
    """

    heads: Tensor
    """int64 [M]."""
    late_heads: Tensor
    """int64: head tokens from W-1 on, counted from there."""
    edge_tokens: Tensor
    """int64: the tokens that head tokens see or that new states hold, ascending."""
    windows: Tensor
    """int64 [M, W]: edge rows that each head token sees, oldest first."""
    states: Tensor
    """int64 [N*(W-1)]: edge rows of the new states."""


# outside inference mode, so that whoever asks first leaves indices that autograd may keep
@lru_cache(maxsize=8)
@torch.inference_mode(False)
def conv_layout(bounds: tuple[int, ...], num_taps: int, device: torch.device) -> ConvLayout:
    """Indices for sequences [bounds[n], bounds[n+1]).

    Args:
        bounds: N+1 ascending token indices, from 0.
    """
    num_before, num_sequences = num_taps - 1, len(bounds) - 1
    heads: list[int] = []
    edge_tokens: list[int] = []
    windows: list[list[int]] = []
    states: list[int] = []
    for n, (start, end) in enumerate(itertools.pairwise(bounds)):
        first_heads = range(start, min(start + num_before, end))
        first_tail = max(first_heads.stop, end - num_before)
        # edge rows of the sequence's state, its head tokens and its last tokens, in order
        rows = [n * num_before + i for i in range(num_before)]
        rows += [
            num_sequences * num_before + len(edge_tokens) + i
            for i in range(first_heads.stop - start + end - first_tail)
        ]
        windows += [rows[i : i + num_taps] for i in range(len(first_heads))]
        states += rows[len(rows) - num_before :]
        heads += first_heads
        edge_tokens += [*first_heads, *range(first_tail, end)]
    heads_M = torch.tensor(heads, dtype=torch.int64)
    return ConvLayout(
        heads=heads_M.to(device),
        late_heads=(heads_M[heads_M >= num_before] - num_before).to(device),
        edge_tokens=torch.tensor(edge_tokens, dtype=torch.int64, device=device),
        windows=torch.tensor(windows, dtype=torch.int64, device=device).view(-1, num_taps),
        states=torch.tensor(states, dtype=torch.int64, device=device),
    )
