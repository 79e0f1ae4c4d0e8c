"""Starting the ranks of a test as processes of their own."""

import os
import socket
import subprocess
import sys
from pathlib import Path


def run_ranks(script: Path, num_ranks: int, folder: Path) -> None:
    """Run `script <rank> <ranks> <port> <folder>` for every rank, wait, and show what they printed if one failed."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    processes = [
        subprocess.Popen(
            [sys.executable, "-P", "-W", "ignore", str(script), str(rank), str(num_ranks), str(port), str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"},
        )
        for rank in range(num_ranks)
    ]
    outputs = [process.communicate(timeout=800)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * num_ranks, "\n".join(outputs)
