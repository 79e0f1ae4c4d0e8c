"""How the GPU kernels cut packed, ragged sequences into chunks of 64 tokens, and how often that costs a wait.

T tokens, N sequences, B chunks.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import torch
from torch import Tensor

from segue.kernels.common.offsets import read_offsets

CHUNK = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class ChunkTable:
    """Chunks lie sequence after sequence; all tensors are int32 on the device."""

    num_chunks: int
    chunks: Tensor
    """[B, 2]: first token of each chunk, and the end of its sequence."""
    sequences: Tensor
    """[N, 4]: sequence, its first token, its end, its first chunk; the longest sequences first."""


def chunk_table(offsets_N: Tensor, num_tokens: int, num_sequences: int, device: torch.device) -> ChunkTable:
    """Table of the sequences [offsets[n], offsets[n+1]).

    Args:
        offsets_N: int64 [N+1] on any device. Offsets on the CPU never wait for the GPU; others as `read_offsets` says.
        num_tokens: what the last offset must be.
        num_sequences: N.
        device: where the table lies.
    Raises:
        ValueError: the offsets do not rise from 0 to `num_tokens` over N sequences.
    """
    bounds = read_offsets(offsets_N)
    if bounds[0] != 0 or bounds[-1] != num_tokens or len(bounds) != num_sequences + 1:
        raise ValueError(f"offsets must rise from 0 to {num_tokens} over {num_sequences} sequences, got {bounds}")
    return _table(bounds, device)


@lru_cache(maxsize=16)
def _table(bounds: tuple[int, ...], device: torch.device) -> ChunkTable:
    chunks: list[tuple[int, int]] = []
    sequences: list[tuple[int, int, int, int]] = []
    for n, (start, end) in enumerate(pairwise(bounds)):
        sequences.append((n, start, end, len(chunks)))
        chunks += [(first, end) for first in range(start, end, CHUNK)]
    sequences.sort(key=lambda row: row[1] - row[2])
    # outside inference mode, so that whoever asks first leaves a table that autograd may keep
    with torch.inference_mode(False):
        return ChunkTable(
            num_chunks=len(chunks),
            chunks=torch.tensor(chunks, dtype=torch.int32).view(-1, 2).to(device),
            sequences=torch.tensor(sequences, dtype=torch.int32).to(device),
        )
