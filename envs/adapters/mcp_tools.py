"""Tools of an MCP server as an environment: the server offers the tools, a function of the user's the tasks.

    seed, options -> task function -> McpTask (user's text, judge) --- a new stdio server for the episode
    call -> server's tool -> text -> judge -> observation, reward terms, end

The server is a child of the env worker's process, with a thread of this process that talks to it; both end with the
episode, with `close`, and whatever happens to the worker. It runs with the rights of whoever started Segue, and what a
policy has its tools do is done: there is no sandbox here.
"""

import math
import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium

from segue.envs.adapters.extra import needs_extra
from segue.envs.adapters.foreign_content import content_text
from segue.envs.adapters.foreign_schema import foreign_tool
from segue.envs.adapters.server_words import ServerWords, hear_server
from segue.envs.errors import EnvironmentSetupError, InfrastructureFailure
from segue.envs.tool import ToolCall, ToolSpec, object_schema
from segue.envs.tool_env import Task, ToolEnv, ToolResult
from segue.envs.user_module import import_user_module

if TYPE_CHECKING:
    from anyio.from_thread import BlockingPortal
    from mcp import Client, StdioServerParameters

ANSWER = ToolSpec(
    name="answer",
    description="Give the answer, which ends the task.",
    parameters=object_schema({"text": {"type": "string"}}),
)
"""The tool that every episode has beside the server's."""
_MAX_LIST_PAGES = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class McpTask:
    """What an episode is about, and when it is solved."""

    user: str
    """The user's message."""
    judge: Callable[[ToolCall, ToolResult], ToolResult]
    """Called after every call that ran, in order, with what it led to: for a tool of the server's an observation alone
    (and `is_error` in its info where the server says so), for `answer` a terminated one without success. Returns the
    same, or one with reward terms, an end, a success (`dataclasses.replace`)."""
    system: str = ""
    """The system message; empty for none."""
    info: dict[str, Any] = field(default_factory=dict)
    """JSON values for records and metrics; the policy never sees them."""
    arguments: tuple[str, ...] = ()
    """Added to the server's command, such as the path of this task's data."""


class McpToolsEnv(ToolEnv):
    """Each episode has a server of its own, whose tools the policy calls; the tool `answer` ends it."""

    def __init__(
        self,
        *,
        command: Sequence[str],
        task: str,
        tools: Sequence[str] | None = None,
        environment: Sequence[str] = (),
        timeout_s: float = 10.0,
    ) -> None:
        """Prepares to start servers.

        Args:
            command: of the server: a program, looked for in PATH, and its arguments.
            task: function of a seed and the reset options that returns an `McpTask`, as `my_package.module:function`.
            tools: names of the tools that are offered; None for all.
            environment: names of variables that are passed on to the server, beside PATH, HOME and the like.
            timeout_s: deadline of the server's start and of each of its answers, in seconds. A server that does not end
                by itself takes five more; `env.call_timeout_s` should be longer than both.
        Raises:
            EnvironmentSetupError: mcp is not installed, or there is no such program, variable or function.
        """
        with needs_extra("mcp"):
            from mcp import StdioServerParameters
        if isinstance(command, str) or not command:
            raise EnvironmentSetupError(f"command must be a list of a program and its arguments, got {command!r}")
        if shutil.which(command[0]) is None:
            raise EnvironmentSetupError(f"command must begin with a program that can be found, got {command[0]}")
        missing = [name for name in environment if name not in os.environ]
        if missing:
            raise EnvironmentSetupError(f"environment must name variables that are set, got {missing}")
        self._server = StdioServerParameters(
            command=command[0], args=list(command[1:]), env={name: os.environ[name] for name in environment}
        )
        self._make_task = _find_function(task)
        self._wanted = None if tools is None else set(tools)
        self._timeout_s = timeout_s
        self._stack = ExitStack()

    def begin(self, seed: int, options: dict[str, Any]) -> Task:
        """Makes the task of a seed and starts its server."""
        self.close()
        task = self._make_task(seed, options)
        if not isinstance(task, McpTask):
            raise TypeError(f"task function must return an McpTask, got {task!r:.200}")
        self._task = task
        server = self._server.model_copy(update={"args": [*self._server.args, *task.arguments]})
        self._session = self._stack.enter_context(_open_session(server, self._timeout_s))
        self.tools = (*self._session.list_tools(self._wanted), ANSWER)
        return Task(user=task.user, system=task.system, info=task.info)

    def call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        """Has the server run one of its tools, and the task judge what came of it."""
        if name == ANSWER.name:
            result = ToolResult(observation="done", terminated=True, is_success=False)
        else:
            result = self._session.call_tool(name, arguments)
        result = self._task.judge(ToolCall(name=name, arguments=arguments), result)
        if isinstance(result, ToolResult) and result.terminated:
            self.close()
        return result

    def close(self) -> None:
        """Ends the server and the thread that talks to it; may be called at any time."""
        self._stack.close()


