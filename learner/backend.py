"""The sweeps on DeepSpeed: one process a rank, ZeRO 1 to 3, on CPUs or GPUs. The only file that knows DeepSpeed.

What is bent, and why (docs/numerics.md has the matrix of what is supported):

- every backward follows its own `engine(...)` forward: ZeRO-3 otherwise overwrites gradients instead of adding them;
- the border of a step is said explicitly, never counted by the engine;
- gradients come out averaged over ranks; `loss_scale` makes them a sum;
- clipping is said explicitly, since an absent key means 1.0;
- the engine's bf16 mode stays off, since it rounds every parameter: a bf16 module comes with the few parameters that
  must stay fp32, and ZeRO keeps fp32 masters and gradient sums of the others all the same;
- the shared-memory op, a C++ extension compiled at first use, is switched off;
- its Muon, imported to tell whether an optimiser is one, is compiled as it is imported, which loads inductor, a second
  and 45 MB a rank: the decorator does nothing;
- it takes any GPU that it sees for its own, so the device is said in DS_ACCELERATOR before it is imported.
"""

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any

import deepspeed
import deepspeed.ops
import torch
import torch.distributed
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime import compiler
from deepspeed.utils import logger as deepspeed_logger
from deepspeed.utils import (
    safe_get_full_fp32_param,
    safe_get_full_grad,
    safe_get_full_optimizer_state,
    safe_get_local_grad,
    safe_set_full_fp32_param,
    safe_set_full_optimizer_state,
)
from torch import Tensor, nn
from torch.nn import functional

from segue.conf.schema import OptimizerConfig
from segue.learner.muon import Muon
from segue.learner.muon_plan import Shard
from segue.learner.optimizer import configure, moments_of
from segue.learner.segment_module import SegmentModule, StateLayout, state_layout

_MASTER = "master"

LR_RATIO = "lr_ratio"
"""Key of a parameter group whose learning rate is so many times the others'."""

# sums of metrics lie on the CPU also where the model does not
_COLLECTIVES = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}

OptimizerFactory = Callable[[Iterable[tuple[str, nn.Parameter]]], torch.optim.Optimizer]


def join_ranks(rank: int, world_size: int, address: tuple[str, int], timeout_s: float, device: torch.device) -> None:
    """Make this process one of the learner's ranks; returns when all have come.

    Args:
        rank: of this process.
        world_size: ranks in all.
        address: host and port where rank 0 listens.
        timeout_s: deadline of every later collective, in seconds.
        device: that this rank computes on; the first of its kind that the process sees.
    """
    chosen = get_accelerator().device_name()
    assert chosen == device.type, f"DS_ACCELERATOR must be {device.type} before DeepSpeed is imported, got {chosen}"
    deepspeed_logger.setLevel(logging.ERROR)
    # building it needs a compiler and takes minutes
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    # what it does where torch has no compiler
    compiler.compile = lambda: compiler.dummy_decorator
    host, port = address
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(world_size), LOCAL_RANK="0", MASTER_ADDR=host, MASTER_PORT=str(port)
    )
    deepspeed.init_distributed(
        dist_backend=_COLLECTIVES[device.type],
        auto_mpi_discovery=False,
        verbose=False,
        timeout=timedelta(seconds=timeout_s),
    )


