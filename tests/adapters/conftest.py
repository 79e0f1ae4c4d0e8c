"""What the tests of real packages share."""

import asyncio
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from segue.conf.schema import EnvConfig
from segue.envs.check_report import Finding, Verdict
from segue.envs.checker import check_contract

FOLDER = Path(__file__).parent
# made by `make test-adapters`: the package's pins exclude ours
_OPENENV_PYTHON = FOLDER.parents[1] / ".venv-openenv" / "bin" / "python"
_START_TIMEOUT_S = 120.0


@pytest.fixture
def checked() -> Callable[[EnvConfig], dict[str, Finding]]:
    """Findings of `segue check-env` that are no passes, by check."""

    def check(config: EnvConfig) -> dict[str, Finding]:
        report = asyncio.run(check_contract(config, num_seeds=2, max_calls=40))
        return {finding.check: finding for finding in report if finding.verdict is not Verdict.passed}

    return check


@pytest.fixture(scope="session")
def openenv_url() -> Iterator[Callable[[str], str]]:
    """Starts a server of `openenv_server.py` where none of that name runs yet, and says where it is."""
    urls: dict[str, str] = {}
    with ExitStack() as stack:

        def start(name: str) -> str:
            if name not in urls:
                urls[name] = stack.enter_context(_server(name))
            return urls[name]

        yield start


@contextmanager
def _server(name: str) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen([_OPENENV_PYTHON, "-P", FOLDER / "openenv_server.py", name, str(port)])
    try:
        url = f"http://127.0.0.1:{port}"
        _wait(url, process)
        yield url
    finally:
        process.kill()
        process.wait()


def _wait(url: str, process: "subprocess.Popen[bytes]") -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + _START_TIMEOUT_S
    while True:
        assert process.poll() is None and time.monotonic() < deadline, "the OpenEnv server did not start"
        try:
            with opener.open(f"{url}/health", timeout=5.0):
                return
        except OSError:
            time.sleep(0.1)
