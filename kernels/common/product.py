"""Batched matrix products whose rows have the same bits whatever other rows there are.

With MKL_CBWR=AUTO,STRICT, which `conf/environment.py` sets, a row of a product depends on nothing but itself and the
matrix, except where torch does not ask for a product of matrices: for one row, and for few numbers.
"""

import torch
from torch import Tensor

MIN_MULTIPLICATIONS = 400
"""Matrices that take fewer are multiplied by loops of torch's own."""


def batched_product(x_BNI: Tensor, matrix_BIO: Tensor) -> Tensor:
    """`torch.bmm`, [B, N, O]."""
    num_rows, per_row = x_BNI.shape[1], matrix_BIO.shape[1] * matrix_BIO.shape[2]
    if x_BNI.is_cuda or (num_rows > 1 and num_rows * per_row >= MIN_MULTIPLICATIONS):
        return torch.bmm(x_BNI, matrix_BIO)
    # copies, not views: of views torch copies the matrices
    num_copies = max(2, -(-MIN_MULTIPLICATIONS // max(1, num_rows * per_row)))
    return torch.bmm(torch.cat([x_BNI] * num_copies, 1), matrix_BIO)[:, :num_rows]
