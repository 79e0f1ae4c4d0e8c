"""Ray's own servers die under a run: it notices at once, and can start another Ray.

Not covered: a whole run through it (benchmarks/soak.py).
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from segue.actors.errors import Interrupted, RayLost
from segue.actors.supervise import supervised
from segue.conf.schema import SegueConfig


def test_a_dead_server_of_ray_is_noticed_at_once_and_a_new_ray_can_be_started(tmp_path: Path) -> None:
    command = [sys.executable, "-P", str(Path(__file__).parent / "lost_ray.py"), str(tmp_path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=240, check=True)
    told = [line.split() for line in done.stdout.splitlines() if "noticed" in line]
    assert [line[:2] for line in told] == [["noticed", "after"]] * 2, done.stdout
    # Ray itself takes a minute to miss its directory, and then ends the process that asks
    assert all(float(line[2]) < 5.0 for line in told)


@pytest.mark.parametrize(("is_asked", "ends_in"), [(True, Interrupted), (False, RayLost)])
def test_a_wish_to_end_is_not_forgotten_where_ray_is_lost_with_it(
    tmp_path: Path, is_asked: bool, ends_in: type[Exception]
) -> None:
    # ends the Ray of this process, if there is one: not beside tests that share one
    with pytest.raises(ends_in), supervised(SegueConfig(), tmp_path, print):
        if is_asked:
            os.kill(os.getpid(), signal.SIGTERM)
        raise RayLost("Ray is gone")
