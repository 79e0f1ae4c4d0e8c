"""The dtype that a precision of the configuration stands for, the same in rollout and learner."""

import torch

from segue.conf.schema import Precision

_DTYPES = {Precision.fp32: torch.float32, Precision.bf16: torch.bfloat16}


def dtype_of(precision: Precision) -> torch.dtype:
    """Dtype of parameters and activations; see `docs/numerics.md` for what stays at least fp32."""
    return _DTYPES[precision]
