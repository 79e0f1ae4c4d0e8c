"""`segue check-env`: what it takes, prints and returns. What each check finds: unit/envs/test_checker.py."""

import io
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from segue.actors.cli.check_env_command import _table
from segue.actors.cli.main import main
from segue.envs.check_report import CHECKS, Report

ROOT = Path(__file__).parents[3]

SHOUTING = """
import gymnasium
from gymnasium import spaces

class Shouting(gymnasium.Env):
    action_space = observation_space = spaces.Discrete(2)
    def __init__(self, level=1):
        self.level = level
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return int(self.np_random.integers(2)), {}
    def step(self, action):
        if self.level == 2:
            raise RuntimeError("\\x1b[2Jlevel two")
        return action, 1.0, True, False, {}

gymnasium.register("Shouting-v0", entry_point=Shouting)
"""


def told(text: str) -> dict[str, str]:
    """The row of each check, its lines joined: verdict and what was found."""
    rows: dict[str, str] = {}
    check = ""
    for line in text.splitlines():
        cells = [cell.strip() for cell in re.split("[│┃]", line)]
        if len(cells) == 3:
            check = cells[1] or check
            rows[check] = f"{rows.get(check, '')} {cells[0]} {cells[2]}".strip()
    return rows


def test_an_environment_of_the_launch_folder_passes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (tmp_path / "guess_number.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["check-env", "guess_number:GuessNumber-v0", "--seeds", "2"]) == 0
    text = capsys.readouterr().out
    rows = told(text)
    assert [check for check in rows if check != "check"] == list(CHECKS)
    assert rows["begins"] == "pass 2 seeds"
    assert rows["demonstrator"] == "pass the expert succeeds on 2 seeds, with returns from 1 to 1"
    assert text.splitlines()[-1] == f"guess_number:GuessNumber-v0: {len(CHECKS)} pass"
    # nothing of a run is left there
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "__pycache__") == ["guess_number.py"]


def test_overrides_reach_the_environment_and_a_fault_is_code_2_with_the_remedy(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shouting.py").write_text(SHOUTING)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    name = "shouting:Shouting-v0"
    # success has no rule of its own here
    assert main(["check-env", name, "env.success_return=1", "--steps", "5"]) == 0
    rows = told(capsys.readouterr().out)
    assert rows["success"] == "pass said at every end; 3 of 3 arbitrary episodes succeeded"
    assert main(["check-env", "env.kwargs.level=2", name, "env.success_return=1"]) == 2
    text = capsys.readouterr().out
    rows = told(text)
    # what an environment says does not reach the terminal as a command
    assert "\x1b[2J" not in text and r"RuntimeError: \x1b[2Jlevel two" in rows["runs"]
    assert rows["runs"].endswith(f"remedy: {CHECKS['runs']}")
    reached = ("builds", "begins", "runs")
    assert rows["not reached"] == f"- {', '.join(check for check in CHECKS if check not in reached)}"
    assert text.splitlines()[-1] == f"{name}: 2 pass, 1 fail, {len(CHECKS) - 3} not reached"
    assert f"({tmp_path}/shouting.py:14 in step)" in rows["runs"]


def test_a_long_path_is_folded_and_not_cut() -> None:
    report = Report()
    report.fail("runs", f"RuntimeError (/home/{'very' * 20}_deep/mine.py:14 in step)")
    console = Console(width=60, file=io.StringIO(), force_terminal=False)
    console.print(_table(report))
    assert isinstance(console.file, io.StringIO)
    cells = [line.split("│")[2].strip() for line in console.file.getvalue().splitlines() if "│" in line]
    assert "_deep/mine.py:14instep)" in "".join(cells).replace(" ", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sql", "--seeds", "1"], "--seeds must be at least 2, got 1"),
        (["sql", "--steps", "0"], "--steps must be at least 1, got 0"),
        (["sql", "python"], "id must be one, got sql, python"),
        (["sql", "env.id=python"], "id must be one, got sql, env.id=python"),
        (["sql", "env.idd=3"], "env.idd must be a known key, got an unknown one; nearest: env.id"),
    ],
)
def test_what_the_user_can_mend_is_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check-env", *arguments]) == 2
    assert capsys.readouterr().err == f"segue: {message}\n"


def test_the_id_may_hold_signs_that_overrides_would_have_to_quote(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("ALE/Pong-v5", 'é"{x} [y]:Y-v0'):
        assert main(["check-env", name, "--cfg", "job"]) == 0
        assert f"\n  id: {name}\n" in capsys.readouterr().out


def test_it_loads_neither_ray_nor_deepspeed_nor_torch() -> None:
    code = (
        "import sys\n"
        "from segue.actors.cli.main import main\n"
        "code = main(['check-env', 'FrozenLake-v1', '--seeds', '2', '--steps', '5'])\n"
        "print('heavy:', sorted({'ray', 'deepspeed', 'vllm', 'torch', 'transformers'} & set(sys.modules)), code)\n"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "heavy: [] 0", done.stderr
