"""What a shell is told when it asks what may follow, by the protocol in which it asks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from segue.actors.cli.main import COMMANDS, main
from segue.conf.groups import GROUPS, group_options
from segue.conf.keys import known_keys, leaf_type

# each would make a key press wait
HEAVY = ("hydra", "omegaconf", "numpy", "torch", "ray", "gymnasium")


def ask(line: str, folder: Path, *options: str) -> tuple[list[str], str]:
    """What may stand at the end of a line, and what the process wrote to standard error."""
    answer = folder / "answer"
    variables = {"COMP_LINE": line, "COMP_POINT": str(len(line)), "COMP_TYPE": "9", "_ARGCOMPLETE": "1"}
    # how a shell that breaks no words, such as fish, has it; the signs are those between answers
    variables |= {"_ARGCOMPLETE_IFS": "\n", "_ARGCOMPLETE_SHELL": "fish", "_ARGCOMPLETE_STDOUT_FILENAME": str(answer)}
    done = subprocess.run(
        [sys.executable, *options, "-P", "-m", "segue.actors.cli.main"],
        env=os.environ | variables,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "")
    # descriptions stand behind a tab
    return [text.partition("\t")[0].strip() for text in answer.read_text().split("\n") if text], done.stderr


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("segue ", [*COMMANDS]),
        ("segue tr", ["train"]),
        ("segue rollout --", ["--help", "--debug", "--cfg", "--episodes", "--greedy", "--demonstrator", "--raw"]),
        ("segue train ", [f"{n}=" for n in (*GROUPS, *(key for key in known_keys() if leaf_type(key) is not None))]),
        ("segue train train.on_e", ["train.on_exceed="]),
        ("segue train train.on_exceed=", ["train.on_exceed=mask", "train.on_exceed=drop"]),
        ("segue eval run.console=f", ["run.console=false"]),
        ("segue train algorithm=", [f"algorithm={name}" for name in group_options("algorithm")]),
        ("segue train run.loggers=", [f"run.loggers=[{name}]" for name in ("tensorboard", "wandb", "mlflow")]),
        ("segue train run.loggers=[wandb,m", ["run.loggers=[wandb,mlflow]"]),
        ("segue check-env env.id=CartP", ["env.id=CartPole-v0", "env.id=CartPole-v1"]),
        # what is complete already is no hindrance, wherever it stands
        ("segue train model=tiny --multirun seed=1,2 learner.loss.k", ["learner.loss.kind="]),
        ("segue train seed=1 --mul", ["--multirun"]),
        ("segue pretrain run.dir=mi", ["run.dir=mine/"]),
        ("segue export mi", ["mine/"]),
        ("segue completion ", ["bash", "zsh", "fish"]),
        ("segue train train.steps=é", []),
    ],
)
def test_what_may_follow(line: str, expected: list[str], tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    assert ask(line, tmp_path)[0] == expected


@pytest.mark.parametrize("command", ["train", "describe", "check-env"])
def test_nothing_heavy_is_loaded_for_an_answer(command: str, tmp_path: Path) -> None:
    found, imports = ask(f"segue {command} --", tmp_path, "-X", "importtime")
    assert "--debug" in found
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in imports.splitlines()}
    assert "segue" in loaded and loaded & {*HEAVY} == set()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_is_given_code_for_the_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    code = capsys.readouterr().out
    assert "segue" in code and "_ARGCOMPLETE" in code


def test_bash_takes_the_code(capsys: pytest.CaptureFixture[str]) -> None:
    main(["completion", "bash"])
    script = f"{capsys.readouterr().out}\ncomplete -p segue"
    done = subprocess.run(["bash", "-e", "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "_python_argcomplete" in done.stdout and done.stdout.strip().endswith("segue")
