"""Held-out success of a trained model, without training: what `segue eval` does."""

import time
from pathlib import Path
from typing import Any

from segue.actors.console import ConsoleView, before_and_after
from segue.actors.failure_watch import heed_evaluation
from segue.actors.faults import FaultLog
from segue.actors.held_out import play_held_out, standard_modes, variant_modes
from segue.actors.patient_console import PatientConsole
from segue.actors.preflight import check_before_start, check_environment, trained_model
from segue.actors.process_meter import ProcessMeter
from segue.actors.provenance import launch_facts
from segue.actors.recorder import JsonlSink, Recorder, read_faults
from segue.actors.rollout_pool import RolloutPool
from segue.actors.run_folder import RunFolder, new_folder, write_json
from segue.actors.step_metrics import evaluation_metrics
from segue.actors.summary import rows_before_and_after
from segue.actors.supervise import supervised
from segue.conf.placement import devices
from segue.conf.schema import SegueConfig


def examine(
    config: SegueConfig, *, arguments: list[str], launch_folder: Path, out: Path | None = None
) -> dict[str, Any]:
    """Play every mode and write `summary.json` and `metrics.jsonl` into a folder of its own.

    Args:
        out: that folder; None names one under `runs/` of the launch folder by date and time.
    Returns:
        The summary.
    Raises:
        ConfigError, RunError, Interrupted: as `run.run`.
    """
    model = trained_model(config)
    config.run.init_from = str(model)
    check_before_start(config)
    check_environment(config.env, say=PatientConsole().say)
    folder = RunFolder(new_folder(launch_folder, "eval") if out is None else out)
    folder.open("eval")
    try:
        return _examine_in(folder, config, model, arguments)
    finally:
        folder.close()


def _examine_in(folder: RunFolder, config: SegueConfig, model: Path, arguments: list[str]) -> dict[str, Any]:
    facts = launch_facts("eval", arguments)
    meter = ProcessMeter()
    started = time.monotonic()
    view = ConsoleView(command="eval", num_steps=0, is_live=config.run.console)
    results: dict[str, Any] = {}
    with view, supervised(config, folder.path, view.say) as fleet:
        faults = FaultLog(view.say)
        pool = RolloutPool(fleet, fleet.config, faults.note)
        fleet.start()
        cluster = fleet.config.cluster
        facts["device"] = devices(cluster)["rollout"]
        view.say(f"rollout: {facts['device']}")
        pool.begin_start(cluster.num_rollout_actors, exported_model=model)
        pool.wait_started()
        folder.begin(config, {**facts, "restored_steps": [0]})
        recorder = Recorder(JsonlSink(folder.metrics), [view])
        faults.keep_with(lambda fault: recorder.write_fault(0, fault))
        for mode in (*standard_modes(config), *variant_modes(config)):
            begun = time.monotonic()
            evaluation = play_held_out(
                pool, config, mode, keep_as=folder.trajectories / mode.name, show=view.set_status
            )
            recorder.write("eval", 0, evaluation_metrics(mode.name, evaluation, time.monotonic() - begun))
            heed_evaluation(mode.name, evaluation, faults.note, may_end=True)
            results[mode.name] = evaluation.to_json()
        recorder.close("finished")
        usage = meter.read()
    summary = {
        **facts,
        "model": str(model),
        "seed": config.seed,
        "evaluations": {"after": results},
        "wall_s": time.monotonic() - started,
        "cpu_s": usage.cpu_s,
        "peak_memory_bytes": usage.peak_memory_bytes,
        "faults": read_faults(folder.metrics),
    }
    write_json(folder.summary, summary)
    console = PatientConsole()
    console.print(before_and_after(rows_before_and_after(summary["evaluations"])))
    console.say(f"summary: {folder.summary}")
    return summary
