"""Starts a fleet on a Ray of its own and is told to end as soon as Ray's first server is there; prints what came of it.

Usage: ended_start.py <folder>
"""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import psutil

from segue.actors.errors import Interrupted
from segue.conf.environment import apply_driver_environment
from segue.conf.schema import SegueConfig


def end_while_it_starts() -> None:
    while not any(child.name() == "gcs_server" for child in psutil.Process().children()):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)


def main(folder: Path) -> None:
    apply_driver_environment()
    from segue.actors.supervise import supervised

    threading.Thread(target=end_while_it_starts).start()
    try:
        with supervised(SegueConfig(), folder, print) as fleet:
            fleet.start()
            print("started")
    except Interrupted:
        print("interrupted")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
