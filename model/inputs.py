"""What the model's forward reads.

Legend: T tokens of a packed row, N sequences.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(kw_only=True, slots=True)
class PackedInputs:
    """New tokens of several sequences, one after another in a single row without padding.

    Example: sequences (5, 6) and (7,) are token_ids (5, 6, 7) with offsets (0, 2, 3).
    """

    token_ids: Tensor
    """[T] int64."""
    offsets: Tensor
    """[N + 1] int64, from 0 to T; sequence n holds tokens offsets[n] up to offsets[n + 1], possibly none."""

    def __post_init__(self) -> None:
        if self.token_ids.dim() != 1 or self.offsets.dim() != 1 or self.offsets.numel() < 1:
            raise ValueError(
                "token_ids must be [T] and offsets [N + 1], "
                f"got {tuple(self.token_ids.shape)} and {tuple(self.offsets.shape)}"
            )

    @classmethod
    def pack(cls, sequences: Sequence[Tensor]) -> "PackedInputs":
        """Lay token rows ([T_n] int64 each, at least one row) one after another."""
        lengths = torch.tensor([0, *(len(sequence) for sequence in sequences)])
        token_ids = torch.cat(list(sequences))
        return cls(token_ids=token_ids, offsets=lengths.cumsum(0).to(token_ids.device))

    @property
    def num_sequences(self) -> int:
        """N."""
        return self.offsets.numel() - 1

    @property
    def lengths(self) -> Tensor:
        """Tokens of each sequence, [N] int64."""
        return self.offsets.diff()
