"""What tests of the sandbox share, and are held to."""

import os
from collections.abc import Iterator

import pytest
from sandbox_cases import make_sandbox, survivors

from segue.envs.python.sandbox import BubblewrapSandbox


@pytest.fixture(scope="module")
def sandbox() -> BubblewrapSandbox:
    return make_sandbox()


@pytest.fixture
def nothing_is_left() -> Iterator[None]:
    """No process of a sandbox and no descriptor of ours outlives a test that uses this."""
    before = os.listdir("/proc/self/fd")
    yield
    assert survivors() == []
    assert len(os.listdir("/proc/self/fd")) == len(before)
