"""For each of Ray's servers: starts a fleet on a Ray of its own, kills the server, and prints when that is noticed.

Usage: lost_ray.py <folder>
"""

import sys
import time
from pathlib import Path
from typing import Any

import psutil
import ray

from segue.actors.errors import RayLost
from segue.actors.fleet import Member
from segue.actors.interrupt import Interrupt
from segue.actors.supervise import RayFleet
from segue.conf.environment import apply_driver_environment
from segue.conf.schema import ClusterConfig, SegueConfig


class Sleeper:
    """An actor that answers late."""

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class SleeperFleet(RayFleet):
    """A fleet of one."""

    def spawn(self) -> Member:
        return self._join("sleeper", ray.remote(Sleeper).remote(), {})


def main(folder: Path) -> None:
    config = SegueConfig(cluster=ClusterConfig(dashboard=False))
    for server in ("gcs_server", "raylet"):
        fleet = SleeperFleet(config, run_folder=folder, interrupt=Interrupt(print))
        fleet.start()
        member = fleet.spawn()
        first: list[Any] = []
        reference = fleet.call(member, "sleep", 0.0)
        while not first:
            first = fleet.look([reference])
        reference = fleet.call(member, "sleep", 600.0)
        assert fleet.look([reference]) == []
        (process,) = (child for child in psutil.Process().children() if child.name() == server)
        process.kill()
        start = time.monotonic()
        try:
            while time.monotonic() < start + 30.0:
                fleet.look([reference])
            print("unnoticed")
        except RayLost:
            print(f"noticed after {time.monotonic() - start:.1f} s")
        fleet.stop()


if __name__ == "__main__":
    apply_driver_environment()
    main(Path(sys.argv[1]))
