"""What a figure of a run depends on: versions, hardware, source, command line."""

import os
import platform
import shutil
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from segue.conf.secret import mask_override
from segue.model.device import gpu_names

_PACKAGES = (
    "segue",
    "torch",
    "ray",
    "deepspeed",
    "numpy",
    "gymnasium",
    "hydra-core",
    "safetensors",
    "tokenizers",
    "triton",
)


def launch_facts(command: str, arguments: list[str]) -> dict[str, Any]:
    """Facts of this launch, as JSON values; the command line without the secrets in it, and no environment variable."""
    return {
        "command": command,
        "command_line": ["segue", command, *map(mask_override, arguments)],
        "started_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "hardware": {
            "platform": platform.platform(),
            "cpu": _cpu_name(),
            "logical_cpus": os.cpu_count(),
            "memory_bytes": psutil.virtual_memory().total,
            "gpus": gpu_names(),
        },
        "source": _source(Path(__file__).resolve().parent),
    }


def program(name: str) -> str:
    """How a program that came with this Python is called: by its name where the shell finds it, else by its path."""
    return name if shutil.which(name) else str(Path(sys.executable).parent / name)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if sys.platform == "linux" and info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def _source(folder: Path) -> dict[str, Any]:
    """Commit of the checkout that this file lies in; nulls where it is no checkout."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return {"commit": None, "is_dirty": None}
    return {"commit": commit, "is_dirty": _git(folder, "status", "--porcelain", "--untracked-files=no") != ""}


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
