"""What every test here is held to."""

import os
from collections.abc import Iterator

import pytest
from sandbox_cases import make_sandbox, survivors

from segue.envs.python.sandbox import BubblewrapSandbox


@pytest.fixture(scope="module")
def sandbox() -> BubblewrapSandbox:
    return make_sandbox()


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """No process of a sandbox and no descriptor of ours outlives any test here."""
    before = os.listdir("/proc/self/fd")
    yield
    assert survivors() == []
    assert len(os.listdir("/proc/self/fd")) == len(before)
