"""Error bounds shared by the tests; loosening one is a decision record.

A fast operator may be at most twice as far from the fp64 reference as the naive code run in the same dtype, plus
a floor, in relative RMS.
"""

import torch
from torch import Tensor

# fp64 against another order of the same sums; values, then gradients
EXACT = 1e-10
EXACT_GRADIENT = 1e-9
# relative RMS below which two roundings are not compared: some 16 units of the last place of the outputs' dtype
FLOOR = {torch.float32: 2e-6, torch.bfloat16: 4e-3}


def relative_max(value: Tensor, reference: Tensor) -> float:
    """Largest difference over the RMS of the reference."""
    return float((value - reference).abs().max() / reference.square().mean().sqrt())


def relative_rms(value: Tensor, reference: Tensor) -> float:
    """RMS of the difference over the RMS of the reference, in fp64."""
    reference = reference.double()
    return float((value.double() - reference).square().mean().sqrt() / reference.square().mean().sqrt())
