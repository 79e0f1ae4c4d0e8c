"""One-launch GPU kernels of norms, residual mixes, activations, routes and experts, by Triton's interpreter on a CPU.

Covered: values in fp32 against fp64, at widths that fill no block. Not covered: bf16 and what the compiler makes of
them; `benchmarks/bench_decode.py` checks the whole model on a GPU.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parents[1] / "interpreted_fused.py"


def test_values_are_those_of_fp64_to_rounding():
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-P", "-W", "ignore", str(PROGRAM)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert len(found) == 22
    for name, value in found.items():
        assert value is True or (value is not False and value < 2e-6), (name, value)
