"""One run from its configuration to its summary: what `segue train` and `segue pretrain` do."""

import errno
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from segue.actors.checkpoint_store import CheckpointStore, checkpoint_fault
from segue.actors.console import ConsoleView, before_and_after, duration
from segue.actors.controller import Controller
from segue.actors.errors import ActorLost, Interrupted, NeverBegan, RayLost, RunError, Silent
from segue.actors.faults import Fault, FaultLog
from segue.actors.learner_ranks import LearnerRanks
from segue.actors.lineage import Lineage
from segue.actors.loggers import open_loggers, where_to_look
from segue.actors.patient_console import PatientConsole
from segue.actors.phase import PhaseKind, make_phase
from segue.actors.plots import CurvesSink
from segue.actors.preflight import (
    check_before_start,
    check_environment,
    check_reward_terms,
    check_tokenizer,
    initial_model,
)
from segue.actors.process_meter import ProcessMeter
from segue.actors.provenance import launch_facts
from segue.actors.recorder import JsonlSink, RayMetricsSink, Recorder, read_faults
from segue.actors.rollout_pool import RolloutPool
from segue.actors.run_folder import RunFolder, new_folder, write_json
from segue.actors.stage_meter import stage_options
from segue.actors.stages import Stages
from segue.actors.step_metrics import StepClock
from segue.actors.summary import build_summary, rows_before_and_after
from segue.actors.supervise import supervised
from segue.actors.text import check_text, prepare_corpus
from segue.actors.words import counted
from segue.conf.placement import devices
from segue.conf.schema import SegueConfig

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


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
        check_reward_terms(config)
    else:
        # before there is a folder
        check_before_start(config)
        check_text(config)
        _check_environment(config, kind)
    folder.open(kind.value)
    try:
        _run_in(folder, config, kind, arguments)
    finally:
        folder.close()


def _run_in(folder: RunFolder, config: SegueConfig, kind: PhaseKind, arguments: list[str]) -> None:
    """Launch, and again where Ray was lost: with it go all processes but this one."""
    lost: list[Fault] = []
    while True:
        step = CheckpointStore(folder.checkpoints, keep_last=config.train.keep_checkpoints).steps()[-1:]
        try:
            _launch(folder, config, kind, arguments, lost)
            return
        except RayLost as loss:
            fault = Fault(who="ray", what=str(loss), done="a new one is started, and the run resumed")
            # in a row, with no checkpoint in between
            has_advanced = step != CheckpointStore(folder.checkpoints, keep_last=1).steps()[-1:]
            lost = [fault] if has_advanced else [*lost, fault]
            if len(lost) > config.cluster.max_losses:
                raise


