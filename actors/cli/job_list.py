"""The jobs of `--multirun`: processes one after another; what ends this process ends the job at hand and the list."""

import signal
import subprocess
from types import FrameType
from typing import Any

from segue.actors.errors import Interrupted

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class JobList:
    """Runs commands in turn while it is entered.

    Ctrl-C and a closed terminal reach the job by themselves; SIGTERM, which reaches this process alone, is passed on to
    it. In each case the job ends as one that runs alone, and no other begins.
    """

    def __init__(self) -> None:
        self._job: subprocess.Popen[bytes] | None = None
        self._is_told = False
        self._must_pass_on = False
        self._earlier: dict[int, Any] = {}

    def __enter__(self) -> "JobList":
        for number in _SIGNALS:
            present = signal.getsignal(number)
            # as under nohup
            if present != signal.SIG_IGN:
                self._earlier[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._earlier.items():
            signal.signal(number, handler)

    def run(self, command: list[str]) -> int:
        """Runs a command to its end.

        Returns:
            Its exit code.
        Raises:
            Interrupted: this process was told to end, and the command has ended.
        """
        if not self._is_told:
            self._job = subprocess.Popen(command)
            self._pass_on()
            code = self._job.wait()
            self._job = None
        if self._is_told:
            raise Interrupted
        return code

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._is_told = True
        self._must_pass_on |= number == signal.SIGTERM
        self._pass_on()

    def _pass_on(self) -> None:
        if self._must_pass_on and self._job is not None:
            self._must_pass_on = False
            self._job.terminate()
