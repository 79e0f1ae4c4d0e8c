"""What an environment answers, as it travels from a worker: JSON values only."""

import math
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from segue.envs.tool import ToolSpec

CLASS_KEY = "question_class"
"""Key of a task's info that names the class of tasks that it belongs to, where its environment has classes."""
_MAX_ARRAY_SIZE = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class ResetReply:
    """A task that has begun."""

    observation: str
    """The user's message."""
    system: str
    """The system message; empty for none."""
    tools: tuple[ToolSpec, ...]
    info: dict[str, Any]
    """JSON values for records and metrics."""

    def to_header(self) -> dict[str, Any]:
        """As a frame's header."""
        return asdict(self)

    @classmethod
    def from_header(cls, header: dict[str, Any]) -> "ResetReply":
        """From a frame's header."""
        return cls(**{**header, "tools": tuple(ToolSpec(**spec) for spec in header["tools"])})


@dataclass(frozen=True, kw_only=True, slots=True)
class StepReply:
    """What one call led to."""

    observation: str
    reward_terms: dict[str, float]
    """Named terms of this step; its reward is their sum."""
    terminated: bool
    """The task is over."""
    truncated: bool
    """The environment cut the episode."""
    info: dict[str, Any]
    """JSON values; `is_success` with the last step."""

    def to_header(self) -> dict[str, Any]:
        """As a frame's header."""
        return asdict(self)

    @classmethod
    def from_header(cls, header: dict[str, Any]) -> "StepReply":
        """From a frame's header."""
        return cls(**header)


@dataclass(frozen=True, kw_only=True, slots=True)
class Inspection:
    """What a check is told of an environment and of the last observation that it gave."""

    is_foreign: bool
    """Not written as a `ToolEnv`."""
    has_demonstrator: bool
    max_calls: int | None = None
    """Calls after which an episode is declared to be truncated; None where no bound is declared."""
    needed_return: float | None = None
    """Return that counts as success where a foreign environment's info does not say it; None where none does."""
    in_short: list[str] = field(default_factory=list)
    """Paths of the arrays in an observation whose numbers a policy never sees in full."""
    cut: list[str] = field(default_factory=list)
    """Paths of what stands, in part or in all, beyond the characters that a policy sees of the last observation."""
    misfits: list[str] = field(default_factory=list)
    """What of the last observation lies outside of the declared space."""
    form_misfits: list[str] = field(default_factory=list)
    """What of it has another dtype or container than the declared space's."""

    def to_header(self) -> dict[str, Any]:
        """As a frame's header."""
        return asdict(self)


def cut_text(text: str, max_chars: int) -> str:
    """The text, or its beginning and a note of how much there was."""
    if len(text) <= max_chars:
        return text
    return f"{text[:max_chars]}\n[cut: {max_chars} of {len(text)} characters]"


def to_json(value: Any, path: str) -> Any:
    """A value of an environment's info as JSON: numpy values become Python's, tuples lists, keys strings.

    Raises:
        ValueError: a number is NaN or infinite, or an array has more than 1,024 entries.
        TypeError: there is no JSON for it.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray):
        if value.size > _MAX_ARRAY_SIZE:
            raise ValueError(f"{path} must have at most {_MAX_ARRAY_SIZE} entries, got {value.size}")
        value = value.tolist()
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{path} must be finite, got {value}")
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, dict):
        return {str(key): to_json(inner, f"{path}.{key}") for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(inner, f"{path}[{index}]") for index, inner in enumerate(value)]
    raise TypeError(f"{path} must be JSON (numbers, text, lists, dicts, small arrays), got {type(value).__name__}")
