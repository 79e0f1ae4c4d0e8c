"""Kernel tests run with poisoned memory: in deterministic mode torch fills new tensors with NaN."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def poisoned_memory() -> Iterator[None]:
    """NaN in every tensor that an operator allocates and has not written."""
    was_on = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(was_on)
