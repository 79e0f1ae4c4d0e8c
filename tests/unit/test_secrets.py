"""What is printed and recorded of secrets, given on the command line or in the environment.

Whole runs are in tests/e2e/test_security.py; that programs and queries see no variable, in tests/system and
tests/unit/envs/test_sql_query.py.
"""

import json
import subprocess
from pathlib import Path

import pytest

from segue.actors.cli.main import main
from segue.actors.provenance import launch_facts
from segue.conf.errors import ConfigError
from segue.conf.keys import known_keys
from segue.conf.load import config_to_yaml, load_config
from segue.conf.secret import mask_override

VARIABLES = ("WANDB_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "RAY_AUTH_TOKEN", "OPENAI_API_KEY")


@pytest.mark.parametrize(
    ("override", "shown"),
    [
        ("env.kwargs.api_key=sk-1", "env.kwargs.api_key=***"),
        ("+env.kwargs.apiKey=sk-1", "+env.kwargs.apiKey=***"),
        ("env.kwargs.HF_TOKEN=sk-1", "env.kwargs.HF_TOKEN=***"),
        ("env.kwargs.judge.password='a=b, c'", "env.kwargs.judge.password=***"),
        ("env.kwargs.client_secret=a,b", "env.kwargs.client_secret=***"),
        ("env.kwargs={level: 2, api_key: sk-1}", "env.kwargs=***"),
        ('env.kwargs.headers={"Authorization": "Bearer sk-1"}', "env.kwargs.headers=***"),
        ("env.kwargs.url=https://me:sk-1@host/path", "env.kwargs.url=***"),
        # not ours, but somebody meant something by it
        ("wandb.api_key=sk-1", "wandb.api_key=***"),
        # these say nothing
        ("env.kwargs.max_tokens=16", "env.kwargs.max_tokens=16"),
        ("env.kwargs.tokenizer=bytes", "env.kwargs.tokenizer=bytes"),
        ("env.kwargs.url=https://host:80/a", "env.kwargs.url=https://host:80/a"),
        ("~env.kwargs.api_key", "~env.kwargs.api_key"),
        ("run.dir=runs/a=b", "run.dir=runs/a=b"),
    ],
)
def test_an_override_is_shown_without_a_secret(override: str, shown: str) -> None:
    assert mask_override(override) == shown


def test_no_key_of_the_schema_is_a_secret() -> None:
    overrides = [f"{key}=1" for key in known_keys()]
    assert list(map(mask_override, overrides)) == overrides


def test_a_launch_records_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    for number, name in enumerate(VARIABLES):
        monkeypatch.setenv(name, f"sk-{number}-5772156649")
    facts = launch_facts("train", ["seed=1", "env.kwargs.api_key=sk-5772156649", "rollout.max_turn_tokens=16"])
    assert facts["command_line"] == ["segue", "train", "seed=1", "env.kwargs.api_key=***", "rollout.max_turn_tokens=16"]
    assert "5772156649" not in json.dumps(facts)


class Job:
    """Stands in for `subprocess.Popen`: a job that ends well at once."""

    def __init__(self, command: list[str]) -> None:
        self.command = command

    def wait(self) -> int:
        return 0


def test_lists_of_jobs_are_printed_without_secrets(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "Popen", Job)
    assert main(["train", "-m", "env.kwargs.api_key=sk-1,sk-2", "run.dir=a"]) == 0
    text = capsys.readouterr().out
    jobs, table = text.split("\n\n")
    assert table.count("env.kwargs.api_key=***  finished") == 2 and "sk-" not in text
    assert jobs.splitlines() == [
        f"job {number + 1} of 2: segue train env.kwargs.api_key=*** run.dir={tmp_path}/a/{number}" for number in (0, 1)
    ]
    # a job that cannot run is named
    assert main(["train", "-m", "env.kwargs.api_key=sk-1", "train.max_uses=1,2", "run.dir=a"]) == 2
    printed = capsys.readouterr().err.splitlines()
    assert len(printed) == 1 and "env.kwargs.api_key=*** " in printed[0] and "sk-1" not in printed[0]


def test_a_run_that_cannot_go_on_with_another_secret_tells_neither(tmp_path: Path) -> None:
    config = load_config([f"run.dir={tmp_path}", "env.kwargs.api_key=sk-old", "env.kwargs.level=1"])
    (tmp_path / "config.yaml").write_text(config_to_yaml(config))
    with pytest.raises(ConfigError) as caught:
        load_config([f"run.dir={tmp_path}", "env.kwargs.api_key=sk-new", "env.kwargs.level=2"])
    text = str(caught.value)
    assert "env.kwargs.api_key: *** -> ***; env.kwargs.level: 1 -> 2" in text and "sk-" not in text


def test_a_secret_that_does_not_parse_is_not_repeated() -> None:
    with pytest.raises(ConfigError, match=r"got 'env\.kwargs\.api_key=\*\*\*', whose value needs quotes$"):
        load_config(["env.kwargs.api_key=sk-1{"])
