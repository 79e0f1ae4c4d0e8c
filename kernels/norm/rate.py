"""Reciprocal root mean square of rows, in few calls: a decoding step takes it some twenty times."""

import torch
from torch import Tensor

from segue.kernels.common.constant import constant


def inverse_rms(x: Tensor, eps: float) -> Tensor:
    """`1 / sqrt(mean(x^2) + eps)` over the last dimension, which stays with size 1; at least fp32."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=dtype)
    return torch.addcmul(constant(eps, dtype, x.device), norm, norm, value=1.0 / x.shape[-1]).rsqrt_()
