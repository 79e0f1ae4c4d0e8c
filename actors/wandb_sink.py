"""Weights & Biases: a run of ours is one run of theirs, however often it is resumed.

Their history only grows: rows are numbered by the events of the run, `step` is the axis, and `incarnation` tells the
steps that a restore undid from those that took their place. Rows of undone steps stay, as lines of `metrics.jsonl` do.
"""

import secrets
from collections.abc import Callable
from pathlib import Path

import wandb

from segue.actors.recorder import Progress, Values
from segue.actors.run_folder import write_atomic
from segue.conf.flatten import flatten
from segue.conf.schema import SegueConfig, WandbMode
from segue.conf.secret import mask_values

ID_NAME = "run_id"
# of what is written until the end, for the upload
_FINISH_TIMEOUT_S = 60.0


class WandbSink:
    """Rows of one W&B run.

    Args:
        config: goes along, its secrets masked.
        folder: for W&B's own files and the run's id; made if it is not there.
        name: that the run is shown by.
        progress: of the run so far.
        say: is told where the run can be seen.
    """

    def __init__(
        self, config: SegueConfig, folder: Path, *, name: str, progress: Progress, say: Callable[[str], None]
    ) -> None:
        settings = config.run.wandb
        is_online = settings.mode is WandbMode.online
        if is_online and not wandb.login(prompt=False, verify=False):
            raise PermissionError("run.wandb.mode=online needs an account's key: `wandb login`, or WANDB_API_KEY")
        self._num_rows = progress.num_events
        self._incarnation = progress.num_restores
        self._run = wandb.init(
            id=_run_id(folder),
            resume="allow" if is_online else None,
            mode=settings.mode.value,
            project=settings.project,
            entity=settings.entity,
            name=name,
            # it makes a folder of its own name in there
            dir=folder.parent,
            config=mask_values(flatten(config)),
            # not the terminal's text, the command line, the machine, the source nor what is installed: there may be
            # secrets in them
            settings=wandb.Settings(
                console="off",
                silent=True,
                disable_git=True,
                disable_code=True,
                disable_job_creation=True,
                x_disable_meta=True,
                x_disable_stats=True,
                x_save_requirements=False,
                finish_timeout=_FINISH_TIMEOUT_S,
                finish_timeout_raises=True,
            ),
        )
        self._run.define_metric("*", step_metric="step")
        say(f"wandb: {self._run.url}" if is_online else f"wandb: nothing is sent; wandb sync {folder}/offline-run-*")

    def write(self, kind: str, step: int, values: Values) -> None:
        """See `recorder.Sink`."""
        self._incarnation += kind == "restore"
        present = {name: value for name, value in values.items() if value is not None}
        self._run.log({"step": step, "incarnation": self._incarnation, **present}, step=self._num_rows)
        self._num_rows += 1

    def close(self, status: str) -> None:
        """See `recorder.Sink`."""
        self._run.finish(exit_code=0 if status == "finished" else 1)


def _run_id(folder: Path) -> str:
    """The id that an earlier launch drew, or a new one."""
    path = folder / ID_NAME
    if not path.is_file():
        folder.mkdir(exist_ok=True)
        write_atomic(path, secrets.token_hex(8))
    return path.read_text()
