"""The MCP environment held to docs/environments.md's contract, with a server process for each of its episodes."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from segue.conf.schema import EnvConfig
from segue.envs.check_report import Finding

pytestmark = pytest.mark.adapters
STORE = Path(__file__).parents[1] / "unit" / "envs" / "adapters"


def test_a_servers_tools_keep_the_contract(checked: Callable[[EnvConfig], dict[str, Finding]]) -> None:
    kwargs = {
        "command": [sys.executable, "-P", str(STORE / "store_server.py")],
        "task": "store_tasks:how_many",
        "tools": ["count", "take"],
    }
    config = EnvConfig(id="segue.envs.adapters.mcp_tools:McpTools-v0", kwargs=kwargs, import_folder=str(STORE))
    # they have no demonstrator, and arbitrary words find no item whatever the seed
    assert set(checked(config)) <= {"demonstrator", "seeds"}


def test_what_an_env_worker_imports_brings_no_torch() -> None:
    code = "import sys, mcp, websockets.sync.client; print({'torch', 'transformers'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "set()"
