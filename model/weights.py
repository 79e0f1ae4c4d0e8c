"""Weights on their way from the learner to the rollout: one flat buffer and a manifest of what lies where."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import blake2b
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_ALIGNMENT_BYTES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """One tensor of a flat buffer."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """Name of a torch dtype, without the module."""
    offset_bytes: int
    """Where it starts; a multiple of 64, so that views of every dtype are aligned."""
    digest: str
    """BLAKE2b-128 of its bytes, in hexadecimal."""

    @property
    def size_bytes(self) -> int:
        """Bytes that it takes."""
        return prod(self.shape) * _dtype(self.dtype).itemsize


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WeightUpdate:
    """Published parameters and buffers of one policy version, in their own dtypes."""

    manifest: tuple[TensorEntry, ...]
    data: NDArray[np.uint8]
    """Flat bytes; may be mapped read-only from shared memory."""


def pack_weights(tensors: Mapping[str, Tensor]) -> WeightUpdate:
    """Copy tensors, from any device, into one flat buffer."""
    return gather_weights(tensors, tensors.__getitem__)


def gather_weights(layout: Mapping[str, Tensor], fetch: Callable[[str], Tensor]) -> WeightUpdate:
    """Copy tensors that are fetched one by one into one flat buffer.

    Args:
        layout: tensors of the right shapes and dtypes; their values are not read, so that the meta device will do.
        fetch: name to tensor, asked in the layout's order.
    """
    offsets, end = [], 0
    for tensor in layout.values():
        offsets.append(end)
        end += -(-tensor.nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
    data = np.zeros(end, np.uint8)
    shapes, parts = [], []
    for name, offset in zip(layout, offsets, strict=True):
        tensor = fetch(name)
        raw = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
        part = data[offset : offset + raw.nbytes]
        part[:] = raw
        shapes.append((tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")))
        parts.append(part)
    manifest = tuple(
        TensorEntry(name=name, shape=shape, dtype=dtype, offset_bytes=offset, digest=digest)
        for name, (shape, dtype), offset, digest in zip(layout, shapes, offsets, _digests(parts), strict=True)
    )
    return WeightUpdate(manifest=manifest, data=data)


def check_weights(update: WeightUpdate, tensors: Mapping[str, Tensor]) -> None:
    """See whether an update fits tensors and arrived whole.

    Raises:
        ValueError: missing, extra or misshapen tensors, or bytes that are not those that were packed.
    """
    entries = {entry.name: entry for entry in update.manifest}
    missing, extra = sorted(tensors.keys() - entries.keys()), sorted(entries.keys() - tensors.keys())
    if missing or extra:
        raise ValueError(f"an update must name the model's tensors, missing {missing}, extra {extra}")
    for name, entry in entries.items():
        tensor = tensors[name]
        if entry.shape != tuple(tensor.shape) or _dtype(entry.dtype) != tensor.dtype:
            found = f"{entry.dtype} {list(entry.shape)}"
            raise ValueError(f"{name} must be {tensor.dtype} {list(tensor.shape)}, got {found}")
    digests = _digests([_bytes_of(update, entry) for entry in update.manifest])
    for entry, digest in zip(update.manifest, digests, strict=True):
        if digest != entry.digest:
            raise ValueError(f"{entry.name} arrived with other bytes than were packed")


def copy_weights(update: WeightUpdate, tensors: Mapping[str, Tensor]) -> None:
    """Copy an update that `check_weights` found to fit."""
    with torch.no_grad():
        for entry in update.manifest:
            tensor = tensors[entry.name]
            # torch warns about read-only memory, which shared memory is; a copy of one tensor is cheap
            raw = torch.from_numpy(_bytes_of(update, entry).copy())
            tensor.copy_(raw.view(tensor.dtype).view(tensor.shape))


def _bytes_of(update: WeightUpdate, entry: TensorEntry) -> NDArray[np.uint8]:
    return update.data[entry.offset_bytes : entry.offset_bytes + entry.size_bytes]


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"dtype must be the name of a torch dtype, got {name!r}")
    return dtype


def _digests(parts: Sequence[NDArray[np.uint8]]) -> list[str]:
    """Of each part, on as many threads as the tensor library has."""
    with ThreadPoolExecutor(torch.get_num_threads()) as threads:
        return list(threads.map(_digest, parts))


def _digest(raw: NDArray[np.uint8]) -> str:
    return blake2b(raw.data, digest_size=16).hexdigest()
