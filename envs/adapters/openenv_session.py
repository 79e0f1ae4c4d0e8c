"""An OpenEnv server as an environment: `/schema` says what an action is, a web socket is an episode.

    begin -> connect, {reset: seed} <- observation      one session of the server's for each episode
    call  -> {step: action}         <- observation, reward, done

Spoken is the protocol of `openenv`'s servers as their own client speaks it. That client's package would bring a web
interface and clients of models into every env worker, and pins that exclude ours.

The server is somebody else's process: Segue neither starts nor ends it. Its session ends with the episode, or with
`close`.
"""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import gymnasium

from segue.envs.adapters.extra import needs_extra
from segue.envs.adapters.foreign_content import content_text, value_text
from segue.envs.adapters.foreign_schema import foreign_tool
from segue.envs.errors import EnvironmentSetupError, InfrastructureFailure
from segue.envs.tool import ToolSpec
from segue.envs.tool_env import Task, ToolEnv, ToolResult

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

_SCHEMES = {"http": "ws", "https": "wss"}
_MAX_BYTES = 4 * 2**20
_CLOSE_TIMEOUT_S = 2.0
# of an action whose tools are listed by the environment itself
_TOOL_ACTION = "call_tool"
# an observation's fields that are no observation
_APART = ("metadata", "done", "reward")
# codes of a server that has no session to give, whoever asks
_REFUSALS = ("CAPACITY_REACHED", "FACTORY_ERROR", "SESSION_ERROR")


class OpenEnvSessionEnv(ToolEnv):
    """Each episode is a session of the server's; its action is the tool `act`, or its tools are ours.

    Success of an episode that is done: the rewards of its steps come to `success_return` at least.
    """

    def __init__(
        self,
        *,
        url: str,
        success_return: float = 1.0,
        reset: dict[str, Any] | None = None,
        instructions: str = "",
        timeout_s: float = 15.0,
    ) -> None:
        """Asks the server what its actions are.

        Args:
            url: of the server, such as `http://127.0.0.1:8000`.
            success_return: sum of an episode's rewards that counts as success.
            reset: parameters of every reset, beside the seed.
            instructions: message of the system, for servers whose first observation does not say what to do.
            timeout_s: deadline of each answer of the server, in seconds; `env.call_timeout_s` should be longer.
        Raises:
            EnvironmentSetupError: websockets is not installed, nobody answers there, or it is no OpenEnv server.
        """
        with needs_extra("openenv"):
            import websockets.sync.client  # noqa: F401
        scheme, _, place = url.rstrip("/").partition("://")
        if scheme not in _SCHEMES or not place:
            raise EnvironmentSetupError(f"url must begin with http:// or https://, got {url!r}")
        self._url, self._socket_url = f"{scheme}://{place}", f"{_SCHEMES[scheme]}://{place}/ws"
        self._success_return, self._reset = success_return, dict(reset or {})
        self._instructions, self._timeout_s = instructions, timeout_s
        schema = self._fetch_action()
        self._has_own_tools = schema.get("properties", {}).get("type", {}).get("const") == _TOOL_ACTION
        properties = {name: inner for name, inner in schema.get("properties", {}).items() if name not in _APART}
        self._act = foreign_tool("act", schema.get("description", ""), {**schema, "properties": properties})
        self._session: _Session | None = None
        self._return = 0.0

    def begin(self, seed: int, options: dict[str, Any]) -> Task:
        """Resets a new session; `options` are parameters of the reset."""
        self.close()
        self._session = _Session(self._socket_url, self._timeout_s)
        self.tools = self._session.list_tools() if self._has_own_tools else (self._act,)
        reply = self._session.ask("reset", {**self._reset, **options, "seed": seed})
        self._return = 0.0
        return Task(user=_text(reply), system=self._instructions)

    def call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        """Takes a step; what the server does not take for an action is an observation."""
        assert self._session is not None, "an episode is running"
        action = {"type": _TOOL_ACTION, "tool_name": name, "arguments": arguments} if self._has_own_tools else arguments
        try:
            reply = self._session.ask("step", action)
        except _NoActionError as error:
            return ToolResult(observation=f"error: {error}", info={"is_error": True})
        reward, is_done = float(reply.get("reward") or 0.0), bool(reply.get("done"))
        self._return += reward
        if is_done:
            self.close()
        return ToolResult(
            observation=_text(reply),
            reward_terms={"reward": reward},
            terminated=is_done,
            is_success=self._return >= self._success_return if is_done else None,
        )

    def close(self) -> None:
        """Ends the session; may be called at any time."""
        if self._session is not None:
            self._session.close()
            self._session = None

    def _fetch_action(self) -> dict[str, Any]:
        # no proxy stands before a server that one names
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        remedy = "start it, or name another one with env.kwargs.url"
        try:
            with opener.open(f"{self._url}/schema", timeout=self._timeout_s) as response:
                schema = json.loads(response.read(_MAX_BYTES))["action"]
        except urllib.error.HTTPError as error:
            raise EnvironmentSetupError(f"url must be an OpenEnv server's, got {self._url}: {error}") from error
        except OSError as error:
            raise EnvironmentSetupError(f"no OpenEnv server answers at {self._url}: {error}; {remedy}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise EnvironmentSetupError(
                f"url must be an OpenEnv server's, got {self._url}, which has no schema"
            ) from error
        if not isinstance(schema, dict):
            raise EnvironmentSetupError(f"schema of {self._url} must be a dictionary, got {schema!r:.200}")
        return schema