class DeepSpeedBackend:
    """One rank's engine around a `SegmentModule`; all ranks call its methods together.

    Invariants:
        Gradients and updates equal plain torch's: tests/e2e/test_deepspeed_exactness.py.
    """

    def __init__(
        self, module: SegmentModule, build_optimizer: OptimizerFactory, *, zero_stage: int, grad_clip: float
    ) -> None:
        """All ranks bring equal weights.

        Args:
            module: on this rank's device; its parameters keep their dtypes; masters and gradient sums are fp32.
            build_optimizer: from named parameters; groups of one dtype each.
            zero_stage: 1, 2 or 3; 3 needs parameters of one dtype.
            grad_clip: bound of the global gradient norm; 0 turns clipping off.
        """
        config = {
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 1,
            "steps_per_print": None,
            "gradient_clipping": grad_clip,
            "zero_optimization": {"stage": zero_stage, "overlap_comm": False},
            "zero_allow_untested_optimizer": True,
            "data_types": {"grad_accum_dtype": "fp32"},
        }
        self._layout = state_layout(module.model)
        self._is_partitioned = zero_stage == 3
        self._trained = module.trained_parameters()
        # a critic is not among them: rollout and other implementations have no use for it
        self._published: dict[str, Tensor] = dict(module.model.named_parameters())
        self._published |= dict(module.model.named_buffers())
        optimizer = build_optimizer(self._trained.items())
        self._engine, *_ = deepspeed.initialize(model=module, optimizer=optimizer, config=config)
        if isinstance(optimizer, Muon):
            optimizer.place(self._shards(), torch.distributed.get_rank(), _exchange)
        self._grad_bounds: list[Tensor] = []
        self._grad_bound = 0.0
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

    def backward(self, scalar: Tensor, *, is_last: bool) -> float:
        """See `sweeps.Backend`."""
        self._engine.set_gradient_accumulation_boundary(is_last)
        self._engine.backward(scalar, scale_wrt_gas=False)
        # norms of sums are at most sums of norms, so that nothing has to be gathered
        self._grad_bound += float(torch.stack(self._grad_bounds).norm())
        self._grad_bounds.clear()
        return self._grad_bound

    def step(self, config: OptimizerConfig, lr: float, row_factors: Mapping[str, Tensor]) -> float:
        """Update every parameter and forget the gradients.

        Args:
            config: the numbers of this update, `grad_clip` included; its kind is that of the optimiser.
            lr: learning rate of this update.
            row_factors: see `Muon`; with masters go the published weights, which DeepSpeed makes of them.
        Returns:
            The global gradient norm before clipping.
        """
        groups = self._engine.optimizer.param_groups
        configure(groups, config, lr)
        for group in groups:
            group["lr"] *= group.get(LR_RATIO, 1.0)
        self._engine.optimizer.clip_grad = config.grad_clip
        optimizer = self._engine.optimizer.optimizer
        if isinstance(optimizer, Muon):
            optimizer.row_factors = row_factors
        else:
            assert not row_factors, list(row_factors)
        self._engine.step()
        self._grad_bound = 0.0
        return float(self._engine.get_global_grad_norm())

    def gradients(self) -> dict[str, Tensor]:
        """The step's gradients by parameter, whole, fp32; between the last backward and `step`."""
        return {name: safe_get_full_grad(parameter).clone() for name, parameter in self._trained.items()}

    def own_gradient_squares(self) -> dict[str, Tensor]:
        """Sum of squares, in double precision, of this rank's share of each parameter's gradient; when as `gradients`.

        Shares are disjoint, so sums over ranks are the squared norms, and nothing is gathered.
        """
        shares = {name: _own_gradient(parameter) for name, parameter in self._trained.items()}
        return {name: share.double().square().sum() for name, share in shares.items()}

    def published_layout(self) -> dict[str, Tensor]:
        """Parameters and buffers by name, without values: shapes and dtypes on the meta device."""
        return {name: _shape_of(tensor, tensor.dtype) for name, tensor in self._published.items()}

    def published_tensor(self, name: str) -> Tensor:
        """One of them, whole, in its own dtype; good until the next update."""
        tensor = self._published[name]
        if not (self._is_partitioned and isinstance(tensor, nn.Parameter)):
            return tensor.detach()
        with deepspeed.zero.GatheredParameters([tensor]):
            return tensor.detach().clone()

    def state_layout(self) -> dict[str, Tensor]:
        """`<kind>/<parameter>` of fp32 masters and, after the first update, the optimiser's moments; without values.

        A critic's parameters stand among them.
        """
        self._link_moments()
        return {
            f"{kind}/{name}": _shape_of(p, torch.float32)
            for name, p in self._trained.items()
            for kind in (_MASTER, *(self._moments_of(name) if self.num_updates else ()))
        }

    def state_tensor(self, name: str) -> Tensor:
        """One of them, whole."""
        kind, _, parameter_name = name.partition("/")
        parameter = self._trained[parameter_name]
        if kind == _MASTER:
            return safe_get_full_fp32_param(parameter)
        return safe_get_full_optimizer_state(parameter, kind)

    def load_state(self, read: Callable[[str], Tensor], num_updates: int) -> None:
        """Take up what stood in a state, of any number of ranks, and the masters' values as parameters.

        A zero gradient must be pending: the update that carries the masters over into the parameters is DeepSpeed's
        own, at learning rate zero. It also makes the moments exist.

        Args:
            read: name of `state_layout` to tensor.
            num_updates: updates behind that state; 0 where it has no moments.
        """
        for name, parameter in self._trained.items():
            safe_set_full_fp32_param(parameter, read(f"{_MASTER}/{name}"))
        self.step(OptimizerConfig(), 0.0, {})
        self._link_moments()
        for name, parameter in self._trained.items():
            for moment in self._moments_of(name):
                value = read(f"{moment}/{name}") if num_updates else torch.zeros_like(read(f"{_MASTER}/{name}"))
                safe_set_full_optimizer_state(parameter, value, moment)
        for count in self._update_counts():
            count.fill_(num_updates)

    @property
    def num_updates(self) -> int:
        """Updates that AdamW, which some parameters always have, has counted."""
        return max((int(count) for count in self._update_counts()), default=0)

    def sum_over_ranks(self, tensor: Tensor) -> Tensor:
        """Elementwise, in place."""
        torch.distributed.all_reduce(tensor)
        return tensor

    def max_over_ranks(self, tensor: Tensor) -> Tensor:
        """Elementwise, in place."""
        torch.distributed.all_reduce(tensor, torch.distributed.ReduceOp.MAX)
        return tensor

    def _moments_of(self, name: str) -> tuple[str, ...]:
        return moments_of(self._engine.optimizer.optimizer, name)

    def _update_counts(self) -> list[Tensor]:
        return [entry["step"] for entry in self._engine.optimizer.optimizer.state.values() if "step" in entry]

    def _shards(self) -> dict[Tensor, list[Shard]]:
        """What each flat tensor that the optimiser updates holds of its parameters."""
        zero, names = self._engine.optimizer, {p: name for name, p in self._trained.items()}
        groups = zero.fp16_groups if self._is_partitioned else zero.bit16_groups
        flats = zero.fp32_partitioned_groups_flat if self._is_partitioned else zero.single_partition_of_fp32_groups
        held = {p: self._held_part(p) for group in groups for p in group}
        numels = torch.zeros(torch.distributed.get_world_size(), len(held), dtype=torch.int64)
        numels[torch.distributed.get_rank()] = torch.tensor([numel for _, numel in held.values()])
        # the ranks hold a parameter's parts in their order
        ends = self.sum_over_ranks(numels).cumsum(0)
        borders = dict(zip(held, functional.pad(ends, (0, 0, 1, 0)).T.contiguous().numpy(), strict=True))
        return {
            flat: [Shard(name=names[p], offset=held[p][0], borders=borders[p]) for p in group]
            for flat, group in zip(flats, groups, strict=True)
        }

    def _held_part(self, parameter: Any) -> tuple[int, int]:
        """Where this rank's part of a parameter lies in the flat tensor, and its size."""
        if self._is_partitioned:
            zero = self._engine.optimizer
            _, offset, padded = zero.grad_position[zero.get_param_id(parameter)]
            start = torch.distributed.get_rank() * padded
            return offset, min(max(_numel(parameter) - start, 0), padded)
        fragment = parameter._hp_mapping
        return (0, 0) if fragment is None else (fragment.hp_fragment_address.start, fragment.lp_fragment_address.numel)

    def _link_moments(self) -> None:
        """Let DeepSpeed find the moments of every parameter.

        ZeRO 1 and 2 look for them once, after the first group's first update, when the other groups have none yet.
        """
        if self.num_updates and not self._is_partitioned:
            self._engine.optimizer._hp_optimizer_states_linked = False
            self._engine.optimizer._lazy_init_hp_params_optimizer_state()

    def _note_gradient(self, grad: Tensor) -> None:
        # by the largest entry, whose square cannot overflow; NaN and infinity pass through
        largest = torch.linalg.vector_norm(grad, ord=float("inf"))
        self._grad_bounds.append(largest.double() * grad.numel() ** 0.5)


def _exchange(parts: Tensor, num_sent: list[int], num_received: list[int]) -> Callable[[], Tensor]:
    """See `muon.Exchange`."""
    received = parts.new_empty(sum(num_received))
    work = torch.distributed.all_to_all_single(received, parts, num_received, num_sent, async_op=True)

    def wait() -> Tensor:
        work.wait()
        return received

    return wait


def _own_gradient(parameter: Any) -> Tensor:
    """The part of a parameter's gradient that this rank updates with."""
    if hasattr(parameter, "ds_id"):
        return safe_get_local_grad(parameter)
    fragment = parameter._hp_mapping
    return (
        parameter.new_zeros(0) if fragment is None else fragment.get_lp_grad_fragment(parameter._index_in_param_group)
    )


def _numel(parameter: nn.Parameter) -> int:
    return int(getattr(parameter, "ds_numel", parameter.numel()))


def _shape_of(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    # a partitioned parameter is empty where it is not gathered
    return torch.empty(getattr(tensor, "ds_shape", tensor.shape), dtype=dtype, device="meta")
