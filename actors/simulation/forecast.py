"""What a configuration's run would be like: its own controller, on actors that only take time."""

import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from segue.actors.checkpoint_store import CheckpointStore
from segue.actors.console import ConsoleView
from segue.actors.controller import Controller
from segue.actors.faults import FaultLog
from segue.actors.learner_ranks import LearnerRanks
from segue.actors.lineage import Lineage
from segue.actors.patient_console import PatientConsole
from segue.actors.phase import PhaseKind, make_phase
from segue.actors.process_meter import ProcessMeter
from segue.actors.recorder import JsonlSink, Recorder, Values
from segue.actors.rollout_pool import RolloutPool
from segue.actors.run_folder import RunFolder
from segue.actors.simulation.fleet import SimulatedFleet
from segue.actors.stages import Stages
from segue.actors.step_metrics import StepClock
from segue.conf.schema import SegueConfig

_STEP, _WAIT, _LEARN, _PUBLISH = (f"loop/{part}/wall_s" for part in ("step", "wait", "learn", "publish"))
_AGE, _OLDEST, _MASKED = "staleness/age/mean_steps", "staleness/age/max_steps", "staleness/masked/share"


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Means over the steps behind the first, which waits for a full batch whatever the bound; shares are in [0, 1]."""

    steps_per_hour: float
    step_s: float
    wait_share: float
    """Of the time, in which the learner waits for groups."""
    learn_share: float
    publish_share: float
    engine_busy_share: float
    """Of the rollout actors' time, in which an engine samples or feeds."""
    sampled_tokens_per_s: float
    age_mean_steps: float
    age_max_steps: float
    masked_share: float
    """Of trainable tokens, beyond the bound."""
    dropped_groups: int

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


class _Listener:
    """Keeps the steps' metrics, and counters as the first of them ended."""

    def __init__(self, read: Callable[[], tuple[float, float, int]], on_step: Callable[[int], None]) -> None:
        self.steps: list[Values] = []
        self.after_first: tuple[float, float, int] = (0.0, 0.0, 0)
        self._read = read
        self._on_step = on_step

    def write(self, kind: str, step: int, values: Values) -> None:
        """See `Sink`."""
        if kind == "step":
            self.steps.append(values)
            if len(self.steps) == 1:
                self.after_first = self._read()
            self._on_step(step)

    def close(self, status: str) -> None:
        """See `Sink`."""


def forecast(config: SegueConfig, on_step: Callable[[int], None]) -> Forecast:
    """Run the controller over `train.steps` steps of simulated time.

    Args:
        config: at least 2 steps; counts of actors are settled.
        on_step: told each step that is done.
    """
    # nobody is evaluated, and a checkpoint holds the loop's bookkeeping alone
    config = replace(
        config, env=replace(config.env, variants={}), eval=replace(config.eval, episodes=1),
        train=replace(config.train, eval_every=0, effort=replace(config.train.effort, episodes=0)),
    )  # fmt: skip
    fleet = SimulatedFleet(config)
    listener = _Listener(lambda: _counters(fleet), on_step)
    with tempfile.TemporaryDirectory(prefix="segue-simulate-") as folder:
        path = Path(folder)
        recorder = Recorder(JsonlSink(RunFolder(path).metrics), [listener])
        controller = _controller(config, fleet, path, recorder)
        controller.run()
        recorder.close("finished")
        dropped = controller.summary()["dropped"]
    now, busy_s, num_sampled = (
        after - before for after, before in zip(_counters(fleet), listener.after_first, strict=True)
    )
    steps = listener.steps[1:]
    step_s = _mean(steps, _STEP)
    return Forecast(
        steps_per_hour=3600.0 / step_s, step_s=step_s, wait_share=_mean(steps, _WAIT) / step_s,
        learn_share=_mean(steps, _LEARN) / step_s, publish_share=_mean(steps, _PUBLISH) / step_s,
        engine_busy_share=busy_s / (now * len(fleet.actors)), sampled_tokens_per_s=num_sampled / now,
        age_mean_steps=_mean(steps, _AGE), age_max_steps=max(values[_OLDEST] or 0.0 for values in steps),
        masked_share=_mean(steps, _MASKED), dropped_groups=sum(dropped.values()),
    )  # fmt: skip


def _controller(config: SegueConfig, fleet: SimulatedFleet, path: Path, recorder: Recorder) -> Controller:
    folder = RunFolder(path)
    folder.begin(config, {"command": "simulate", "restored_steps": [0]})
    view = ConsoleView(
        command="simulate", num_steps=config.train.steps, is_live=False, console=PatientConsole(quiet=True)
    )
    faults = FaultLog(view.say)
    pool = RolloutPool(fleet, config, faults.note)
    learners = LearnerRanks(fleet, config, config.learner.optimizer)
    pool.begin_start(config.cluster.num_rollout_actors, exported_model=None, needs_weights=True)
    learners.start(None)
    pool.wait_started()
    phase = make_phase(config, PhaseKind.train)
    controller = Controller(
        config,
        phase,
        stages=Stages(config, phase.stages, phase.num_steps),
        folder=folder,
        store=CheckpointStore(folder.checkpoints, keep_last=1),
        pool=pool,
        learners=learners,
        recorder=recorder,
        faults=faults,
        view=view,
        meter=ProcessMeter(),
        lineage=Lineage(),
        initial_model=None,
        started=time.monotonic(),
        clock=StepClock(fleet.now),
    )
    controller.restore(0, {})
    return controller


def _counters(fleet: SimulatedFleet) -> tuple[float, float, int]:
    """Seconds since the start, engines' busy seconds, sampled tokens."""
    engines = [actor.engine for actor in fleet.actors.values()]
    for engine in engines:
        engine.settle()
    return fleet.now(), sum(engine.busy_s for engine in engines), sum(engine.num_sampled for engine in engines)


def _mean(steps: list[Values], name: str) -> float:
    return sum(values.get(name) or 0.0 for values in steps) / len(steps)
