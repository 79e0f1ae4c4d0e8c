"""How packed, ragged sequences are cut into chunks of 16 tokens for the chunk form.

Sequences are ranked by their number of chunks, the longest first, and chunks lie chunk-index-major: first chunk 0 of
every sequence, then chunk 1 of every sequence that has one. So the scan over chunk indices always works on
a contiguous slice, and all other work is flat over all chunks, without padding but for the last chunk's.

T tokens, N sequences, H heads, B tiles (one per chunk and head), C tokens of a tile.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

CHUNK = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class ChunkLayout:
    """Index arrays between token rows [T*H] and tile rows [B*C], and the slices of the scan."""

    num_tiles: int
    num_heads: int
    rows: Tensor
    """int64 [B*C]: token row (t*H + h) of each tile row; rows past a sequence's end repeat its last token."""
    padding: Tensor
    """int64: tile rows past their sequence's end."""
    inverse: Tensor
    """int64 [T*H]: tile row of each token row."""
    order: Tensor
    """int64 [N]: sequences by number of chunks, descending."""
    rank: Tensor
    """int64 [N]: inverse of `order`."""
    steps: tuple[tuple[int, int], ...]
    """Per chunk index: first tile of its slice, and number of tiles (sequences that reach this far, times heads)."""

    @property
    def is_token(self) -> Tensor:
        """bool [B, C]: False past the sequence's end."""
        is_token = torch.ones(self.num_tiles * CHUNK, dtype=torch.bool, device=self.rows.device)
        return is_token.index_fill_(0, self.padding, 0).view(-1, CHUNK)

    def to_tiles(self, x_TH: Tensor) -> Tensor:
        """[T, H, D] -> [B, C, D]; padding rows repeat a token."""
        return x_TH.flatten(0, 1).index_select(0, self.rows).unflatten(0, (-1, CHUNK))

    def to_tokens(self, tiles: Tensor) -> Tensor:
        """[B, C, D] -> [T, H, D]."""
        return tiles.flatten(0, 1).index_select(0, self.inverse).unflatten(0, (-1, self.num_heads))

    def to_ranked(self, state_NHVK: Tensor) -> Tensor:
        """[N, H, V, K] -> [N*H, K, V], the sequences in `order`."""
        return state_NHVK.index_select(0, self.order).flatten(0, 1).mT.contiguous()

    def from_ranked(self, state: Tensor) -> Tensor:
        """[N*H, K, V] -> [N, H, V, K], undoing `to_ranked`."""
        return state.mT.unflatten(0, (-1, self.num_heads)).index_select(0, self.rank)


# outside inference mode, so that whoever asks first leaves indices that autograd may keep
@lru_cache(maxsize=8)
@torch.inference_mode(False)
def chunk_layout(bounds: tuple[int, ...], num_heads: int, device: torch.device) -> ChunkLayout:
    """Lay sequences [bounds[n], bounds[n+1]) out in chunks.

    Args:
        bounds: N+1 ascending token indices, from 0.
    """
    bounds_N = torch.tensor(bounds)
    chunks_N = (bounds_N.diff() + CHUNK - 1) // CHUNK
    order = torch.argsort(chunks_N, descending=True, stable=True)
    max_chunks = int(chunks_N.max())
    counts = (chunks_N[:, None] > torch.arange(max_chunks)).sum(0)
    firsts = counts.cumsum(0) - counts
    index = torch.repeat_interleave(counts)
    sequence = order[torch.arange(len(index)) - firsts[index]]
    start = bounds_N[sequence] + CHUNK * index
    tokens = start[:, None] + torch.arange(CHUNK)
    last = bounds_N[sequence + 1, None] - 1
    heads = torch.arange(num_heads)[:, None]
    rows = (tokens.minimum(last)[:, None] * num_heads + heads).flatten()
    is_padding = (tokens > last)[:, None].expand(-1, num_heads, -1).flatten()
    inverse = torch.empty(bounds[-1] * num_heads, dtype=torch.int64)
    inverse[rows[~is_padding]] = (~is_padding).nonzero()[:, 0]
    return ChunkLayout(
        num_tiles=len(index) * num_heads,
        num_heads=num_heads,
        rows=rows.to(device),
        padding=is_padding.nonzero()[:, 0].to(device),
        inverse=inverse.to(device),
        order=order.to(device),
        rank=torch.argsort(order).to(device),
        steps=tuple(zip((firsts * num_heads).tolist(), (counts * num_heads).tolist(), strict=True)),
    )
