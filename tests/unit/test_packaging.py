"""The hand-written list of packages in pyproject.toml names every folder that holds Python files."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_folder_with_python_files_is_a_listed_package() -> None:
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    roots = setuptools["package-dir"].values()
    found = {path.parent.relative_to(ROOT) for root in roots for path in (ROOT / root).rglob("*.py")}
    assert setuptools["packages"] == sorted("segue." + ".".join(folder.parts) for folder in found)
