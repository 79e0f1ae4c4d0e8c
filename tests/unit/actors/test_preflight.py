"""What is known to fail before any process starts: the model that a run is to begin with."""

import json
from importlib.resources import files
from pathlib import Path

import pytest

from segue.actors.preflight import initial_model
from segue.conf.errors import ConfigError
from segue.conf.load import load_config

WARM_START = json.loads((Path(str(files("segue.model"))) / "warm_start" / "config.json").read_text())


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"{", "config.json must hold the JSON object that describes a model: Expecting"),
        (b"[]", "config.json must hold the JSON object that describes a model, got list"),
        (b"\xff", "config.json must hold the JSON object that describes a model: 'utf-8'"),
        (json.dumps(WARM_START | {"hidden_size": "96"}).encode(), "hidden_size must be an integer, got '96'"),
        (json.dumps(WARM_START | {"hidden_size": 64}).encode(), "model.hidden_size: 96 here, 64 there"),
    ],
)
def test_an_initial_model_that_cannot_be_read_is_the_users_to_mend(data: bytes, reason: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(data)
    with pytest.raises(ConfigError) as caught:
        initial_model(load_config([f"run.init_from={tmp_path}"]))
    assert str(caught.value).startswith("run.init_from must hold ")
    assert reason in str(caught.value)


def test_a_model_that_fits_is_found(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(WARM_START))
    assert initial_model(load_config([f"run.init_from={tmp_path}"])) == tmp_path
