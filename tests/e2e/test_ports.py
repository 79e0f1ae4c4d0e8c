"""Ports: a run takes none that is taken. What it listens on, and where, is in test_train.py."""

import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

DASHBOARD_PORT = 8265
"""The only one that Ray asks for by number."""


def test_where_the_dashboards_port_is_taken_ray_takes_another(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind(("127.0.0.1", DASHBOARD_PORT))
            taken.listen()
        except OSError:
            # another Ray of this machine has it already, which serves as well
            pass
        command = [sys.executable, "-P", str(Path(__file__).parent / "own_ray.py"), str(tmp_path)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=240, check=True)
    told, status, *_ = done.stdout.splitlines()[-5:]
    port = urlsplit(told.partition(" ")[0]).port
    # it is up, and asks for its token
    assert port is not None and port != DASHBOARD_PORT
    assert status == "401"
