"""Conversations as tokens: XTML's messages, in K3's order, and the grammar of a sampled assistant turn.

    message := element(message) END_OF_MSG

A stream is: tool declaration, system, user, then assistant turns and their tool results. What is rendered before a
turn ends with the generation prefix, which opens the assistant's message and its first channel; the turn itself is
everything after that through END_OF_MSG, and the only part that trains.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segue.envs.tool import ToolSpec
from segue.model.tokenizer.base import Tokenizer
from segue.rollout.trajectory import Int32Array
from segue.rollout.xtml import MalformedTurn, XtmlReader, XtmlWriter


class Mode(Enum):
    """Whether a turn starts with a `think` channel."""

    instruct = "instruct"
    thinking = "thinking"


@dataclass(frozen=True, slots=True, kw_only=True)
class AssistantCall:
    """A tool call as the assistant wrote it."""

    tool: str
    arguments: dict[str, Any]
    """Key to JSON value; the raw text where it did not decode as its type."""
    error: str | None = None
    """Which argument did not decode and why; such a call must not reach the tool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AssistantTurn:
    """What an assistant message says.

    Example:
        `AssistantTurn(response="", calls=(AssistantCall(tool="query", arguments={"sql": "SELECT 1"}),))`
    """

    response: str
    calls: tuple[AssistantCall, ...] = ()
    think: str = ""
    """Empty in instruct mode, which has no such channel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallResult:
    """What a call brought back."""

    tool: str
    index: int
    """Place of the call in its turn, from 1."""
    text: str


class Chat:
    """Renders and reads conversations with one tokenizer.

    Invariants:
        `parse_assistant(render_assistant(turn)) == turn` for JSON values and text that UTF-8 can hold, and likewise
        what is read of tasks and results; text never becomes structure; whatever ids are parsed, only `MalformedTurn`
        is raised: tests/property/test_xtml.py.
    Source:
        The published format of Kimi-K3. Differs: no messages for thinking effort, tool choice or response format.
    """

    def __init__(self, tokenizer: Tokenizer, mode: Mode = Mode.instruct) -> None:
        self.tokenizer = tokenizer
        self.mode = mode
        self._writer = XtmlWriter(tokenizer)

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end a turn."""
        return (self.tokenizer.special.end_of_msg, self.tokenizer.special.eos)

    def render_task(self, system: str, tools: Sequence[ToolSpec], user: str) -> Int32Array:
        """The stream up to the first turn.

        Args:
            system: text of the system message; an empty one leaves the message out.
            tools: declared in this order; none leaves the declaration out.
            user: text of the user's message.
        Returns:
            Token ids, the generation prefix last.
        """
        write = self._writer
        ids: list[int] = []
        if tools:
            ids += write.open("message", {"role": "system", "type": "tool-declare"})
            ids += write.constant(f"```json\n{declaration(tools)}\n```")
            ids += write.end_message()
        if system:
            ids += write.open("message", {"role": "system"})
            ids += write.text(system)
            ids += write.end_message()
        ids += write.open("message", {"role": "user"})
        ids += write.text(user)
        ids += write.end_message()
        return np.array(ids + self._generation_prefix(), np.int32)

    def render_assistant(self, turn: AssistantTurn) -> Int32Array:
        """The turn as a policy would sample it: from after the generation prefix through END_OF_MSG.

        Raises:
            ValueError: `think` is not empty in instruct mode, or an argument is no JSON value.
        """
        write = self._writer
        ids: list[int] = []
        if self.mode is Mode.thinking:
            ids += write.text(turn.think) + write.close("think") + write.open("response")
        elif turn.think:
            raise ValueError(f"think must be empty in instruct mode, got {turn.think!r}")
        ids += write.text(turn.response) + write.close("response")
        if turn.calls:
            ids += write.open("tools")
            for index, call in enumerate(turn.calls, start=1):
                ids += self._render_call(call, index)
            ids += write.close("tools")
        return np.array(ids + write.end_message(), np.int32)

    def render_tool_results(self, results: Sequence[CallResult]) -> Int32Array:
        """The results of a turn's calls in the order of the calls, then the next generation prefix."""
        write = self._writer
        ids: list[int] = []
        for result in sorted(results, key=lambda r: r.index):
            ids += write.open("message", {"role": "tool", "tool": result.tool, "index": str(result.index)})
            ids += write.text(result.text)
            ids += write.end_message()
        return np.array(ids + self._generation_prefix(), np.int32)

    def parse_assistant(self, ids: Sequence[int] | NDArray[np.integer]) -> AssistantTurn:
        """Read a sampled turn: from after the generation prefix through END_OF_MSG.

        Args:
            ids: any integers; text between structure tokens may be split into tokens in any way.
        Raises:
            MalformedTurn: anything but an assistant turn; see docs/chat.md for what is accepted.
        """
        reader = XtmlReader(self.tokenizer, ids)
        think = ""
        if self.mode is Mode.thinking:
            think = reader.text()
            reader.take_close("think")
            reader.take_open("response")
        response = reader.text()
        reader.take_close("response")
        calls: list[AssistantCall] = []
        if reader.next_opens():
            reader.take_open("tools")
            # at least one: an empty list of calls is written by leaving it out
            calls.append(_parse_call(reader, 1))
            while reader.next_opens():
                calls.append(_parse_call(reader, len(calls) + 1))
            reader.take_close("tools")
        reader.take_end()
        return AssistantTurn(response=response, calls=tuple(calls), think=think)

    def read_task(self, ids: Sequence[int] | NDArray[np.integer]) -> tuple[str, str]:
        """Texts of the system and the user's message in what `render_task` made."""
        texts = {"system": "", "user": ""}
        for attributes, text in self._read_messages(ids):
            if "type" not in attributes:
                texts[attributes["role"]] = text
        return texts["system"], texts["user"]

    def read_tool_results(self, ids: Sequence[int] | NDArray[np.integer]) -> tuple[str, ...]:
        """Texts of the results in what `render_tool_results` made."""
        return tuple(text for _, text in self._read_messages(ids))

    def _read_messages(self, ids: Sequence[int] | NDArray[np.integer]) -> Iterator[tuple[dict[str, str], str]]:
        """Attributes and text of each message before the generation prefix."""
        reader = XtmlReader(self.tokenizer, ids)
        while (attributes := reader.take_message())["role"] != "assistant":
            yield attributes, reader.text()
            reader.take_message_end()

    def _generation_prefix(self) -> list[int]:
        channel = "think" if self.mode is Mode.thinking else "response"
        return self._writer.open("message", {"role": "assistant"}) + self._writer.open(channel)

    def _render_call(self, call: AssistantCall, index: int) -> list[int]:
        write = self._writer
        ids = write.open("call", {"tool": call.tool, "index": str(index)})
        for key, value in call.arguments.items():
            kind = _json_type(value)
            ids += write.open("argument", {"key": key, "type": kind})
            ids += write.text(value if kind == "string" else _dumps(value))
            ids += write.close("argument")
        return ids + write.close("call")


