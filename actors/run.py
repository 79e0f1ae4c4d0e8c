"""One run from its configuration to its summary: what `segue train` and `segue pretrain` do."""

import time
from pathlib import Path
from typing import Any

from rich.console import Console

from segue.actors.checkpoint_store import CheckpointStore
from segue.actors.console import ConsoleView, before_and_after, duration
from segue.actors.controller import Controller
from segue.actors.errors import Interrupted, RunError
from segue.actors.lineage import Lineage
from segue.actors.phase import PhaseKind, make_phase
from segue.actors.plots import CurvesSink
from segue.actors.preflight import check_before_start, check_tokenizer, initial_model
from segue.actors.process_meter import ProcessMeter
from segue.actors.provenance import launch_facts
from segue.actors.recorder import JsonlSink, RayMetricsSink, Recorder, TensorBoardSink
from segue.actors.run_folder import RunFolder, new_folder, write_json
from segue.actors.summary import build_summary, rows_before_and_after
from segue.actors.supervise import supervised
from segue.conf.schema import SegueConfig


def run(config: SegueConfig, kind: PhaseKind, *, arguments: list[str], launch_folder: Path) -> None:
    """Start a run, or go on with the one that `config.run.dir` holds.

    Args:
        arguments: of the command line, recorded.
        launch_folder: where the command was given.
    Raises:
        Interrupted: the user ended it; the message says how to go on.
        ConfigError, RunError: it cannot start, or cannot go on.
    """
    if config.run.dir is None:
        config.run.dir = str(new_folder(launch_folder, kind.value))
    folder = RunFolder(Path(config.run.dir))
    if folder.config.is_file():
        # its weights are in a checkpoint, unless it has none yet
        check_tokenizer(config)
    else:
        # before there is a folder
        check_before_start(config)
    folder.open(config, kind.value)
    try:
        _run_in(folder, config, kind, arguments)
    finally:
        folder.close()


def _run_in(folder: RunFolder, config: SegueConfig, kind: PhaseKind, arguments: list[str]) -> None:
    started = time.monotonic()
    store = CheckpointStore(folder.checkpoints, keep_last=config.train.keep_checkpoints)
    step, state, faults = store.load_newest()
    phase = make_phase(config, kind)
    if folder.is_finished(step, phase.num_steps):
        text = f"{folder.path} holds a finished run of {step} steps; raise {kind.value}.steps to go on"
        Console().print(text, highlight=False, soft_wrap=True)
        return
    start_from = None if step else initial_model(config)
    store.set_aside_after(step)
    folder.add_launch({**launch_facts(kind.value, arguments), "restored_step": step})
    launches = folder.read_launches()
    lineage = Lineage(restored_steps=tuple(launch["restored_step"] for launch in launches))
    meter = ProcessMeter()
    view = ConsoleView(command=kind.value, num_steps=phase.num_steps, is_live=config.run.console)
    with view, supervised(config, folder.path, view.say) as fleet:
        _greet(view, folder, lineage, step, faults)
        fleet.start(
            num_rollout=config.cluster.rollout_actors,
            num_learners=config.cluster.learner_ranks,
            exported_model=start_from,
        )
        if fleet.dashboard is not None:
            view.say(f"dashboard: {fleet.dashboard}")
        recorder = Recorder(
            [
                JsonlSink(folder.metrics, lineage.incarnation),
                TensorBoardSink(folder.events),
                RayMetricsSink(),
                CurvesSink(folder.metrics, folder.curves),
                view,
            ]
        )
        if lineage.incarnation:
            recorder.write("restore", step, {})
        controller = Controller(
            config,
            phase,
            folder=folder,
            store=store,
            fleet=fleet,
            recorder=recorder,
            view=view,
            meter=meter,
            lineage=lineage,
            started=started,
        )
        status = "failed"
        try:
            controller.restore(step, state)
            controller.run()
            status = "finished"
        except Interrupted:
            status = "interrupted"
            raise
        except RunError as error:
            status = f"failed: {error}"
            raise
        finally:
            if status != "finished":
                view.say(f"{status} after step {controller.step}; segue {kind.value} run.dir={folder.path} goes on")
            summary = build_summary(config, launches, controller.summary(), status=status)
            write_json(folder.summary, summary)
            recorder.close()
    _tell_results(folder, summary, time.monotonic() - started)


def _greet(view: ConsoleView, folder: RunFolder, lineage: Lineage, step: int, faults: list[str]) -> None:
    for fault in faults:
        view.say(f"checkpoint {fault}; an older one is taken")
    if lineage.incarnation:
        view.say(f"resuming {folder.path} after step {step}, launch {lineage.incarnation + 1}")
    else:
        view.say(f"run folder: {folder.path}")


def _tell_results(folder: RunFolder, summary: dict[str, Any], wall_s: float) -> None:
    console = Console()
    console.print(before_and_after(rows_before_and_after(summary["evaluations"])))
    lines = [
        f"{summary['steps']} steps, {summary['num_tokens']:,} tokens, {duration(wall_s)} "
        f"({summary['cpu_s']:.0f} CPU seconds), peak {summary['peak_memory_bytes'] / 1e9:.2f} GB",
        f"summary: {folder.summary}",
        f"curves:  {folder.curves}",
        f"model:   {folder.export}",
        f"watch:   tensorboard --logdir {folder.events}",
    ]
    if summary["command"] == PhaseKind.pretrain.value:
        lines.insert(0, _demonstrator_line(summary))
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)


def _demonstrator_line(summary: dict[str, Any]) -> str:
    """How good the one is that was imitated."""
    count = summary["num_episodes"]
    held = {"success": summary["outcomes"].get("success", 0), **summary["checks"]}
    return f"demonstrator, over {count} episodes: " + ", ".join(f"{name} {n / count:.3f}" for name, n in held.items())
