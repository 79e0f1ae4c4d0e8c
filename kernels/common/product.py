"""Matrix products whose rows have the same bits whatever other rows there are, on a CPU.

With MKL_CBWR=AUTO,STRICT, which `conf/environment.py` sets, and on Intel's processors a row of a product depends on
nothing but itself and the matrix, except where torch does not ask for a product of matrices: for one row, and for few
numbers. On others MKL has no such mode, and takes rows by four, those left over in another order. So rows come by four
here.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

ROW_BLOCK = 4
MIN_MULTIPLICATIONS = 400
"""Matrices that take fewer are multiplied by loops of torch's own."""


def linear(x_NI: Tensor, weight_OI: Tensor) -> Tensor:
    """`x_NI @ weight_OI.T`, [N, O]; carries gradient.

    By torch's own name: ZeRO's stage 3 puts another function there, which does not hold the gathered weight until the
    backward.
    """
    return F.linear(_by_fours(x_NI), weight_OI)[: len(x_NI)]


def product(x_NI: Tensor, matrix_IO: Tensor) -> Tensor:
    """`x_NI @ matrix_IO`, [N, O]; carries gradient."""
    return torch.mm(_by_fours(x_NI), matrix_IO)[: len(x_NI)]


def batched_product(x_BNI: Tensor, matrix_BIO: Tensor) -> Tensor:
    """`torch.bmm`, [B, N, O]; carries gradient."""
    least = -(-MIN_MULTIPLICATIONS // max(1, matrix_BIO.shape[1] * matrix_BIO.shape[2]))
    return torch.bmm(_by_fours(x_BNI, least), matrix_BIO)[:, : x_BNI.shape[1]]


def _by_fours(x: Tensor, least: int = 0) -> Tensor:
    """On a CPU with rows of zeros behind its own, up to a multiple of `ROW_BLOCK` that is no less than `least`."""
    num_rows = x.shape[-2]
    missing = -(-max(num_rows, least) // ROW_BLOCK) * ROW_BLOCK - num_rows
    return x if x.is_cuda or not missing else F.pad(x, (0, 0, 0, missing))
