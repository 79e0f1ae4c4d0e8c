"""What the benchmarks of GPU kernels share: errors, medians, graphs, and figures that are reported elsewhere.

python benchmarks/bench_<topic>.py --figures <topic>.json    on a machine with a GPU
python benchmarks/bench_<topic>.py --report <topic>.json     in a clean checkout: writes the report
"""

import argparse
import json
import platform
import statistics
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import version

import torch
from report import Row, write_report
from torch import Tensor


def error(result: Tensor, truth: Tensor) -> float:
    """RMS of the difference over the RMS of the truth; NaN where the result is not finite."""
    size = truth.double().square().mean().sqrt().clamp_min(1e-30)
    return float((result.double() - truth.double()).square().mean().sqrt() / size)


def median_ms(call: Callable[[], object], *, warmups: int = 5, repeats: int = 50) -> float:
    """Median over calls, each between two events, the second-level cache overwritten before."""
    cache = torch.empty(2**26, dtype=torch.int32, device="cuda")
    for _ in range(warmups):
        call()
    times = []
    for _ in range(repeats):
        cache.zero_()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        times.append((start, end))
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in times)


def captured(call: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """The call as a graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph


def check(*checks: Callable[[], list[str]]) -> None:
    """Run checks in memory that is NaN until it is written.

    Raises:
        SystemExit: one told of a failure.
    """
    torch.use_deterministic_algorithms(True, warn_only=True)
    assert torch.empty(3, device="cuda").isnan().all(), "memory is not poisoned"
    failures = [failure for run in checks for failure in run()]
    torch.use_deterministic_algorithms(False)
    if failures:
        raise SystemExit("no times, since checks failed:\n" + "\n".join(failures))
    print("all checks passed", flush=True)


def main(topic: str, description: str | None, measure: Callable[[], list[Row]]) -> None:
    """Measure, or write the report of what was measured.

    Args:
        topic: of the benchmark `bench_<topic>.py`.
        description: for its help.
        measure: checks, then times.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figures", help="measure, and write the figures here")
    parser.add_argument("--report", help="figures to write as this commit's report")
    args = parser.parse_args()
    if args.report:
        with open(args.report) as file:
            figures = json.load(file)
        rows = [Row(**row) for row in figures.pop("rows")]
        command = f"python benchmarks/bench_{topic}.py --figures {topic}.json"
        print(write_report(topic, rows, elsewhere={"command": command, **figures}))
        return
    rows = measure()
    properties = torch.cuda.get_device_properties(0)
    figures = {
        "hardware": {
            "name": properties.name.replace(" ", "-").lower(),
            "model": properties.name,
            "multiprocessors": properties.multi_processor_count,
            "system": platform.platform(),
        },
        "packages": {name: version(name) for name in ("torch", "triton")},
        "rows": [asdict(row) for row in rows],
    }
    if args.figures:
        with open(args.figures, "w") as file:
            json.dump(figures, file)
