"""The commands of `examples/README.md`, in a folder outside the repository, as they stand there."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from run_cases import TIMEOUT_S

from segue.conf.load import load_config

EXAMPLES = Path(__file__).parents[2] / "examples"
# what a run needs to show that it takes the example up
SHORT = (
    "train.steps=1",
    "train.groups_per_step=2",
    "train.group_size=2",
    "eval.episodes=2",
    "cluster.rollout_actors=1",
    "cluster.learner_ranks=1",
    "cluster.dashboard=false",
    "run.dir=run",
)


def commands() -> list[list[str]]:
    """The arguments of every `segue` of the page, in order."""
    blocks = re.findall(r"```bash\n(.*?)```", (EXAMPLES / "README.md").read_text(), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    return [shlex.split(line)[1:] for line in lines if line.startswith("segue ")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mine")
    for path in EXAMPLES.glob("*/*.py"):
        shutil.copy(path, folder)
    return folder


def segue(folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-P", "-m", "segue.actors.cli.main", *arguments]
    done = subprocess.run(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_S
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_the_page_shows_each_example_alone_and_all_together() -> None:
    given = [" ".join(arguments) for arguments in commands()]
    for word in ("swaps:Swaps-v0", "brevity:brevity", "soft_gate:soft_gate"):
        assert sum(word in text for text in given) >= 2
    assert all(word in given[-1] for word in ("swaps:Swaps-v0", "brevity:brevity", "soft_gate:soft_gate"))


def test_the_environment_keeps_the_contract(folder: Path) -> None:
    (arguments,) = [arguments for arguments in commands() if arguments[0] == "check-env"]
    last = segue(folder, *arguments).splitlines()[-1]
    assert last == "swaps:Swaps-v0: 15 pass" and last in (EXAMPLES / "README.md").read_text()


def test_every_command_of_a_run_composes(folder: Path) -> None:
    given = [arguments for arguments in commands() if arguments[0] != "check-env"]
    assert [command for command, *_ in given] == ["rollout", "train", "pretrain", *["train"] * 4]
    for command, *arguments in given:
        # what the first of two imitates is not there yet
        known = [text for text in arguments if not text.startswith(("run.init_from=", "--"))]
        assert load_config(known, command, launch_folder=folder).env.import_folder == str(folder)


def test_a_run_takes_all_three_up(folder: Path) -> None:
    segue(folder, *commands()[-1], *SHORT)
    lines = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    (step,) = [line["metrics"] for line in lines if line["kind"] == "step"]
    # every episode is rated by the term, whatever the policy does
    assert 0 < step["batch/reward_term/brevity"] <= 0.1
    assert json.loads((folder / "run/summary.json").read_text())["status"] == "finished"
