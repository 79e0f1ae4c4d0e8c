"""The sweeps on DeepSpeed: one process a rank, ZeRO 1 to 3, CPU and gloo. The only file that knows DeepSpeed.

What is bent, and why (docs/numerics.md has the matrix of what is supported):

- every backward follows its own `engine(...)` forward: ZeRO-3 otherwise overwrites gradients instead of adding them;
- the step's border is said explicitly, never counted by the engine;
- gradients come out averaged over ranks; `loss_scale` makes them a sum;
- clipping is said explicitly, since an absent key means 1.0;
- the shared-memory op, a C++ extension compiled at first use, is switched off.
"""

import logging
import os
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

import deepspeed
import deepspeed.ops
import torch
from deepspeed.utils import logger as deepspeed_logger
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_grad
from torch import Tensor, nn

from segue.conf.schema import Precision
from segue.learner.segment_module import SegmentModule, StateLayout, state_layout

OptimizerFactory = Callable[[Iterable[tuple[str, nn.Parameter]]], torch.optim.Optimizer]


def join_ranks(rank: int, world_size: int, master_addr: str, master_port: int, timeout_s: float) -> None:
    """Make this process one of the learner's ranks; returns when all have come.

    Args:
        rank: of this process.
        world_size: ranks in all.
        master_addr: where rank 0 listens.
        master_port: free there.
        timeout_s: deadline of every later collective, in seconds.
    """
    deepspeed_logger.setLevel(logging.WARNING)
    # its build wants a compiler and ninja, and takes minutes
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(world_size), LOCAL_RANK="0", MASTER_ADDR=master_addr, MASTER_PORT=str(master_port)
    )
    deepspeed.init_distributed(
        dist_backend="gloo", auto_mpi_discovery=False, verbose=False, timeout=timedelta(seconds=timeout_s)
    )


class DeepSpeedBackend:
    """One rank's engine around a `SegmentModule`.

    Invariants:
        Gradients and updates equal plain torch's: tests/e2e/test_deepspeed_exactness.py, test_deepspeed_updates.py.
    """

    def __init__(
        self,
        module: SegmentModule,
        build_optimizer: OptimizerFactory,
        *,
        zero_stage: int,
        precision: Precision,
        grad_clip: float,
    ) -> None:
        """All ranks construct it together, with equal weights.

        Args:
            module: fp32; wrapped and, for bf16, rounded in place.
            build_optimizer: from named parameters.
            zero_stage: 1, 2 or 3; bf16 needs 2 or 3 (`conf/rules_learner.py`).
            precision: of parameters and activations; fp32 masters and gradient sums in either case.
            grad_clip: bound of the global gradient norm; 0 turns clipping off.
        """
        config: dict[str, Any] = {
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 1,
            "steps_per_print": None,
            "gradient_clipping": grad_clip,
            "zero_optimization": {"stage": zero_stage, "overlap_comm": False},
            "zero_allow_untested_optimizer": True,
        }
        if precision is Precision.bf16:
            config |= {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}}
        optimizer = build_optimizer(module.named_parameters())
        self._engine, *_ = deepspeed.initialize(model=module, optimizer=optimizer, config=config)
        self._module = module
        self._layout = state_layout(module.model)
        self._grad_norms: list[Tensor] = []
        for parameter in module.parameters():
            parameter.register_hook(self._note_gradient)

    @property
    def layout(self) -> StateLayout:
        """See `sweeps.Backend`."""
        return self._layout

    @property
    def loss_scale(self) -> float:
        """See `sweeps.Backend`."""
        return float(torch.distributed.get_world_size())

    def forward(self, *inputs: Tensor | bool) -> tuple[Tensor, ...]:
        """See `sweeps.Backend`."""
        return self._engine(*inputs)

    def backward(self, scalar: Tensor, *, is_last: bool) -> bool:
        """See `sweeps.Backend`."""
        self._engine.set_gradient_accumulation_boundary(is_last)
        self._engine.backward(scalar, scale_wrt_gas=False)
        norms = torch.stack(self._grad_norms)
        self._grad_norms.clear()
        return bool(norms.isfinite().all())

    def step(self, lr: float) -> float:
        """Update every parameter and forget the gradients; all ranks together.

        Returns:
            The global gradient norm before clipping.
        """
        for group in self._engine.optimizer.param_groups:
            group["lr"] = lr
        self._engine.step()
        return float(self._engine.get_global_grad_norm())

    def gradients(self) -> dict[str, Tensor]:
        """The step's gathered gradients by parameter, whole, fp32, between the last backward and `step`; all ranks."""
        return {name: safe_get_full_grad(parameter).clone() for name, parameter in self._module.named_parameters()}

    def masters(self) -> dict[str, Tensor]:
        """The fp32 parameters by name, whole; all ranks."""
        return {name: safe_get_full_fp32_param(parameter) for name, parameter in self._module.named_parameters()}

    def _note_gradient(self, grad: Tensor) -> None:
        # largest entry: one pass, and NaN or infinity pass through
        self._grad_norms.append(torch.linalg.vector_norm(grad, ord=float("inf")))
