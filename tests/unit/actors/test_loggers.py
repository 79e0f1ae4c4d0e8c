"""Loggers beside TensorBoard, with the real packages and no network: one run of ours is one run of theirs."""

import json
import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from segue.actors import loggers
from segue.actors.background_sink import BackgroundSink
from segue.actors.cli.main import main
from segue.actors.loggers import open_loggers, where_to_look
from segue.actors.recorder import JsonlSink, Recorder, Values, read_progress
from segue.actors.run_folder import RunFolder
from segue.conf.environment import apply_driver_environment
from segue.conf.load import load_config

KEY = "sk-5772156649"
SUCCESS = "batch/success/mean"
VARIANT = "eval/ünlike (2)/success"

# a launch from the start that goes back from step 3 to step 1 once, then one that resumes at step 2
LAUNCHES: tuple[tuple[str, tuple[tuple[str, int, float | None], ...]], ...] = (
    ("interrupted", (("step", 1, 0.1), ("step", 2, 0.2), ("step", 3, 0.3), ("restore", 1, None), ("step", 2, 0.4))),
    ("finished", (("restore", 2, None), ("step", 3, 0.5), ("step", 4, None), ("eval", 4, 0.6))),
)


@dataclass
class Story:
    """What was recorded, and said."""

    folder: RunFolder
    said: list[str]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_API_KEY", "0" * 30 + "5772156649")
        patch.setenv("MLFLOW_TRACKING_PASSWORD", KEY)
        apply_driver_environment()
        folder = RunFolder(tmp_path_factory.mktemp("logged") / "run")
        folder.path.mkdir()
        config = load_config(
            [
                "run.loggers=[tensorboard,wandb,mlflow]",
                f"run.dir={folder.path}",
                "seed=3",
                f"env.kwargs.api_key={KEY}",
                f"env.kwargs.url=https://me:{KEY}@host/a",
            ]
        )
        said: list[str] = []
        for status, events in LAUNCHES:
            folder.begin(config, {"command": "train", "restored_steps": [0]})
            # of the configuration it is known that it is kept in full
            folder.config.unlink()
            recorder = Recorder(JsonlSink(folder.metrics), open_loggers(config, folder, said.append))
            for kind, step, value in events:
                names = {"restore": (), "step": (SUCCESS,), "eval": (VARIANT,)}[kind]
                recorder.write(kind, step, dict.fromkeys(names, value))
            recorder.close(status)
        yield Story(folder, said)


def wandb_records(folder: Path) -> Iterator[tuple[str, Any]]:
    """Kind and record of everything in W&B's own file: blocks of 32 KB, of parts behind checksum, length and place."""
    from wandb.proto.wandb_internal_pb2 import Record

    (path,) = folder.glob("*.wandb")
    data, whole, at = path.read_bytes(), b"", 7
    while at + 7 <= len(data):
        _, length, place = struct.unpack("<IHB", data[at : at + 7])
        whole, at = whole + data[at + 7 : at + 7 + length], at + 7 + length
        # the whole of it, or its last part
        if place in (1, 4):
            record = Record.FromString(whole)
            kind, whole = record.WhichOneof("record_type"), b""
            yield kind, getattr(record, kind)
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768


def test_wandb_has_one_run_with_a_row_an_event_and_tells_undone_steps_by_their_incarnation(story: Story) -> None:
    rows, ids, codes, settings = [], [], [], {}
    for folder in sorted(story.folder.wandb.glob("offline-run-*")):
        # such as the list of installed packages
        assert [*folder.glob("files/*")] == []
        for kind, record in wandb_records(folder):
            if kind == "run":
                ids.append((record.run_id, record.project, record.display_name))
                settings |= {item.key: json.loads(item.value_json) for item in record.config.update}
            elif kind == "history":
                items = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.item}
                rows.append((record.step.num, *map(items.get, ("incarnation", "step", SUCCESS, VARIANT))))
            elif kind == "exit":
                codes.append(record.exit_code)
    assert rows == [
        (0, 0, 1, 0.1, None),
        (1, 0, 2, 0.2, None),
        (2, 0, 3, 0.3, None),
        (3, 1, 1, None, None),
        (4, 1, 2, 0.4, None),
        (5, 2, 2, None, None),
        (6, 2, 3, 0.5, None),
        (7, 2, 4, None, None),
        (8, 2, 4, None, 0.6),
    ]
    run_id = (story.folder.wandb / "run_id").read_text()
    assert set(ids) == {(run_id, "segue", "run")} and codes == [1, 0]
    assert settings["seed"] == 3 and settings["env.kwargs.api_key"] == "***"
    assert f"wandb: nothing is sent; wandb sync {story.folder.wandb}/offline-run-*" in story.said


