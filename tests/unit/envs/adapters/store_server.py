"""An MCP server over standard input and output, for tests: a store with what its argument names in it.

python store_server.py 'mint=3 lily=5'
"""

import os
import sys
from typing import Literal

from mcp.server.mcpserver import MCPServer

server = MCPServer("store")
left = {name: int(count) for name, count in (pair.split("=") for pair in sys.argv[1].split())}


@server.tool()
def count(item: str) -> int:
    """How many of an item are there."""
    return left[item]


@server.tool()
def take(item: str, number: int = 1, why: str | None = None) -> str:
    """Takes some of an item."""
    left[item] -= number
    return f"took {number} {item}"


@server.tool()
def report(form: Literal["short", "long"]) -> str:
    """All that is there."""
    return " ".join(f"{name}={number}" for name, number in left.items()) * (1 if form == "short" else 1000)


@server.tool()
def variable(name: str) -> str:
    """A variable of the server's environment."""
    return os.environ.get(name, "")


@server.tool()
def processes() -> str:
    """Ids of the server and of who started it."""
    return f"{os.getpid()} {os.getppid()}"


server.run("stdio")
