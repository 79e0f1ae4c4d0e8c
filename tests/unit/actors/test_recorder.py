"""Lines of metrics.jsonl: what is written is read back, without steps that a restore undid."""

import json
import time
from pathlib import Path

import pytest

from segue.actors.faults import Fault
from segue.actors.plots import CurvesSink
from segue.actors.recorder import JsonlSink, Recorder, TensorBoardSink, Values, read_faults, read_metrics


class Listener:
    """A sink that remembers."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int, Values]] = []

    def write(self, kind: str, step: int, values: Values) -> None:
        self.events.append((kind, step, values))

    def close(self, status: str) -> None:
        self.events.append((status, 0, {}))


def test_every_sink_hears_everything() -> None:
    sinks = [Listener(), Listener()]
    recorder = Recorder(None, list(sinks))
    recorder.write("step", 1, {"batch/success/mean": 0.5, "batch/reward_term/process": None})
    recorder.close("finished")
    expected = [
        ("step", 1, {"batch/success/mean": 0.5, "batch/reward_term/process": None}),
        ("finished", 0, {}),
    ]
    assert [sink.events for sink in sinks] == [expected, expected]


def test_a_metric_that_the_list_does_not_hold_is_refused_before_any_sink() -> None:
    sink = Listener()
    with pytest.raises(KeyError, match=r"batch/succes/mean must stand in segue\.actors\.metrics"):
        Recorder(None, [sink]).write("step", 1, {"batch/succes/mean": 0.5})
    assert sink.events == []


def test_lines_are_json_without_nan(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path / "metrics.jsonl")
    sink.incarnation = 2
    sink.write("step", 3, {"batch/success/mean": 0.25, "batch/reward/std": None})
    with pytest.raises(ValueError, match="not JSON compliant"):
        sink.write("step", 4, {"batch/success/mean": float("nan")})
    sink.close("finished")
    (line,) = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert (line["kind"], line["step"], line["incarnation"]) == ("step", 3, 2)
    assert line["metrics"] == {"batch/success/mean": 0.25, "batch/reward/std": None}


def test_a_restore_undoes_later_steps(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    first = JsonlSink(path)
    first.write("eval", 0, {})
    for step in (1, 2, 3):
        first.write("step", step, {"batch/success/mean": step / 10})
    second = JsonlSink(path)
    second.incarnation = 1
    second.write("restore", 1, {})
    second.write("step", 2, {"batch/success/mean": 0.9})
    for sink in (first, second):
        sink.close("finished")
    kept = [(line["kind"], line["step"], line["metrics"].get("batch/success/mean")) for line in read_metrics(path)]
    assert kept == [("eval", 0, None), ("step", 1, 0.1), ("step", 2, 0.9)]
    assert len(path.read_text().splitlines()) == 6


def test_an_evaluation_that_was_played_again_replaces_the_first_of_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    sink = JsonlSink(path)
    for mode, value in (("sampled", 0.1), ("greedy", 0.2), ("sampled", 0.3)):
        sink.write("eval", 4, {f"eval/{mode}/success": value})
    sink.close("finished")
    assert [line["metrics"] for line in read_metrics(path)] == [
        {"eval/greedy/success": 0.2},
        {"eval/sampled/success": 0.3},
    ]


def test_reading_takes_time_in_proportion_to_the_lines(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    metrics = {"batch/success/mean": 0.5}
    lines = [json.dumps({"kind": "step", "step": step, "metrics": metrics}) for step in range(40_000)]
    path.write_text("\n".join(lines) + "\n")
    start = time.process_time()
    assert len(read_metrics(path)) == 40_000
    # holding each line against each takes 8e8 comparisons, minutes; a second is plenty for one pass
    assert time.process_time() - start < 20


def test_a_line_that_a_killed_process_left_half_written_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    first = JsonlSink(path)
    first.write("step", 1, {"batch/success/mean": 0.1})
    first.close("finished")
    with path.open("a") as file:
        file.write('{"kind": "step", "st')
    second = JsonlSink(path)
    second.incarnation = 1
    second.write("step", 2, {"batch/success/mean": 0.2})
    second.close("finished")
    assert [line["step"] for line in read_metrics(path)] == [1, 2]


def test_a_damaged_line_is_named_once_and_left_out_and_no_drawing_ends_a_run(tmp_path: Path) -> None:
    path, curves = tmp_path / "metrics.jsonl", tmp_path / "curves.png"
    whole = '{"kind": "step", "step": %d, "metrics": {"batch/success/mean": 0.5}}\n'
    fault = b'{"kind": "fault", "step": 2, "time": 1.0, "metrics": {}, "fault": %s}\n'
    bad = [b"{\n", b"\xff\n", b"7\n", b'{"kind": "step", "step": 2}\n', b"\n", b"[" * 100_000 + b"\n", fault % b"3"]
    path.write_bytes((whole % 1).encode() + b"".join(bad) + (whole % 3).encode())
    said: list[str] = []
    sink = CurvesSink(path, curves, tmp_path / "recall.png", said.append)
    sink.close("finished")
    sink.close("finished")
    assert [line["step"] for line in read_metrics(path)] == [1, 3]
    assert said == [f"line {number} of {path} is damaged and left out" for number in range(2, 9)]
    assert read_faults(path) == []
    assert curves.is_file()
    curves.unlink()
    # nothing can be written there
    curves.mkdir()
    sink.close("finished")
    assert said[7:] == [text for text in said if text.startswith(f"{curves} could not be drawn: IsADirectoryError")]
    assert len(said) == 8


def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    sink = TensorBoardSink(tmp_path)
    sink.write("step", 1, {"batch/success/mean": 0.25, "batch/reward/std": None})
    sink.write("step", 2, {"batch/success/mean": 0.5})
    sink.close("finished")
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert events.Tags()["scalars"] == ["batch/success/mean"]
    assert [(event.step, event.value) for event in events.Scalars("batch/success/mean")] == [(1, 0.25), (2, 0.5)]


def test_faults_are_kept_through_restores_and_are_no_metrics(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    recorder = Recorder(JsonlSink(path))
    recorder.begin_incarnation(0, 0)
    recorder.write("step", 1, {"loop/eta/s": 1.0})
    recorder.write_fault(1, Fault(who="rollout-0", what="died", done="replaced"))
    recorder.begin_incarnation(1, 0)
    recorder.write_fault(0, Fault(who="learner", what="lost", done="started anew"))
    recorder.close("finished")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["kind"], line["incarnation"]) for line in lines] == [
        ("step", 0),
        ("fault", 0),
        ("restore", 1),
        ("fault", 1),
    ]
    found = [(fault["step"], fault["who"], fault["what"], fault["done"]) for fault in read_faults(path)]
    assert found == [(1, "rollout-0", "died", "replaced"), (0, "learner", "lost", "started anew")]
    assert read_metrics(path) == []