def test_mlflow_has_one_run_with_the_points_of_undone_steps_before_those_that_took_their_place(story: Story) -> None:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{story.folder.mlflow}/mlflow.db")
    experiment = client.get_experiment_by_name("segue")
    (run,) = client.search_runs([experiment.experiment_id])
    points = sorted((p.step, p.timestamp, p.value) for p in client.get_metric_history(run.info.run_id, SUCCESS))
    assert [(step, value) for step, _, value in points] == [(1, 0.1), (2, 0.2), (2, 0.4), (3, 0.3), (3, 0.5)]
    # signs that MLflow refuses
    assert run.data.metrics == {SUCCESS: 0.5, "eval/ünlike _2_/success": 0.6}
    assert (run.info.run_name, run.info.status, run.data.tags["incarnation"]) == ("run", "FINISHED", "2")
    assert run.data.params["seed"] == "3" and run.data.params["env.kwargs.api_key"] == "***"
    assert experiment.artifact_location == (story.folder.mlflow / "artifacts").as_uri()


def test_tensorboard_forgets_undone_steps(story: Story) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(story.folder.events))
    events.Reload()
    found = [(event.step, round(event.value, 6)) for event in events.Scalars(SUCCESS)]
    assert found == [(1, 0.1), (2, 0.4), (3, 0.5)]


