"""Starts a fleet without actors on a Ray of its own; prints what it says of its dashboard, what that answers, and what
SIGHUP, sent twice at once, and then SIGINT do, and what is left of Ray's logs.

Usage: own_ray.py <folder>, with any RAY_AUTH_MODE and RAY_ADDRESS in the environment.
"""

import os
import signal
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from segue.actors.loopback import keep_ray_on_loopback
from segue.conf.environment import apply_driver_environment
from segue.conf.schema import SegueConfig


def main(folder: Path) -> None:
    apply_driver_environment()
    keep_ray_on_loopback(SegueConfig().cluster)
    from segue.actors.ray_runtime import own_session
    from segue.actors.supervise import supervised

    with supervised(SegueConfig(), folder, print) as fleet:
        fleet.start()
        assert fleet.dashboard is not None
        print(fleet.dashboard)
        try:
            with urllib.request.urlopen(fleet.dashboard.partition(" ")[0] + "/api/version", timeout=60) as answer:
                print(answer.status)
        except urllib.error.HTTPError as error:
            print(error.code)
        # twice at once is one wish
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGHUP)
        time.sleep(1.0)
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            print("at once")
        session = own_session()
        assert (session / "logs" / "gcs_server.out").is_file()
    # the block ended well
    print("kept" if session.exists() else "deleted")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
