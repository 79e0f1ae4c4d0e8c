"""What a restored controller does with what it finds; orders and bounds are in tests/property/."""

import random
import time
from pathlib import Path
from typing import Any

import pytest
from fake_fleet import FakeFleet

from segue.actors.checkpoint_store import CheckpointStore
from segue.actors.controller import Controller
from segue.actors.errors import Interrupted, RunError
from segue.actors.lineage import Lineage
from segue.actors.phase import PhaseKind, make_phase
from segue.actors.process_meter import ProcessMeter
from segue.actors.recorder import Recorder
from segue.actors.run_folder import RunFolder
from segue.conf.load import load_config


class View:
    """A console that remembers what the run said that it is at."""

    def __init__(self) -> None:
        self.statuses: list[str] = []

    def say(self, text: str) -> None:
        pass

    def set_status(self, text: str) -> None:
        self.statuses.append(text)


def launch(path: Path, restored_steps: tuple[int, ...] = (0,), *, train: dict[str, Any], **fleet: Any):
    """A controller that stands where the folder's newest checkpoint stands, and its fleet."""
    config = load_config(["env.variants={}", "eval.episodes=2"])
    config.run.dir = str(path)
    for name, value in {"groups_per_step": 2, "checkpoint_every": 1, "eval_every": 0, **train}.items():
        setattr(config.train, name, value)
    folder = RunFolder(path)
    folder.trajectories.mkdir(exist_ok=True)
    store = CheckpointStore(folder.checkpoints, keep_last=config.train.keep_checkpoints)
    fakes = FakeFleet(folder.groups, random.Random(0), config.train.max_staleness, **fleet)
    controller = Controller(
        config,
        make_phase(config, PhaseKind.train),
        folder=folder,
        store=store,
        fleet=fakes,  # type: ignore[arg-type]
        recorder=Recorder([]),
        view=View(),  # type: ignore[arg-type]
        meter=ProcessMeter(),
        lineage=Lineage(restored_steps=restored_steps),
        started=time.monotonic(),
    )
    step, state, _ = store.load_newest()
    assert step == restored_steps[-1]
    controller.restore(step, state)
    return controller, fakes


def test_a_damaged_group_that_lies_ahead_of_the_cursor_is_played_once_again(tmp_path: Path) -> None:
    # at bound 1 groups 0 to 3 are in flight; all but 0 finish before the run is killed: 1 to 3 are found
    train = {"steps": 4, "max_staleness": 1}
    first, fakes = launch(tmp_path, train=train)
    first._request_groups()
    for reference in list(fakes._in_flight)[1:]:
        fakes._finish(reference)
    second, _ = launch(tmp_path, (0, 0), train=train)
    second._checkpoint()
    # the ledger holds 1 to 3, and the stream has drawn none of them
    (tmp_path / "groups" / "train-0000002.0.safetensors").write_bytes(b"damaged")
    third, fakes = launch(tmp_path, (0, 0, 0), train=train)
    third.run()
    trained = [group_id for step in fakes.trained for group_id in step.group_ids]
    assert len(trained) == len(set(trained)) == 8
    assert "train-0000002.2" in trained and "train-0000002.0" not in trained


def test_an_evaluation_tells_how_far_it_is(tmp_path: Path) -> None:
    controller, _ = launch(tmp_path, train={"steps": 0})
    controller.run()
    steps = [f"evaluating ({mode}){done}" for mode in ("sampled", "greedy") for done in ("", " 2/2")]
    # before and after
    assert controller._view.statuses == [*steps, "training"] * 2  # type: ignore[attr-defined]


def test_an_export_that_fails_leaves_no_part_of_itself(tmp_path: Path) -> None:
    controller, _ = launch(tmp_path, train={"steps": 0}, ends_with=RunError, dies_in="export")
    with pytest.raises(RunError, match="half of it is written"):
        controller.run()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints", "groups", "trajectories"]


def test_an_evaluation_that_was_interrupted_is_made_by_the_next_launch_and_no_other_twice(tmp_path: Path) -> None:
    train = {"steps": 6, "eval_every": 2}
    evaluation = ["evaluate eval-sampled", "evaluate eval-greedy"]
    first, _ = launch(tmp_path, train=train, num_rollout=1, stop_after_step=2)
    with pytest.raises(Interrupted):
        first.run()
    second, fakes = launch(tmp_path, (0, 2), train=train, num_rollout=1, stop_after_step=1)
    with pytest.raises(Interrupted):
        second.run()
    assert fakes.events[:4] == ["load", "publish 2", *evaluation]
    third, fakes = launch(tmp_path, (0, 2, 3), train=train, num_rollout=1)
    third.run()
    assert [event for event in fakes.events if event.startswith(("evaluate", "step"))] == [
        "step 4",
        *evaluation,
        *("step 5", "step 6"),
        *evaluation,
    ]
    # the last evaluation stands for its step also where the run is made longer
    fourth, fakes = launch(tmp_path, (0, 2, 3, 6), train={**train, "steps": 7}, num_rollout=1)
    fourth.run()
    assert fakes.events[2].startswith("group ")
