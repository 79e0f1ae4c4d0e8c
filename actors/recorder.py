"""Where metrics go: `metrics.jsonl`, TensorBoard and other loggers, Ray's metrics, and the console, which listens."""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from ray.util.metrics import Gauge
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from segue.actors.faults import Fault
from segue.actors.metrics import pattern_of

Values = Mapping[str, float | None]

_FAULT, _RESTORE = "fault", "restore"


class Sink(Protocol):
    """Takes the metrics of one event."""

    def write(self, kind: str, step: int, values: Values) -> None:
        """Record them; None means that the event has no such value."""

    def close(self, status: str) -> None:
        """Nothing follows; the launch ended as `finished`, `interrupted`, or with what failed."""


class JsonlSink:
    """`metrics.jsonl`: one object a line."""

    def __init__(self, path: Path) -> None:
        _cut_partial_line(path)
        self._file = path.open("a")
        self.incarnation = 0
        """Of the lines that follow."""

    def write(self, kind: str, step: int, values: Values) -> None:
        """See `Sink`."""
        self._append(kind, step, metrics=values)

    def write_fault(self, step: int, fault: Fault) -> None:
        """Record something that went wrong, in a line of kind `fault`."""
        self._append(_FAULT, step, metrics={}, fault=asdict(fault))

    def _append(self, kind: str, step: int, **members: Any) -> None:
        line = {"kind": kind, "step": step, "incarnation": self.incarnation, "time": time.time(), **members}
        self._file.write(json.dumps(line, allow_nan=False) + "\n")
        self._file.flush()

    def close(self, status: str) -> None:
        """See `Sink`."""
        self._file.close()


class TensorBoardSink:
    """Event files for TensorBoard."""

    def __init__(self, folder: Path) -> None:
        self._writer = EventFileWriter(str(folder))

    def write(self, kind: str, step: int, values: Values) -> None:
        """See `Sink`."""
        if kind == _RESTORE:
            # TensorBoard forgets what it was told of this step and later ones
            self._writer.add_event(
                Event(wall_time=time.time(), step=step + 1, session_log=SessionLog(status=SessionLog.START))
            )
            return
        present = [Summary.Value(tag=name, simple_value=value) for name, value in values.items() if value is not None]
        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=present)))

    def close(self, status: str) -> None:
        """See `Sink`."""
        self._writer.close()


class RayMetricsSink:
    """Gauges that Ray exports for Prometheus, as `ray_segue_<name>`."""

    def __init__(self) -> None:
        self._gauges: dict[str, Any] = {}

    def write(self, kind: str, step: int, values: Values) -> None:
        """See `Sink`."""
        for name, value in values.items():
            if value is not None:
                self._gauge(name).set(value)

    def close(self, status: str) -> None:
        """See `Sink`."""

    def _gauge(self, name: str) -> Any:
        if name not in self._gauges:
            legal = "".join(c if c.isascii() and c.isalnum() else "_" for c in name)
            self._gauges[name] = Gauge(f"segue_{legal}", description=pattern_of(name))
        return self._gauges[name]


class Recorder:
    """Checks names against the list of metrics and hands values to every sink.

    Args:
        lines: takes faults as well; None keeps none.
        sinks: the others.
    """

    def __init__(self, lines: JsonlSink | None, sinks: Sequence[Sink] = ()) -> None:
        self._lines = lines
        self._sinks = [*([] if lines is None else [lines]), *sinks]

    def begin_incarnation(self, incarnation: int, step: int) -> None:
        """The run goes on from this step; what was recorded of later ones does not count any more."""
        if self._lines is not None:
            self._lines.incarnation = incarnation
        if incarnation:
            self.write(_RESTORE, step, {})

    def write_fault(self, step: int, fault: Fault) -> None:
        """Record something that went wrong while the run was at this step."""
        if self._lines is not None:
            self._lines.write_fault(step, fault)

    def write(self, kind: str, step: int, values: Values) -> None:
        """Record the metrics of one event.

        Args:
            kind: `step`, `eval`, or `restore` (no values: the run goes on from this step).
            step: learner steps done.
        Raises:
            KeyError: a metric that the list does not hold.
        """
        for name in values:
            pattern_of(name)
        for sink in self._sinks:
            sink.write(kind, step, values)

    def close(self, status: str) -> None:
        """Nothing follows; the launch ended as `Sink.close` says."""
        for sink in self._sinks:
            sink.close(status)


@dataclass(frozen=True, slots=True)
class Progress:
    """What `metrics.jsonl` holds already."""

    num_events: int = 0
    """Lines, of all incarnations."""
    num_restores: int = 0
    """Of these, restores."""


def read_progress(path: Path) -> Progress:
    """How far the recording has come."""
    kinds = [line["kind"] for line in _read_lines(path)]
    return Progress(len(kinds), kinds.count(_RESTORE))


def _cut_partial_line(path: Path) -> None:
    """Remove what a process that was killed while it wrote left behind the last whole line."""
    if path.is_file():
        data = path.read_bytes()
        os.truncate(path, data.rfind(b"\n") + 1)


def read_metrics(path: Path, say: Callable[[str], None] = lambda text: None) -> list[dict[str, Any]]:
    """Steps and evaluations of `metrics.jsonl` that are on the line of the run, in order.

    A line of kind `restore` undoes the steps after it, and an evaluation that was played again replaces the first.

    Args:
        say: is told of each line that cannot be read; such a line is left out.
    """
    kept: dict[Any, dict[str, Any]] = {}
    for line in _read_lines(path, say):
        if line["kind"] == _RESTORE:
            kept = {event: earlier for event, earlier in kept.items() if earlier["step"] <= line["step"]}
        elif line["kind"] != _FAULT:
            event = (line["kind"], line["step"], frozenset(line["metrics"]))
            kept.pop(event, None)
            kept[event] = line
    return list(kept.values())


def read_faults(path: Path) -> list[dict[str, Any]]:
    """Everything that went wrong, of all incarnations, in order: time, step, and a `faults.Fault`'s members."""
    return [
        {"time": line["time"], "step": line["step"], **line["fault"]}
        for line in _read_lines(path)
        if line["kind"] == _FAULT
    ]


def _read_lines(path: Path, say: Callable[[str], None] = lambda text: None) -> Iterator[dict[str, Any]]:
    if not path.is_file():
        return
    with path.open("rb") as file:
        for number, text in enumerate(file, start=1):
            line = _parse_line(text)
            if line is None:
                say(f"line {number} of {path} is damaged and left out")
            else:
                yield line


def _parse_line(text: bytes) -> dict[str, Any] | None:
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return None
    fields: dict[str, Any] = {"kind": str, "step": int, "metrics": dict}
    if isinstance(line, dict) and line.get("kind") == _FAULT:
        fields |= {"time": float, "fault": dict}
    is_whole = isinstance(line, dict) and all(isinstance(line.get(name), of) for name, of in fields.items())
    return line if is_whole else None
