"""The streaming safetensors writer, read back by the public library."""

from pathlib import Path

import torch
from safetensors.torch import load_file

from segue.model.safetensors_writer import write_safetensors


def test_the_public_library_reads_what_was_written(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    tensors = {
        "odd": torch.randn(3, 5, generator=generator).to(torch.bfloat16),
        "strided": torch.randn(4, 6, generator=generator).T,
        "wide": torch.randn(2, generator=generator, dtype=torch.float64),
        "part": torch.randn(9, generator=generator)[3:5],
        "empty": torch.zeros(0, 3),
    }
    write_safetensors(tmp_path / "file", tensors)
    back = load_file(tmp_path / "file")
    assert back.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert back[name].dtype is tensor.dtype
        assert torch.equal(back[name], tensor), name
