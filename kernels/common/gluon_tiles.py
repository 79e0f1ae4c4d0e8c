"""Tensors as Gluon's kernels have the copy engine take them: tiles of their rows."""

import torch
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

# made once, since either takes longer than a descriptor; rows of 64 bf16 numbers are as wide as a swizzle
_PLAIN = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=2)
_SWIZZLED = gl.NVMMASharedLayout.get_default_for([64, 64], gl.bfloat16)


def tiled(x: Tensor, block: list[int]) -> TensorDescriptor:
    """The rows of a contiguous tensor, of its last dimension, in tiles.

    Args:
        x: bf16, for products; or fp32, to be read as it lies.
        block: rows and columns of a tile; of bf16 a multiple of 64 columns.
    """
    width = x.shape[-1]
    layout = _PLAIN if x.dtype is torch.float32 else _SWIZZLED
    return TensorDescriptor(x, [x.numel() // width, width], [width, 1], block, layout)