def test_no_logger_keeps_a_secret(story: Story) -> None:
    files = [path for path in story.folder.path.rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {"mlflow.db", "run_id", "debug-internal.log"}
    assert [path for path in files if b"5772156649" in path.read_bytes()] == []
    assert "5772156649" not in "".join(story.said)


def test_progress_counts_events_and_restores_of_all_launches(story: Story) -> None:
    progress = read_progress(story.folder.metrics)
    assert (progress.num_events, progress.num_restores) == (9, 2)


class Faulty:
    """A sink that fails where it is told to, and says what it was given before."""

    def __init__(self, where: str, seen: list[str]) -> None:
        self._where, self._seen = where, seen
        self._do("open")

    def write(self, kind: str, step: int, values: Values) -> None:
        self._do(f"{kind} {step}")

    def close(self, status: str) -> None:
        self._do(status)

    def _do(self, what: str) -> None:
        if what == self._where:
            raise OSError(f"no route\nto host, {what}")
        self._seen.append(what)


@pytest.mark.parametrize(
    ("where", "seen"),
    [
        ("open", []),
        ("step 1", ["open"]),
        ("step 2", ["open", "step 1"]),
        ("finished", ["open", "step 1", "step 2"]),
        ("nowhere", ["open", "step 1", "step 2", "finished"]),
    ],
)
def test_a_logger_that_fails_is_told_once_and_holds_up_neither_the_run_nor_the_others(
    where: str, seen: list[str], tmp_path: Path
) -> None:
    said: list[str] = []
    done: list[str] = []
    faulty = BackgroundSink("mlflow", lambda say: Faulty(where, done), said.append)
    recorder = Recorder(JsonlSink(tmp_path / "metrics.jsonl"), [faulty])
    for step in (1, 2):
        recorder.write("step", step, {})
    recorder.close("finished")
    assert done == seen
    told = (
        f"mlflow failed: OSError: no route to host, {where}; the run goes on without it, metrics.jsonl has everything"
    )
    assert said == ([] if where == "nowhere" else [told])
    assert read_progress(tmp_path / "metrics.jsonl").num_events == 2


def test_a_logger_that_hangs_is_left_alone_at_the_end() -> None:
    said: list[str] = []
    begun, free = Event(), Event()

    def hang(say: Callable[[str], None]) -> Faulty:
        say("on the way")
        begun.set()
        free.wait()
        return Faulty("nowhere", [])

    sink = BackgroundSink("wandb", hang, said.append, close_timeout_s=0.05)
    assert begun.wait(60.0)
    sink.write("step", 1, {})
    sink.close("finished")
    free.set()
    assert said == ["on the way", "wandb has not taken everything up after 0 s and is left alone"]


def test_a_logger_that_falls_far_behind_is_left_alone_and_holds_up_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("segue.actors.background_sink._MOST_WAITING", 3)
    said: list[str] = []
    free, ended = Event(), Event()
    steps: list[int] = []

    class Slow:
        def write(self, kind: str, step: int, values: Values) -> None:
            free.wait(60.0)
            steps.append(step)

        def close(self, status: str) -> None:
            ended.set()

    sink = BackgroundSink("wandb", lambda say: Slow(), said.append)
    for step in range(8):
        sink.write("step", step, {})
    sink.close("finished")
    assert said == ["wandb is 3 writes behind and is left alone; metrics.jsonl has everything"]
    free.set()
    # what it had is not lost
    assert ended.wait(60.0) and steps[:3] == [0, 1, 2] and len(steps) <= 4


def test_online_without_an_account_is_said_and_asks_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    # it looks for the key once
    wandb.teardown()
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.setenv("HOME", str(tmp_path))
    said: list[str] = []
    config = load_config(["run.loggers=[wandb]", "run.wandb.mode=online", f"run.dir={tmp_path}"])
    (sink,) = open_loggers(config, RunFolder(tmp_path), said.append)
    sink.close("finished")
    (text,) = said
    assert text.startswith("wandb failed: PermissionError: run.wandb.mode=online needs an account's key: `wandb login`")


@pytest.mark.parametrize(
    ("logger", "gone"),
    [
        ("wandb", ("wandb",)),
        ("mlflow", ("mlflow",)),
        # the small form of MLflow has no databases by itself
        ("mlflow", ("sqlalchemy", "alembic")),
    ],
)
@pytest.mark.parametrize("options", [(), ("--multirun",)])
def test_a_missing_extra_is_said_before_anything_starts(
    logger: str,
    gone: tuple[str, ...],
    options: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for package in gone:
        monkeypatch.setitem(sys.modules, package, None)
    assert main(["train", *options, f"run.loggers=[tensorboard,{logger}]", "run.dir=new"]) == 2
    remedy = f"{sys.executable} -m pip install 'segue[{logger}]'"
    missing = f"{logger}, for which there is no package {' and '.join(gone)}; {remedy}"
    told = capsys.readouterr().err
    assert told.startswith(f"segue: run.loggers must be loggers that are installed, got {missing}")
    assert told.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
    # what logs nothing needs none
    assert main(["train", "--cfg", "job", f"run.loggers=[{logger}]"]) == 0


def test_the_end_of_a_run_names_what_shows_or_sends_what_lies_in_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(tmp_path)
    has_flask = True
    monkeypatch.setattr(loggers, "find_spec", lambda name: object() if has_flask else None)

    def ends(*overrides: str) -> list[str]:
        looks = where_to_look(load_config([*overrides]), folder)
        return [f"{verb} {command.partition(' ')[2]}" for verb, command in looks]

    assert ends() == [f"watch --logdir {tmp_path}/events"]
    assert ends("run.loggers=[]") == []
    assert ends("run.loggers=[mlflow,wandb]") == [
        f"watch ui --backend-store-uri sqlite:///{tmp_path}/mlflow/mlflow.db",
        f"send sync {tmp_path}/wandb/offline-run-*",
    ]
    has_flask = False
    ((_, line),) = where_to_look(load_config(["run.loggers=[mlflow]"]), folder)
    assert line.startswith(f"{sys.executable} -m pip install mlflow; ")
    assert line.endswith(f"mlflow ui --backend-store-uri sqlite:///{tmp_path}/mlflow/mlflow.db")
    elsewhere = ("run.wandb.mode=online", "run.mlflow.tracking_uri=https://host/a")
    assert ends("run.loggers=[mlflow,wandb]", *elsewhere) == []
