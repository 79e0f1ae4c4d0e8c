"""Safetensors files written one tensor at a time, so that a copy of the whole model never exists."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

DTYPE_NAMES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


def write_safetensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors (any device, any stride) and wait until the file is on disk.

    Source:
        Format: https://github.com/huggingface/safetensors#format (length, JSON header, data without gaps).
    """
    # wide dtypes first keeps every tensor aligned to its own size
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in names:
        tensor = tensors[name]
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
            data = tensors[name].detach().cpu().contiguous().flatten()
            file.write(data.view(torch.uint8).numpy().data)
        file.flush()
        os.fsync(file.fileno())
