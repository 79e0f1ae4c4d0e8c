"""Safetensors files written one tensor at a time, so that a copy of the whole model never exists."""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

DTYPE_NAMES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


def write_safetensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors (any device, any stride) and wait until the file is on disk."""
    stream_safetensors(path, tensors, tensors.__getitem__)


def file_order(layout: Mapping[str, Tensor]) -> list[str]:
    """Names in the order in which they are written: wide dtypes first, which keeps every tensor aligned to its size."""
    return sorted(layout, key=lambda name: (-layout[name].element_size(), name))


def stream_safetensors(path: Path, layout: Mapping[str, Tensor], fetch: Callable[[str], Tensor]) -> None:
    """Write tensors that are fetched one by one, and wait until the file is on disk.

    Args:
        path: of the file.
        layout: tensors of the right shapes and dtypes; their values are not read, so that the meta device will do.
        fetch: name to tensor, asked in `file_order`.
    Source:
        Format: https://github.com/huggingface/safetensors#format (length, JSON header, data without gaps).
    """
    names = file_order(layout)
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in names:
        tensor = layout[name]
        start, end = end, end + tensor.nbytes
        header[name] = {
            "dtype": DTYPE_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for name in names:
            data = fetch(name).detach().cpu().contiguous().flatten()
            file.write(data.view(torch.uint8).numpy().data)
        file.flush()
        os.fsync(file.fileno())
