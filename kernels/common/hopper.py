"""Which GPU kernels in Gluon are for."""

import torch
from torch import Tensor


def is_hopper(x: Tensor) -> bool:
    """Whether a tensor lies on a GPU of this kind, compute capability 9."""
    return x.is_cuda and torch.cuda.get_device_capability(x.device)[0] == 9
