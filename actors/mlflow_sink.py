"""MLflow: a run of ours is one run of theirs, however often it is resumed.

Its points cannot be taken back: steps that a restore undid stay, and the step that took one's place stands beside it
with a later time. The tag `incarnation` says how often the run was restored.
"""

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from segue.actors.recorder import Progress, Values
from segue.actors.run_folder import write_json
from segue.conf.flatten import flatten
from segue.conf.schema import SegueConfig
from segue.conf.secret import mask_values

RUN_NAME = "run.json"
# of one request, and of a parameter's value
_MAX_PARAMS = 100
_MAX_PARAM_CHARS = 6000
_STATUS = {"finished": "FINISHED", "interrupted": "KILLED"}


class MlflowSink:
    """Points of one MLflow run.

    Args:
        config: goes along as parameters when the run is made, its secrets masked.
        folder: for the run's id and, unless the configuration names a server, the database; made if it is not there.
        uri: of the server or the database.
        name: that the run is shown by.
        progress: of the run so far.
        say: is told where the run can be seen.
    """

    def __init__(
        self, config: SegueConfig, folder: Path, *, uri: str, name: str, progress: Progress, say: Callable[[str], None]
    ) -> None:
        folder.mkdir(exist_ok=True)
        settings = config.run.mlflow
        self._client = MlflowClient(tracking_uri=uri)
        self._incarnation = progress.num_restores
        # a folder may have moved: what the configuration says names the store
        earlier = _read_json(folder / RUN_NAME)
        if earlier.get("tracking_uri", "") == settings.tracking_uri:
            self._run_id = earlier["run_id"]
            self._client.update_run(self._run_id, status="RUNNING")
        else:
            artifacts = None if settings.tracking_uri else (folder / "artifacts").as_uri()
            experiment = self._experiment(settings.experiment, artifacts)
            self._run_id = self._client.create_run(experiment, run_name=name).info.run_id
            write_json(folder / RUN_NAME, {"tracking_uri": settings.tracking_uri, "run_id": self._run_id})
            self._log_params(mask_values(flatten(config)))
        say(f"mlflow: run {self._run_id} of experiment {settings.experiment} in {uri}")

    def write(self, kind: str, step: int, values: Values) -> None:
        """See `recorder.Sink`."""
        if kind == "restore":
            self._incarnation += 1
            self._client.set_tag(self._run_id, "incarnation", self._incarnation)
        now_ms = int(time.time() * 1000)
        points = [Metric(_legal(name), value, now_ms, step) for name, value in values.items() if value is not None]
        self._client.log_batch(self._run_id, metrics=points)

    def close(self, status: str) -> None:
        """See `recorder.Sink`."""
        self._client.set_terminated(self._run_id, _STATUS.get(status, "FAILED"))

    def _experiment(self, name: str, artifacts: str | None) -> str:
        found = self._client.get_experiment_by_name(name)
        if found is not None:
            return found.experiment_id
        try:
            return self._client.create_experiment(name, artifact_location=artifacts)
        except MlflowException:
            # another run was faster
            found = self._client.get_experiment_by_name(name)
            if found is None:
                raise
            return found.experiment_id

    def _log_params(self, values: dict[str, Any]) -> None:
        params = [Param(_legal(key), str(value)[:_MAX_PARAM_CHARS]) for key, value in values.items()]
        for start in range(0, len(params), _MAX_PARAMS):
            self._client.log_batch(self._run_id, params=params[start : start + _MAX_PARAMS])


def _legal(name: str) -> str:
    """A name without the signs that MLflow refuses."""
    return re.sub(r"[^\w\-./: ]", "_", name)


def _read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.is_file() else {}
