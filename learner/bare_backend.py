"""The sweeps on one process in plain torch: the yardstick for proofs, and for a backend that does more."""

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

    def backward(self, scalar: Tensor, *, is_last: bool) -> bool:
        """See `sweeps.Backend`; looks at the gathered gradients, so what was not finite stays so."""
        scalar.backward()
        return all(bool(p.grad.isfinite().all()) for p in self.module.parameters() if p.grad is not None)
