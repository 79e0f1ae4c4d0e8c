"""Starts a fleet without actors on a Ray of its own, and prints what it says of its dashboard and what that answers.

Usage: own_ray.py <folder>, with any RAY_AUTH_MODE and RAY_ADDRESS in the environment.
"""

import sys
import urllib.error
import urllib.request
from pathlib import Path

from segue.conf.environment import apply_driver_environment
from segue.conf.schema import SegueConfig


def main(folder: Path) -> None:
    apply_driver_environment()
    from segue.actors.supervise import supervised

    with supervised(SegueConfig(), folder, print) as fleet:
        fleet.start(num_rollout=0, num_learners=0, exported_model=None)
        assert fleet.dashboard is not None
        print(fleet.dashboard)
        try:
            with urllib.request.urlopen(fleet.dashboard.partition(" ")[0] + "/api/version", timeout=60) as answer:
                print(answer.status)
        except urllib.error.HTTPError as error:
            print(error.code)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