def _parse_call(reader: XtmlReader, index: int) -> AssistantCall:
    tool, found = reader.take_open("call", ("tool", "index"))
    if found != str(index):
        raise MalformedTurn(f"expected a call with index {index}, got {found[:8]!r}")
    arguments: dict[str, Any] = {}
    errors: list[str] = []
    while reader.next_opens():
        key, kind = reader.take_open("argument", ("key", "type"))
        if kind not in _PYTHON_TYPES:
            raise MalformedTurn(f"expected a type among {', '.join(_PYTHON_TYPES)}, got {kind[:16]!r}")
        if key in arguments:
            raise MalformedTurn(f"argument {key[:16]!r} is given twice")
        text = reader.text()
        reader.take_close("argument")
        try:
            arguments[key] = text if kind == "string" else _loads(text, kind)
        # RecursionError: deeper nesting than can be read at all
        except (ValueError, RecursionError) as error:
            arguments[key] = text
            errors.append(f"argument {key!r} is not a valid {kind}: {error}")
    reader.take_close("call")
    return AssistantCall(tool=tool, arguments=arguments, error="; ".join(errors) or None)


_MAX_DEPTH = 64
"""Objects and arrays in each other."""

_PYTHON_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "object": (dict,),
    "array": (list,),
}


def _json_type(value: object) -> str:
    # a bool is an int, too
    if isinstance(value, bool):
        return "boolean"
    for kind, types in _PYTHON_TYPES.items():
        if isinstance(value, types):
            return kind
    raise ValueError(f"an argument must be a JSON value, got {type(value).__name__}")


def _dumps(value: object, *, sort_keys: bool = False) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=sort_keys)


def _loads(text: str, kind: str) -> Any:
    value = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite_float)
    if _json_type(value) != kind:
        raise ValueError(f"it is of type {_json_type(value)}")
    _check_depth(value, _MAX_DEPTH)
    # an escaped lone surrogate decodes, but no file, database or frame could hold it
    _dumps(value).encode()
    return value


def _check_depth(value: Any, left: int) -> None:
    """Refuse what those who walk through it, such as `copy.deepcopy`, would run out of stack over."""
    if not isinstance(value, dict | list):
        return
    if not left:
        raise ValueError(f"it nests more than {_MAX_DEPTH} deep")
    for part in value.values() if isinstance(value, dict) else value:
        _check_depth(part, left - 1)


def _refuse_constant(name: str) -> float:
    raise ValueError(f"JSON has no {name}")


def _finite_float(text: str) -> float:
    value = float(text)
    if not isfinite(value):
        raise ValueError(f"{text[:16]} is out of range")
    return value


def declaration(tools: Sequence[ToolSpec]) -> str:
    """The tools as JSON: keys sorted, no spaces."""
    return _dumps(
        [
            {
                "type": "function",
                "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
            }
            for tool in tools
        ],
        sort_keys=True,
    )
