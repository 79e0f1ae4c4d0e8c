"""The command that a soak runs, its processes, and those that it left behind."""

import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import IO

import psutil

KEEPER = "segue.envs.keeper"
_PRINT_S = 2.0


class Role(Enum):
    """What a process of a run is."""

    driver = "driver"
    rollout = "rollout actor"
    learner = "learner rank"
    env_worker = "env worker"
    raylet = "raylet"
    gcs = "gcs_server"
    other = "other"


# how Ray titles the processes of an actor: by its class, and while it works by its name and method
_TITLES = {
    "ray::RolloutActor": Role.rollout,
    "ray::rollout-": Role.rollout,
    "ray::LearnerActor": Role.learner,
    "ray::learner-": Role.learner,
}


def role_of(name: str, command_line: Sequence[str], parent_line: Sequence[str]) -> Role:
    """What a process below the driver is.

    Args:
        name: of its program.
        command_line: its arguments, or the title that it gave itself.
        parent_line: its parent's.
    """
    title = " ".join(command_line)
    if name in (Role.raylet.value, Role.gcs.value):
        return Role(name)
    # the worker is a fork of its keeper
    if KEEPER in command_line and KEEPER in parent_line:
        return Role.env_worker
    return next((role for prefix, role in _TITLES.items() if title.startswith(prefix)), Role.other)


@dataclass(eq=False, slots=True, kw_only=True)
class Launch:
    """The command, given once."""

    process: subprocess.Popen[bytes]
    tree: set[psutil.Process]
    """Processes that were seen below it, and itself, less those that are known to be gone."""
    printing: threading.Thread
    """Passes its output on."""
    log_start: int
    """Size of the log before it."""
    ended_at: float | None = None
    """`time.time()`; None while it runs, or nobody has looked."""


class Command:
    """Gives the command, looks at its processes, and keeps what it prints."""

    def __init__(self, arguments: Sequence[str], log: Path) -> None:
        """Args: the command's, behind the interpreter's; `log` takes the output of all launches."""
        self._command = [sys.executable, "-P", "-m", "segue.actors.cli.main", *arguments]
        self._log = log
        self.launches: list[Launch] = []

    def launch(self) -> None:
        """Give the command (again)."""
        log_start = self._log.stat().st_size if self._log.exists() else 0
        process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert process.stdout is not None
        # through a pipe: what a disk without room does to a redirected output is not the run's to bear
        printing = threading.Thread(target=_pass_on, args=(process.stdout, self._log), daemon=True)
        printing.start()
        tree = {psutil.Process(process.pid)}
        self.launches.append(Launch(process=process, tree=tree, printing=printing, log_start=log_start))

    @property
    def present(self) -> Launch:
        """The latest launch."""
        return self.launches[-1]

    def poll(self) -> int | None:
        """The present launch's exit code; None while it runs."""
        code = self.present.process.poll()
        if code is not None and self.present.ended_at is None:
            self.present.ended_at = time.time()
            # a process that stays behind may hold the pipe open
            self.present.printing.join(_PRINT_S)
        return code

    def last_words(self) -> str:
        """What the present launch said last: the line by which it explains its end, where there is one."""
        with self._log.open("rb") as file:
            file.seek(self.present.log_start)
            lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
        return next((line for line in reversed(lines) if line.startswith("segue: ")), (lines or ["nothing"])[-1])

    def look(self) -> dict[Role, list[psutil.Process]]:
        """Living processes of the present launch by role, oldest first."""
        launch = self.present
        found: dict[Role, list[psutil.Process]] = defaultdict(list)
        try:
            driver = psutil.Process(launch.process.pid)
            below = driver.children(recursive=True)
        except psutil.NoSuchProcess:
            return found
        launch.tree.update(below)
        found[Role.driver].append(driver)
        for process in sorted(below, key=lambda process: (process.create_time(), process.pid)):
            try:
                parent = process.parent()
                parent_line = [] if parent is None else parent.cmdline()
                found[role_of(process.name(), process.cmdline(), parent_line)].append(process)
            except (psutil.NoSuchProcess, psutil.ZombieProcess):
                continue
        return found

    def left_behind(self) -> list[tuple[float, psutil.Process]]:
        """Living processes of launches that have ended, and seconds since their launch's end."""
        now = time.time()
        found: list[tuple[float, psutil.Process]] = []
        for launch in self.launches:
            if launch.ended_at is not None:
                launch.tree = {process for process in launch.tree if _is_alive(process)}
                found += [(now - launch.ended_at, process) for process in launch.tree]
        return found

    def end_all(self) -> None:
        """Kill whatever is left of any launch."""
        self.look()
        for launch in self.launches:
            for process in filter(_is_alive, launch.tree):
                process.kill()
            launch.process.wait()


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _pass_on(output: IO[bytes], log: Path) -> None:
    with output, log.open("ab") as file:
        for line in output:
            file.write(line)
            file.flush()
