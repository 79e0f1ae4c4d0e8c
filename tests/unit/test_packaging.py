"""What pyproject.toml lists by hand: every folder with Python files, and every extra that texts and messages offer."""

import re
import tomllib
from pathlib import Path

from segue.conf.schema import Logger

ROOT = Path(__file__).parents[2]


def test_every_folder_with_python_files_is_a_listed_package() -> None:
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    roots = setuptools["package-dir"].values()
    found = {path.parent.relative_to(ROOT) for root in roots for path in (ROOT / root).rglob("*.py")}
    assert setuptools["packages"] == sorted("segue." + ".".join(folder.parts) for folder in found)


def test_every_extra_that_a_text_or_a_message_offers_is_declared() -> None:
    declared = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    texts = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "pyproject.toml", *(ROOT / "docs").rglob("*.md")]
    adapters = list((ROOT / "envs/adapters").glob("*.py"))
    offered = {
        extra
        for path in texts
        for extras in re.findall(r"(?:segue|'\.)\[([a-z,-]+)\]", path.read_text())
        for extra in extras.split(",")
    }
    asked = {extra for path in adapters for extra in re.findall(r'needs_extra\("([a-z-]+)"\)', path.read_text())}
    assert asked
    # the message of a logger that is missing names the extra by the logger
    loggers = {logger.name for logger in Logger} - {Logger.tensorboard.name}
    assert offered | asked | loggers <= declared
