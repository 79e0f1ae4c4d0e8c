"""Scalars as tensors, made once: torch makes one anew, and converts it, at every call with a Python number."""

from functools import lru_cache

import torch
from torch import Tensor


@lru_cache
def constant(value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor without dimensions; not to be written to."""
    # a tensor made under inference mode could not be saved for backward
    with torch.inference_mode(False):
        return torch.tensor(value, dtype=dtype, device=device)
