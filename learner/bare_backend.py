"""The sweeps on one process in plain torch: the yardstick for proofs, and for a backend that does more."""

import torch
from torch import Tensor, nn

from segue.learner.segment_module import StateLayout


class BareBackend:
    """Gradients gather in each parameter's `grad`, in its own dtype."""

    def __init__(self, module: nn.Module, layout: StateLayout) -> None:
        self.module = module
        self.layout = layout
        self.loss_scale = 1.0

    def forward(self, *inputs: Tensor | bool) -> tuple[Tensor, ...]:
        """See `sweeps.Backend`."""
        return self.module(*inputs)

    def backward(self, scalar: Tensor, *, is_last: bool) -> float:
        """See `sweeps.Backend`; the bound is the norm itself."""
        scalar.backward()
        norms = [p.grad.double().norm() for p in self.module.parameters() if p.grad is not None]
        return float(torch.stack(norms).norm()) if norms else 0.0
