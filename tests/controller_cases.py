"""Controllers without processes, for tests: on a fleet of `fake_fleet.py`, from where a run folder stands."""

import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fake_fleet import FakeFleet

from segue.actors.checkpoint_store import CheckpointStore
from segue.actors.controller import Controller
from segue.actors.faults import FaultLog
from segue.actors.learner_ranks import LearnerRanks
from segue.actors.lineage import Lineage
from segue.actors.phase import PhaseKind, make_phase
from segue.actors.process_meter import ProcessMeter
from segue.actors.recorder import JsonlSink, Recorder
from segue.actors.rollout_pool import RolloutPool
from segue.actors.run_folder import RunFolder
from segue.actors.stages import Stages
from segue.actors.step_metrics import StepClock
from segue.conf.load import load_config
from segue.conf.schema import SegueConfig

METER = ProcessMeter()


class View:
    """A console that remembers what was said, and what the run said that it is at."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.statuses: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)

    def set_status(self, text: str) -> None:
        self.statuses.append(text)


class Listener:
    """A sink that remembers the metrics of steps."""

    def __init__(self) -> None:
        self.steps: list[dict[str, Any]] = []

    def write(self, kind: str, step: int, values: Any) -> None:
        if kind == "step":
            self.steps.append(dict(values))

    def close(self, status: str) -> None:
        pass


@dataclass
class Launch:
    """One launch of a run in a folder."""

    controller: Controller
    fleet: FakeFleet
    listener: Listener
    view: View


def make_config(folder: Path, **train: Any) -> SegueConfig:
    """Six steps of three groups, with no evaluation in between."""
    config = load_config(["env.variants={}", "eval.episodes=2", "train.eval_every=0"])
    config.run.dir = str(folder)
    config.cluster.learner_ranks = 1
    config.pretrain.steps = 6
    config.pretrain.eval_every = 0
    for name, value in {"steps": 6, "groups_per_step": 3, "checkpoint_every": 2, **train}.items():
        setattr(config.train, name, value)
    return config


def launch(
    config: SegueConfig, *, kind: PhaseKind = PhaseKind.train, num_rollout: int = 2, seed: int = 0, **fleet: Any
) -> Launch:
    """A controller that stands where the folder's newest checkpoint stands, as a launch of its own."""
    assert config.run.dir is not None
    folder = RunFolder(Path(config.run.dir))
    store = CheckpointStore(folder.checkpoints, keep_last=config.train.keep_checkpoints)
    step, state, faults = store.load_newest()
    assert faults == []
    folder.begin(config, {"command": kind.value, "restored_steps": [step]})
    fakes = FakeFleet(folder.groups, random.Random(seed), config.train.max_staleness, **fleet)
    listener, view = Listener(), View()
    faults = FaultLog(view.say)
    pool = RolloutPool(fakes, config, faults.note)  # type: ignore[arg-type]
    learners = LearnerRanks(fakes, config, config.learner.optimizer)  # type: ignore[arg-type]
    pool.begin_start(num_rollout, exported_model=None)
    learners.start(None)
    pool.wait_started()
    lineage = Lineage.of_launches(folder.read_launches())
    recorder = Recorder(JsonlSink(folder.metrics), [listener])
    recorder.begin_incarnation(lineage.incarnation, step)
    phase = make_phase(config, kind)
    controller = Controller(
        config,
        phase,
        stages=Stages(config, phase.stages, phase.num_steps),
        folder=folder,
        store=store,
        pool=pool,
        learners=learners,
        recorder=recorder,
        faults=faults,
        view=view,  # type: ignore[arg-type]
        meter=METER,
        lineage=lineage,
        initial_model=None,
        started=time.monotonic(),
        clock=StepClock(),
    )
    faults.keep_with(lambda fault: recorder.write_fault(controller.step, fault))
    controller.restore(step, state)
    return Launch(controller, fakes, listener, view)
