"""Tool servers of a `verifiers` task, run in this process: what they offer, and one call after the other.

`verifiers` starts a server process for each toolset and joins them over HTTP. A toolset that shares no state with its
task is a few functions, which are called here as their server would call them.
"""

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from segue.envs.adapters.foreign_content import content_text
from segue.envs.adapters.foreign_schema import foreign_tool
from segue.envs.tool import ToolSpec

if TYPE_CHECKING:
    from verifiers import v1 as vf

_Result = TypeVar("_Result")


class LocalToolsets:
    """The toolsets of one task, from their set-up until `close`."""

    def __init__(self, toolsets: "list[vf.Toolset[Any, Any]]", data: "vf.TaskData", timeout_s: float) -> None:
        """Sets them up.

        Args:
            toolsets: as the task makes them.
            data: of the task.
            timeout_s: deadline of a set-up and of a call, in seconds.
        """
        from mcp.server.mcpserver import MCPServer

        self._toolsets, self._timeout_s = toolsets, timeout_s
        # one loop for all: what a set-up opens belongs to it
        self._runner = asyncio.Runner()
        # offered name to its server and the name there
        self._servers: dict[str, tuple[MCPServer, str]] = {}
        self.specs: list[ToolSpec] = []
        try:
            for toolset in toolsets:
                self._run(toolset.setup())
                self._run(toolset.setup_task(data))
                prefix = toolset.server_name
                server = MCPServer(prefix or type(toolset).__name__)
                toolset.register(server)
                for each in self._run(server.list_tools()):
                    name = f"{prefix}_{each.name}" if prefix else each.name
                    self._servers[name] = server, each.name
                    self.specs.append(foreign_tool(name, each.description or "", each.input_schema))
        except BaseException:
            self.close()
            raise

    def call(self, name: str, arguments: dict[str, Any]) -> str:
        """What a tool gives, or what is wrong with the call.

        Raises:
            TimeoutError: it takes too long.
        """
        from mcp.server.mcpserver.exceptions import ToolError

        server, inner_name = self._servers[name]
        try:
            result = self._run(server.call_tool(inner_name, arguments))
        except ToolError as error:
            return f"error: {error}"
        return content_text([block.model_dump(mode="json") for block in result.content], result.structured_content)

    def close(self) -> None:
        """Ends what the set-ups opened; may be called twice."""
        toolsets, self._toolsets = self._toolsets, []
        for toolset in toolsets:
            # theirs to fill, the server's to close; there is no public way to
            self._run(toolset._exit_stack.aclose())
        self._runner.close()

    def _run(self, coroutine: Coroutine[Any, Any, _Result]) -> _Result:
        return self._runner.run(asyncio.wait_for(coroutine, self._timeout_s))


def find_remote_need(toolset: "vf.Toolset[Any, Any]") -> str | None:
    """Why a toolset cannot run in this process, in words; None when it can."""
    from verifiers.v1 import State, SubprocessConfig
    from verifiers.v1.state import state_cls

    name = type(toolset).__name__
    if state_cls(type(toolset)) is not State:
        return f"{name} shares a state with the task"
    if toolset.config.url or toolset.config.colocated or not isinstance(toolset.config.runtime, SubprocessConfig):
        return f"{name} runs elsewhere"
    return None