def _launch(
    folder: RunFolder, config: SegueConfig, kind: PhaseKind, arguments: list[str], earlier_faults: list[Fault]
) -> None:
    started = time.monotonic()
    store = CheckpointStore(folder.checkpoints, keep_last=config.train.keep_checkpoints)
    step, state, damaged = store.load_newest()
    phase = make_phase(config, kind)
    stages = Stages(config, phase.stages, phase.num_steps)
    stages.restore(state.get("stages", {}))
    if folder.is_finished(step, stages.num_steps):
        remedy = "" if stages.has_any else f"; raise {kind.value}.steps to go on"
        text = f"{folder.path} holds a finished run of {counted(step, 'step')}{remedy}"
        PatientConsole().say(text)
        return
    start_from = None if step else initial_model(config)
    if folder.config.is_file():
        # else it was checked before there was a folder
        _check_environment(config, kind)
    _prepare_text(folder, config)
    store.set_aside_after(step)
    facts = {**launch_facts(kind.value, arguments), "restored_steps": [step]}
    lineage = Lineage.of_launches([*folder.read_launches(), facts])
    meter = ProcessMeter()
    view = ConsoleView(command=kind.value, num_steps=stages.num_steps, is_live=config.run.console)
    faults = FaultLog(view.say)
    with view, supervised(config, folder.path, view.say) as fleet:
        _greet(view, folder, lineage, step)
        settled = fleet.config
        facts["devices"] = devices(settled.cluster)
        view.say("; ".join(f"{kind}: {words}" for kind, words in facts["devices"].items()))
        for fault in [*earlier_faults[-1:], *_faults_found(folder, step, damaged)]:
            faults.note(fault)
        pool = RolloutPool(fleet, settled, faults.note)
        learners = LearnerRanks(fleet, settled, phase.optimizer)
        fleet.start()
        pool.begin_start(settled.cluster.num_rollout_actors, exported_model=None)
        _start_learner(learners, start_from, faults, max_losses=config.cluster.max_losses)
        pool.wait_started()
        # one that did not start may be started with other values
        recorder = _begin(folder, config, facts, view)
        recorder.begin_incarnation(lineage.incarnation, step)
        if fleet.dashboard is not None:
            view.say(f"dashboard: {fleet.dashboard}")
        controller = Controller(
            config,
            phase,
            stages=stages,
            folder=folder,
            store=store,
            pool=pool,
            learners=learners,
            recorder=recorder,
            faults=faults,
            view=view,
            meter=meter,
            lineage=lineage,
            initial_model=start_from,
            started=started,
            clock=StepClock(),
        )
        faults.keep_with(lambda fault: recorder.write_fault(controller.step, fault))
        status, mending = "failed", "mend the cause, then "
        try:
            controller.restore(step, state)
            controller.run()
            status = "finished"
        except Interrupted:
            status, mending = "interrupted", ""
            raise
        except RunError as error:
            status = f"failed: {error}"
            if isinstance(error, RayLost):
                # another Ray is started, or the signal that ended it was for the run
                mending = ""
            if isinstance(error.__cause__, OSError) and error.__cause__.errno in _NO_ROOM:
                raise _unwritable(folder.path, error) from error
            if not folder.launches.is_file():
                raise _deleted(folder.path) from error
            raise
        except OSError as error:
            status = f"failed: {error}"
            raise (_unwritable(folder.path, error) if folder.launches.is_file() else _deleted(folder.path)) from error
        finally:
            # what failed is the command's own last word
            ended = status.partition(":")[0]
            if not folder.launches.is_file():
                view.say(f"{ended} after step {controller.step}")
            elif folder.forget_beginning():
                view.say(f"{ended} before the first result; give the command again, with other values if you like")
            elif status != "finished":
                command = f"segue {kind.value} run.dir={folder.path}"
                view.say(f"{ended} after step {controller.step}; {mending}{command} goes on")
            # a folder that was deleted meanwhile has none
            launches = folder.read_launches() or [facts]
            results = {**controller.summary(), "faults": read_faults(folder.metrics)}
            summary = build_summary(config, launches, results, status=status)
            _write_end(folder.summary, summary, recorder, view.say)
    _tell_results(config, folder, summary)


def _start_learner(learners: LearnerRanks, model: Path | None, faults: FaultLog, *, max_losses: int) -> None:
    """Start the learner, and again where a rank died; one that does not come in time may have no place."""
    num_losses = 0
    while True:
        try:
            learners.start(model)
            return
        except Silent:
            raise
        except ActorLost as loss:
            num_losses += not isinstance(loss, NeverBegan)
            if num_losses > max_losses:
                what = f"the learner was lost {num_losses} times in a row as it started; last: {loss}"
                raise RunError(what) from loss
            faults.note(Fault(who="learner", what=f"{loss}, as it started", done="all ranks start anew"))


def _faults_found(folder: RunFolder, step: int, damaged: list[str]) -> list[Fault]:
    """What the launch before left behind, as it is found."""
    found = [checkpoint_fault(fault) for fault in damaged]
    if folder.was_killed():
        what = "the launch before ended without a word"
        found.append(Fault(who="controller", what=what, done=f"resumed after step {step}"))
    return found


