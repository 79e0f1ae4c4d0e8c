"""What a configuration's run would be like: its own controller, on actors that only take time."""

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from segue.actors.checkpoint_store import CheckpointStore
from segue.actors.console import ConsoleView
from segue.actors.controller import Controller
from segue.actors.errors import RunError
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

_WAIT, _LEARN, _PUBLISH = (f"loop/{part}/wall_s" for part in ("wait", "learn", "publish"))
_AGE, _OLDEST, _MASKED = "staleness/age/mean_steps", "staleness/age/max_steps", "staleness/masked/share"
_NEVER_S = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Means over `train.steps` steps, between those in which the loop fills up and runs dry; shares are in [0, 1]."""

    rollout_actors: int
    learner_ranks: int
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
    """Of the whole simulation, with nothing left to train."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """Counters at the end of a step."""

    values: Values
    now: float
    busy_s: float
    num_sampled: int


class _Listener:
    """Keeps what each step ended with."""

    def __init__(self, fleet: SimulatedFleet, wait_timeout_s: float, on_step: Callable[[], None]) -> None:
        self.readings: list[_Reading] = []
        self._fleet = fleet
        self._wait_timeout_s = wait_timeout_s
        self._on_step = on_step

    def write(self, kind: str, step: int, values: Values) -> None:
        """See `Sink`.

        Raises:
            RunError: a run would have given up waiting.
        """
        if kind != "step":
            return
        waited_s = values[_WAIT] or 0.0
        if waited_s > self._wait_timeout_s:
            raise RunError(
                f"step {step} waits {waited_s:,.0f} s for its groups; a run ends there, unless train.wait_timeout_s "
                f"({self._wait_timeout_s:g}) allows more"
            )
        engines = [actor.engine for actor in self._fleet.actors.values()]
        for engine in engines:
            engine.settle()
        busy_s, num_sampled = sum(engine.busy_s for engine in engines), sum(engine.num_sampled for engine in engines)
        self.readings.append(_Reading(values, self._fleet.now(), busy_s, num_sampled))
        self._on_step()

    def close(self, status: str) -> None:
        """See `Sink`."""


def num_simulated(config: SegueConfig) -> int:
    """Steps that a forecast of `train.steps` steps takes."""
    return config.train.steps + 2 * _margin(config)


def forecast(config: SegueConfig, on_step: Callable[[], None]) -> Forecast:
    """Run the controller in simulated time.

    Args:
        config: with at least one step; counts of actors are settled.
        on_step: called after each of `num_simulated` steps.
    Raises:
        RunError: a run of this configuration would give up waiting.
    """
    fleet_config = _without_what_takes_no_time(config)
    fleet = SimulatedFleet(fleet_config)
    listener = _Listener(fleet, config.train.wait_timeout_s, on_step)
    with tempfile.TemporaryDirectory(prefix="segue-simulate-") as name:
        folder = RunFolder(Path(name))
        recorder = Recorder(JsonlSink(folder.metrics), [listener])
        controller = _controller(fleet_config, fleet, folder, recorder)
        try:
            controller.run()
        finally:
            recorder.close("ended")
        dropped = controller.summary()["dropped"]
    margin = _margin(config)
    # from the end of the last step of the margin
    begin, *readings = listener.readings[margin - 1 : margin + config.train.steps]
    end = readings[-1]
    seconds = end.now - begin.now

    def total(name: str) -> float:
        return sum(reading.values.get(name) or 0.0 for reading in readings)

    return Forecast(
        rollout_actors=config.cluster.num_rollout_actors, learner_ranks=config.cluster.num_learner_ranks,
        steps_per_hour=3600.0 * len(readings) / seconds, step_s=seconds / len(readings),
        wait_share=total(_WAIT) / seconds, learn_share=total(_LEARN) / seconds, publish_share=total(_PUBLISH) / seconds,
        engine_busy_share=(end.busy_s - begin.busy_s) / (seconds * len(fleet.actors)),
        sampled_tokens_per_s=(end.num_sampled - begin.num_sampled) / seconds,
        age_mean_steps=total(_AGE) / len(readings),
        age_max_steps=max(reading.values.get(_OLDEST) or 0.0 for reading in readings),
        masked_share=total(_MASKED) / len(readings), dropped_groups=sum(dropped.values()),
    )  # fmt: skip


def _margin(config: SegueConfig) -> int:
    """Steps in which the loop fills up: all that may be in flight is asked for at once; and in which it runs dry."""
    return 2 * (config.train.max_staleness + 1)


def _without_what_takes_no_time(config: SegueConfig) -> SegueConfig:
    """Nobody is evaluated, a checkpoint holds the loop's bookkeeping alone, and no real clock ends anything."""
    train, cluster = config.train, config.cluster
    steps = num_simulated(config)
    return replace(
        config,
        env=replace(config.env, variants={}),
        eval=replace(config.eval, episodes=1, timeout_s=_NEVER_S),
        train=replace(
            train, steps=steps, checkpoint_every=steps, eval_every=0, wait_timeout_s=_NEVER_S,
            effort=replace(train.effort, episodes=0),
        ),
        learner=replace(config.learner, step_timeout_s=_NEVER_S),
        cluster=replace(cluster, start_timeout_s=_NEVER_S, answer_timeout_s=_NEVER_S),
    )  # fmt: skip


def _controller(config: SegueConfig, fleet: SimulatedFleet, folder: RunFolder, recorder: Recorder) -> Controller:
    folder.begin(config, {"command": "simulate", "restored_steps": [0]})
    view = ConsoleView(
        command="simulate", num_steps=config.train.steps, is_live=False, console=PatientConsole(quiet=True)
    )
    faults = FaultLog(view.say)
    pool = RolloutPool(fleet, config, faults.note)
    learners = LearnerRanks(fleet, config, config.learner.optimizer)
    pool.begin_start(config.cluster.num_rollout_actors, exported_model=None)
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
