"""Weights without a start value: they are drawn by `SegueModel.init_weights` or read from a checkpoint."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from segue.kernels.norm.op import rms_norm


class Linear(nn.Module):
    """Matrix without bias."""

    def __init__(self, num_inputs: int, num_outputs: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_outputs, num_inputs, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        """[..., num_inputs] to [..., num_outputs]."""
        return F.linear(x, self.weight)


class RmsNorm(nn.Module):
    """Root-mean-square norm; statistics in at least float32, weight applied in the input's dtype."""

    def __init__(self, size: int, eps: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(size, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        """Norm over the last dimension."""
        return rms_norm(x, self.weight, self.eps)


class Embedding(nn.Module):
    """Table of token vectors."""

    def __init__(self, num_tokens: int, size: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_tokens, size, dtype=dtype))

    def forward(self, token_ids: Tensor) -> Tensor:
        """[T] int64 to [T, size]."""
        return F.embedding(token_ids, self.weight)


class ShortConv(nn.Module):
    """Taps of a depthwise causal convolution, the last for the current token; at least float32."""

    def __init__(self, num_channels: int, num_taps: int, dtype: torch.dtype) -> None:
        super().__init__()
        wide = torch.promote_types(dtype, torch.float32)
        self.weight = nn.Parameter(torch.empty(num_channels, 1, num_taps, dtype=wide))