class _Session:
    """A server that has started, as seen from the thread that plays the episode."""

    def __init__(self, portal: "BlockingPortal", client: "Client", words: ServerWords) -> None:
        self._portal, self._client, self._words = portal, client, words

    def list_tools(self, wanted: set[str] | None) -> list[ToolSpec]:
        """What the server offers, in its order; None for all of it.

        Raises:
            InfrastructureFailure: it did not answer in time.
            ValueError: one that is wanted is not there, is no tool, or has the name of ours.
        """
        tools = []
        cursor = None
        for _ in range(_MAX_LIST_PAGES):
            with _lost("did not list its tools", self._words):
                page = self._portal.call(partial(self._client.list_tools, cursor=cursor))
            tools += page.tools
            cursor = page.next_cursor
            if cursor is None:
                break
        names = [each.name for each in tools]
        absent = (wanted or set()) - set(names)
        if absent:
            raise ValueError(f"tools must be names of the server's ({', '.join(names)}), got {sorted(absent)}")
        offered = [each for each in tools if wanted is None or each.name in wanted]
        if any(each.name == ANSWER.name for each in offered):
            raise ValueError(
                f"tools must have other names than {ANSWER.name}, which ends the task; name those you want"
            )
        return [foreign_tool(each.name, each.description or "", each.input_schema) for each in offered]

    def call_tool(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        """Runs a tool; a refusal or an error of the tool's is an observation.

        Raises:
            RuntimeError: the server hangs, or has ended.
        """
        from mcp import MCPError
        from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT

        try:
            result = self._portal.call(self._client.call_tool, name, arguments)
        except MCPError as error:
            if error.code in (CONNECTION_CLOSED, REQUEST_TIMEOUT):
                raise RuntimeError(f"the server failed in {name}: {error}") from error
            return ToolResult(observation=f"error: {error}", info={"is_error": True})
        text = content_text([block.model_dump(mode="json") for block in result.content], result.structured_content)
        if result.is_error:
            return ToolResult(observation=f"error: {text}", info={"is_error": True})
        return ToolResult(observation=text)


@contextmanager
def _open_session(server: "StdioServerParameters", timeout_s: float) -> Iterator[_Session]:
    """Starts a server, and ends it when the context ends.

    Raises:
        InfrastructureFailure: the server did not begin in time.
    """
    from anyio.from_thread import start_blocking_portal
    from mcp import Client, stdio_client

    with start_blocking_portal() as portal, hear_server(portal) as words, ExitStack() as stack:
        client = Client(stdio_client(server, words.sink), read_timeout_seconds=timeout_s)
        with _lost(f"{server.command} did not begin", words):
            stack.enter_context(portal.wrap_async_context_manager(_begun_in_time(client, timeout_s)))
        yield _Session(portal, client, words)


@asynccontextmanager
async def _begun_in_time(client: "Client", timeout_s: float) -> AsyncIterator[None]:
    """A client's session, whose negotiation has one deadline in all."""
    import anyio

    with anyio.move_on_after(timeout_s) as scope:
        async with client:
            # lifted, not left: scopes must end in the order in which they began
            scope.deadline = math.inf
            yield
    if scope.cancelled_caught:
        raise TimeoutError(f"it said nothing for {timeout_s:g} s")


@contextmanager
def _lost(what: str, words: ServerWords) -> Iterator[None]:
    """Whatever keeps a server from beginning says nothing about the policy."""
    from mcp import MCPError

    try:
        yield
    except (MCPError, OSError, ExceptionGroup) as error:
        cause: BaseException = error
        while isinstance(cause, BaseExceptionGroup):
            cause = cause.exceptions[0]
        said = words.last()
        raise InfrastructureFailure(
            f"the MCP server {what}: {cause}" + (f"; it said: {said}" if said else "")
        ) from cause


def _find_function(path: str) -> Callable[[int, dict[str, Any]], Any]:
    module_name, _, name = path.partition(":")
    module = import_user_module(module_name, None, named_by=f"env.kwargs.task={path}")
    function: Callable[[int, dict[str, Any]], Any] | None = getattr(module, name, None)
    if not callable(function):
        raise EnvironmentSetupError(
            f"task must be a function of a seed and options (my_package.module:function), got {path}: {function!r:.200}"
        )
    return function


gymnasium.register(id="McpTools-v0", entry_point=McpToolsEnv)