def _check_environment(config: SegueConfig, kind: PhaseKind) -> None:
    if kind is not PhaseKind.pretrain:
        check_environment(config.env, say=PatientConsole().say)
        return
    check_environment(config.env, config.pretrain.skill, stage_options(config), say=PatientConsole().say)


def _prepare_text(folder: RunFolder, config: SegueConfig) -> None:
    """Tokenise a curriculum's text before anything starts: it may be none, or take hours."""
    try:
        prepare_corpus(config, folder.text, folder.text_draft, PatientConsole().say)
    except OSError as error:
        raise _unwritable(folder.path, error) from error


def _begin(folder: RunFolder, config: SegueConfig, facts: dict[str, Any], view: ConsoleView) -> Recorder:
    """Have the folder hold this run, and open what its metrics go to."""
    try:
        folder.begin(config, facts)
        return Recorder(
            JsonlSink(folder.metrics),
            [
                *open_loggers(config, folder, view.say),
                RayMetricsSink(),
                CurvesSink(folder.metrics, folder.curves, folder.recall, view.say),
                view,
            ],
        )
    except OSError as error:
        folder.forget_beginning()
        raise _unwritable(folder.path, error) from error


def _deleted(path: Path) -> RunError:
    return RunError(f"run folder must stay while its run goes on, got {path} deleted")


def _unwritable(folder: Path, error: Exception, *, path: Path | None = None) -> RunError:
    if not folder.exists():
        return _deleted(folder)
    return RunError(f"{path or folder} must be on a disk with room, and writable, got {error}")


def _write_end(path: Path, summary: dict[str, Any], recorder: Recorder, say: Callable[[str], None]) -> None:
    """Write the summary and what the recorder holds back; a fault there hides none that ended the run before."""
    try:
        write_json(path, summary)
        recorder.close(summary["status"])
    except OSError as error:
        if summary["status"] == "finished":
            raise _unwritable(path.parent, error, path=path) from error
        say(f"{path} could not be written: {error}")


def _greet(view: ConsoleView, folder: RunFolder, lineage: Lineage, step: int) -> None:
    if lineage.incarnation:
        view.say(f"resuming {folder.path} after step {step}, launch {lineage.incarnation + 1}")
    else:
        view.say(f"run folder: {folder.path}")


def _tell_results(config: SegueConfig, folder: RunFolder, summary: dict[str, Any]) -> None:
    console = PatientConsole()
    console.print(before_and_after(rows_before_and_after(summary["evaluations"])))
    lines = [
        f"{counted(summary['steps'], 'step')}, {_told_tokens(summary)}, {duration(summary['wall_s'])} "
        f"({summary['cpu_s']:.0f} CPU seconds), peak {summary['peak_memory_bytes'] / 1e9:.2f} GB",
        f"summary: {folder.summary}",
        f"curves:  {folder.curves}",
        f"model:   {folder.export}",
        *(f"{f'{verb}:':<9}{command}" for verb, command in where_to_look(config, folder)),
    ]
    for line in [*_told_demonstrator(summary), *lines]:
        console.say(line)


def _told_tokens(summary: dict[str, Any]) -> str:
    """`3,627 tokens`, with `of demonstrations and 12,288 of text` where there was any."""
    text = f" of demonstrations and {summary['num_text_tokens']:,} of text" if summary["num_text_tokens"] else ""
    return counted(summary["num_tokens"], "token") + text


def _told_demonstrator(summary: dict[str, Any]) -> list[str]:
    """How good the one is that was imitated, on one line; none where nobody was."""
    count = summary["num_episodes"]
    # all may be text
    if summary["command"] != PhaseKind.pretrain.value or not count:
        return []
    held = {"success": summary["outcomes"].get("success", 0), **summary["checks"]}
    figures = ", ".join(f"{name} {n / count:.3f}" for name, n in held.items())
    return [f"demonstrator, over {counted(count, 'episode')}: {figures}"]
