"""The form of `controller.json` in a checkpoint: what the controller's parts write there, and take up again.

A file of another form was written by another version of Segue, or by hand: it is told before anything is taken up.
"""

import json
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter, ValidationError

from segue.actors.buffer import DropReason
from segue.actors.group_record import GroupRecord
from segue.actors.stages import BegunStage, Measurement
from segue.actors.totals import Totals


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tasks:
    """Of `TaskStream.state`."""

    cursor: int = 0
    unfinished: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Effort:
    """Of `Effort.state`."""

    measured: dict[str, int] | None = None
    begun: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class _BufferEntry:
    record: GroupRecord
    uses: list[int]
    dropped: DropReason | None
    dropped_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Buffer:
    """Of `Buffer.state`."""

    entries: list[_BufferEntry] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Regime:
    first_task: int
    stage: int
    mix: list[tuple[int, bool, float]]
    text_start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stages:
    """Of `Stages.state`."""

    stages: list[BegunStage] = field(default_factory=list)
    measurements: list[Measurement] = field(default_factory=list)
    regimes: list[_Regime] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ControllerState:
    """Of the controller; every part of it has a beginning."""

    step: int = 0
    tasks: _Tasks = field(default_factory=_Tasks)
    effort: _Effort = field(default_factory=_Effort)
    buffer: _Buffer = field(default_factory=_Buffer)
    evaluations: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    evaluated_step: int = 0
    stages: _Stages = field(default_factory=_Stages)
    best: tuple[float, int] | None = None
    totals: Totals = field(default_factory=Totals)


_FORM = TypeAdapter(_ControllerState)


def _without_info(value: dict[str, Any]) -> dict[str, Any]:
    """Environments put any values there."""
    return value | {"info": {}} if isinstance(value.get("info"), dict) else value


def misfit(text: bytes) -> str | None:
    """What of a state's JSON has not its form; None where all has."""
    try:
        # the form's own reader takes less than the writer writes: no half of a surrogate pair, and no deep values
        state = json.loads(text, object_hook=_without_info)
        text = json.dumps(state, ensure_ascii=False).encode(errors="replace")
    except (ValueError, RecursionError):
        # it names what is wrong
        pass
    try:
        _FORM.validate_json(text, strict=True, extra="forbid")
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        return f"{place}: {first['msg']}" if place else str(first["msg"])
    return None
