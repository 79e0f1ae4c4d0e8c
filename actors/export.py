"""A run's checkpoint as an exported model: what `segue export` does."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from segue.actors.checkpoint_store import LEARNER_NAME, CheckpointStore
from segue.actors.errors import RunError
from segue.actors.learner_ranks import LearnerRanks
from segue.actors.phase import PhaseKind, make_phase
from segue.actors.run_folder import RunFolder
from segue.actors.supervise import supervised
from segue.conf.errors import ConfigError
from segue.conf.schema import SegueConfig


def export_run(config: SegueConfig, run_folder: Path, target: Path, *, step: int | None) -> None:
    """Load a checkpoint with the run's own learner ranks and write its model.

    Args:
        config: of the run.
        step: of the checkpoint; None takes the newest.
    Raises:
        ConfigError: there is no such checkpoint, the checkpoint is damaged, or the target exists.
        RunError: the learner failed.
    """
    folder = RunFolder(run_folder)
    if target.exists():
        raise ConfigError(f"target must not exist, got {target}")
    launches = folder.read_launches()
    if not launches:
        raise ConfigError(f"run folder must hold {folder.launches.name}, got {run_folder} without it; put it back")
    command = launches[0]["command"]
    if command not in {kind.value for kind in PhaseKind}:
        names = " or ".join(kind.value for kind in PhaseKind)
        raise ConfigError(f"run folder must hold a run of segue {names}, got {run_folder}, of segue {command}")
    kind = PhaseKind(command)
    store = CheckpointStore(folder.checkpoints, keep_last=config.train.keep_checkpoints)
    steps = store.steps()
    if not steps:
        raise ConfigError(f"run must have a checkpoint, got {run_folder} without one; see train.checkpoint_every")
    if step is not None and step not in steps:
        raise ConfigError(f"step must be one of the checkpoints {steps} of {run_folder}, got {step}")
    chosen = steps[-1] if step is None else step
    with _staying(store, chosen):
        fault = store.fault(chosen)
        if fault is not None:
            raise ConfigError(f"checkpoint must be whole, got {fault}")
    checkpoint = store.path(chosen) / LEARNER_NAME
    with supervised(config, run_folder, print) as fleet:
        learners = LearnerRanks(fleet, fleet.config, make_phase(config, kind).optimizer)
        fleet.start()
        learners.start(exported_model=None)
        with _staying(store, chosen):
            learners.ask("load", checkpoint, what=f"the learner to load {checkpoint}")
        learners.ask("export", target, what=f"the learner to export {target}")


@contextmanager
def _staying(store: CheckpointStore, step: int) -> Iterator[None]:
    """Tell whatever fails over a checkpoint that its run has deleted meanwhile as that."""
    try:
        yield
    except (ConfigError, RunError, OSError):
        if store.path(step).exists():
            raise
        raise ConfigError(
            f"checkpoint must stay while it is read, got step {step}, which the run has deleted meanwhile: "
            "export again; train.keep_checkpoints says how many a run keeps"
        ) from None
