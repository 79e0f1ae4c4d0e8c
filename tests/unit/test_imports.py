"""The import table of docs/architecture.md, the one door of each heavy package, and commands that stay light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# folder -> folders that it may import
MAY_IMPORT = {
    "conf": set(),
    "kernels": set(),
    "model": {"kernels", "conf"},
    "envs": {"conf"},
    "rollout": {"model", "envs", "conf"},
    "learner": {"model", "kernels", "conf"},
    "actors": {"conf", "kernels", "model", "envs", "rollout", "learner"},
}
# the learner reads what the rollout wrote, and nothing else of it
EXTRA = {"learner": {"segue.rollout.trajectory", "segue.rollout.stored_group"}}
# heavy package -> files or folders that may import it
DOORS = {
    "hydra": ("conf/",),
    "omegaconf": ("conf/",),
    "gymnasium": ("envs/",),
    "deepspeed": ("learner/backend.py",),
    "ray": ("actors/",),
    "triton": ("kernels/",),
    "vllm": ("rollout/engine/vllm.py",),
    "mcp": ("envs/adapters/mcp_tools.py", "envs/adapters/verifiers_toolset.py"),
    "websockets": ("envs/adapters/openenv_session.py",),
    "reasoning_gym": ("envs/adapters/reasoning.py",),
    "verifiers": ("envs/adapters/verifiers_taskset.py", "envs/adapters/verifiers_toolset.py"),
    "argcomplete": ("actors/cli/completion.py",),
    "wandb": ("actors/wandb_sink.py",),
    "mlflow": ("actors/mlflow_sink.py",),
    "torch": ("kernels/", "model/", "rollout/", "learner/", "actors/"),
}
# light because a folder's other users must not pay for torch
WITHOUT_TORCH = (
    "rollout/trajectory.py",
    "rollout/trajectory_file.py",
    "rollout/stored_group.py",
    "rollout/rewards/term.py",
)


def source_files() -> list[Path]:
    return [path for folder in MAY_IMPORT for path in sorted((ROOT / folder).rglob("*.py"))]


def imported_modules(path: Path) -> set[str]:
    """Every module named by an import statement, wherever in the file it stands."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} must import absolutely"
            modules.add(node.module or "")
    return modules


def test_imports_go_downwards_only() -> None:
    wrong = []
    for path in source_files():
        folder = path.relative_to(ROOT).parts[0]
        allowed = MAY_IMPORT[folder] | {folder}
        for module in imported_modules(path):
            parts = module.split(".")
            if parts[0] == "segue" and parts[1] not in allowed and module not in EXTRA.get(folder, set()):
                wrong.append(f"{path.relative_to(ROOT)} imports {module}")
    assert wrong == []


def test_heavy_packages_have_one_door() -> None:
    wrong = []
    for path in source_files():
        name = str(path.relative_to(ROOT))
        for module in imported_modules(path):
            doors = DOORS.get(module.split(".")[0])
            if doors is not None and not name.startswith(doors):
                wrong.append(f"{name} imports {module}")
            if module.split(".")[0] == "torch" and name in WITHOUT_TORCH:
                wrong.append(f"{name} imports {module}")
    assert wrong == []


def test_packages_import_nothing_by_themselves() -> None:
    for path in source_files():
        if path.name == "__init__.py":
            assert imported_modules(path) == set(), path


LIGHT_COMMANDS = [
    ["--help"],
    ["train", "--help"],
    ["describe", "--help"],
    ["simulate", "--help"],
    ["describe", "model=tiny"],
    ["train", "--cfg", "job"],
    ["check-env", "--help"],
]


@pytest.mark.parametrize("arguments", LIGHT_COMMANDS, ids=" ".join)
def test_light_commands_import_neither_ray_nor_deepspeed(arguments: list[str]) -> None:
    code = (
        "import sys\n"
        "from segue.actors.cli.main import main\n"
        "try:\n"
        f"    code = main({arguments!r})\n"
        "except SystemExit as end:\n"
        "    code = end.code\n"
        "print('heavy:', sorted({'ray', 'deepspeed', 'vllm'} & set(sys.modules)), 'code:', code)\n"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines()[-1] == "heavy: [] code: 0", done.stderr