class _NoActionError(Exception):
    """The server does not take it for an action; the message is for the policy."""


class _Session:
    """A connected web socket."""

    def __init__(self, url: str, timeout_s: float) -> None:
        from websockets.sync.client import connect

        self._url, self._timeout_s = url, timeout_s
        self._stack = ExitStack()
        with _lost(url):
            self._connection: ClientConnection = self._stack.enter_context(
                connect(
                    url,
                    proxy=None,
                    open_timeout=timeout_s,
                    close_timeout=_CLOSE_TIMEOUT_S,
                    ping_interval=None,
                    max_size=_MAX_BYTES,
                )
            )

    def list_tools(self) -> tuple[ToolSpec, ...]:
        """The tools of an environment that has some, which are known before it is reset."""
        tools = self.ask("step", {"type": "list_tools"})["observation"]["tools"]
        return tuple(foreign_tool(each["name"], each["description"], each["input_schema"]) for each in tools)

    def ask(self, kind: str, data: dict[str, Any]) -> dict[str, Any]:
        """Sends a message and waits for its observation.

        Raises:
            _NoActionError: the data is no action.
            RuntimeError: the environment raised, or did not answer in time.
            InfrastructureFailure: the server has no session to give, or is gone.
        """
        from websockets.exceptions import ConnectionClosed

        with _lost(self._url):
            # one that refuses a session says why and closes: its word may be there although nothing can be sent
            with suppress(ConnectionClosed):
                self._connection.send(json.dumps({"type": kind, "data": data}))
            try:
                frame = json.loads(self._connection.recv(timeout=self._timeout_s))
            except TimeoutError as error:
                raise RuntimeError(f"the OpenEnv server did not answer {kind} within {self._timeout_s:g} s") from error
        if frame["type"] == "observation":
            reply: dict[str, Any] = frame["data"]
            return reply
        fault = frame["data"]
        if fault.get("code") in _REFUSALS:
            raise InfrastructureFailure(f"the OpenEnv server at {self._url} gives no session: {fault['message']}")
        if fault.get("code") == "VALIDATION_ERROR" and kind == "step":
            problems = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in fault.get("errors", ())]
            raise _NoActionError("; ".join(problems) or fault["message"])
        raise RuntimeError(f"{kind} failed in the OpenEnv server: {fault.get('message')}")

    def close(self) -> None:
        """Says that the session is over and waits, a little, until the server has ended it: its place is free then."""
        from websockets.exceptions import ConnectionClosed

        with suppress(ConnectionClosed, TimeoutError, OSError):
            self._connection.send(json.dumps({"type": "close"}))
            self._connection.recv(timeout=_CLOSE_TIMEOUT_S)
        self._stack.close()


@contextmanager
def _lost(url: str) -> Iterator[None]:
    """A server that is gone says nothing about the policy."""
    from websockets.exceptions import WebSocketException

    try:
        yield
    except (OSError, WebSocketException) as error:
        raise InfrastructureFailure(f"the OpenEnv server at {url} is gone: {error}") from error


def _text(reply: dict[str, Any]) -> str:
    """What of a reply the policy reads: the observation's fields, or else what stands beside them."""
    observation = reply["observation"]
    shown = {name: value for name, value in observation.items() if name not in _APART and value is not None}
    result = shown.get("result")
    if "tool_name" in shown:
        if shown.get("error") is not None:
            return f"error: {shown['error'].get('message')}"
        if isinstance(result, dict) and "content" in result:
            text = content_text(result["content"], result.get("structured_content"))
            return f"error: {text}" if result.get("is_error") else text
        return value_text(result)
    return value_text(shown or observation.get("metadata") or {})


gymnasium.register(id="OpenEnv-v0", entry_point=OpenEnvSessionEnv)
