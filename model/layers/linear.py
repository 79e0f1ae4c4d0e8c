"""Weights without a start value: they are drawn by `SegueModel.init_weights` or read from a checkpoint."""

from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from segue.kernels.common.product import linear
from segue.kernels.norm.op import rms_norm

JOINT_MAX_NUMEL = 1 << 20
"""Up to so many numbers, matrices of one input are multiplied together: beyond, a copy costs more than the calls."""


class Linear(nn.Module):
    """Matrix without bias."""

    def __init__(self, num_inputs: int, num_outputs: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_outputs, num_inputs, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        """[T, num_inputs] to [T, num_outputs]."""
        return linear(x, self.weight)


class Weighted(Protocol):
    """A module with one weight."""

    @property
    def weight(self) -> Tensor:
        """The weight."""

    def __call__(self, x: Tensor) -> Tensor:
        """The module's output."""


class Derived:
    """A tensor computed from modules' weights for decoding, kept until one of them changes.

    A change is seen by version counter or storage: copying into weights, initialising, loading and moving them. The
    tensor is then written anew where it lies, since a captured step goes on reading there. Used without grad only;
    training reads the weights themselves.
    """

    def __init__(self, compute: Callable[..., Tensor], *modules: Weighted) -> None:
        self._compute, self._modules = compute, modules
        self._stamp: list[tuple[int, int]] = []
        self._value: Tensor | None = None

    @property
    def is_made(self) -> bool:
        """True once it was asked for."""
        return self._value is not None

    def __call__(self) -> Tensor:
        """The tensor."""
        weights = [module.weight for module in self._modules]
        stamp = [(weight._version, weight.data_ptr()) for weight in weights]
        if self._value is None or stamp != self._stamp:
            # outside inference mode, so that whoever asks first leaves a tensor that anybody may write
            with torch.inference_mode(False), torch.no_grad():
                value = self._compute(*(weight.detach() for weight in weights))
                if self._value is not None and _has_form_of(self._value, value):
                    self._value.copy_(value)
                else:
                    self._value = value
            self._stamp = stamp
        return self._value


def refresh_derived(model: nn.Module) -> None:
    """Bring every tensor that a model's decoding derives from weights up to date, where there is one."""
    for module in model.modules():
        for part in vars(module).values():
            derived = part.derived if isinstance(part, JointLinear) else part
            if isinstance(derived, Derived) and derived.is_made:
                derived()


def _has_form_of(tensor: Tensor, other: Tensor) -> bool:
    return (tensor.shape, tensor.dtype, tensor.device) == (other.shape, other.dtype, other.device)


class JointLinear:
    """Maps of the same input, for decoding, as one product where that is cheaper.

    Small ones in at least float32 with a joint copy of their matrices; those of any size and type once `join_weights`
    has laid the matrices side by side. Maps that are no `Linear` may ask for wider products than their weights': below
    float32 they stay apart.
    """

    def __init__(self, *maps: Weighted) -> None:
        self._maps = maps
        self._sizes = [part.weight.shape[0] for part in maps]
        self._is_small = sum(part.weight.numel() for part in maps) <= JOINT_MAX_NUMEL
        self.derived = Derived(_stack_rows, *maps)
        self._linears = [part for part in maps if isinstance(part, Linear)]
        self._matrix: Tensor | None = None

    def join(self, joined: set[nn.Parameter]) -> None:
        """Lay the `Linear`s' matrices side by side: their parameters become views of one tensor.

        Args:
            joined: parameters that are such views already; nothing is done where one is among them. It grows.
        """
        weights = [part.weight for part in self._linears]
        if not joined.isdisjoint(weights):
            return
        joined.update(weights)
        self._matrix = torch.cat([weight.detach() for weight in weights])
        for weight, rows in zip(weights, self._matrix.split([len(weight) for weight in weights]), strict=True):
            weight.data = rows

    def __call__(self, x: Tensor) -> tuple[Tensor, ...]:
        """[T, num_inputs] to the products in order, side by side in one tensor where joint."""
        if self._matrix is not None:
            sizes = [len(part.weight) for part in self._linears]
            products = iter(linear(x, self._matrix).split(sizes, dim=-1))
            return tuple(next(products) if isinstance(part, Linear) else part(x) for part in self._maps)
        if self._is_small and x.dtype.itemsize >= torch.float32.itemsize:
            return linear(x, self.derived()).split(self._sizes, dim=-1)
        return tuple(part(x) for part in self._maps)


def join_weights(model: nn.Module) -> None:
    """Let maps of one input multiply as one when decoding, without a copy of their matrices.

    For a model that nobody trains, since its parameters move; values, names and changes in place stay what they were.
    """
    joined: set[nn.Parameter] = set()
    # a module comes before its parts, whose matrices it may multiply with others
    for module in model.modules():
        for part in vars(module).values():
            if isinstance(part, JointLinear):
                part.join(joined)


def side_by_side(*parts: Tensor) -> Tensor:
    """Tensors [T, n] as one [T, sum of n]: a view where they lie so already, as a joint product leaves them."""
    first, place = parts[0], parts[0].data_ptr()
    for part in parts:
        if part.data_ptr() != place or part.stride() != first.stride() or first.stride(1) != 1:
            return torch.cat(parts, dim=1)
        place += part.shape[1] * part.element_size()
    return first.as_strided((len(first), sum(part.shape[1] for part in parts)), first.stride())


def _stack_rows(*weights: Tensor) -> Tensor:
    return torch.cat(weights)


class RmsNorm(nn.Module):
    """Root-mean-square norm; statistics in at least float32, weight applied in the input's dtype."""

    def __init__(self, size: int, eps: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(size, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        """Norm over the last dimension."""
        return rms_norm(x, self.weight, self.eps)


class Embedding(nn.Module):
    """Table of token vectors."""

    def __init__(self, num_tokens: int, size: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_tokens, size, dtype=dtype))

    def forward(self, token_ids: Tensor) -> Tensor:
        """[T] int64 to [T, size]."""
        return F.embedding(token_ids, self.weight)


class ShortConv(nn.Module):
    """Taps of a depthwise causal convolution, the last for the current token; at least float32."""

    def __init__(self, num_channels: int, num_taps: int, dtype: torch.dtype) -> None:
        super().__init__()
        wide = torch.promote_types(dtype, torch.float32)
        self.weight = nn.Parameter(torch.empty(num_channels, 1, num_taps, dtype=wide))
