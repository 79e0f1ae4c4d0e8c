"""Hydra's groups: whole sections, or keys of several, chosen by a name."""

from importlib.resources import files
from pathlib import Path

GROUPS = ("model", "env", "algorithm", "experiment")


def group_options(group: str) -> list[str]:
    """Names that `<group>=` takes."""
    folder = files("segue.conf") / group
    return sorted(Path(entry.name).stem for entry in folder.iterdir() if entry.name.endswith(".yaml"))
