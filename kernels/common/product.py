"""Batched matrix products whose rows have the same bits whatever other rows there are.

With MKL_CBWR=AUTO,STRICT, which `conf/environment.py` sets, a row of a product depends on nothing but itself and the
matrix, except where a batched product has one row only: that is computed as a product with a vector.
"""

import torch
from torch import Tensor


def batched_product(x_BNI: Tensor, matrix_BIO: Tensor) -> Tensor:
    """`torch.bmm`, [B, N, O]."""
    if x_BNI.shape[1] == 1 and not x_BNI.is_cuda:
        # a second copy, not a second view: of views torch copies the matrices
        return torch.bmm(torch.cat([x_BNI, x_BNI], 1), matrix_BIO)[:, :1]
    return torch.bmm(x_BNI, matrix_BIO)
