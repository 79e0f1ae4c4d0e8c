"""Whether two runs did the same to the last bit: metrics of every step and evaluation, and the exported weights."""

from pathlib import Path

from safetensors.numpy import load_file

from segue.actors.metrics import pattern_of
from segue.actors.recorder import read_metrics

TIMES = "a time, or a rate over one"
MACHINE = "what processes of this machine took so far"
LAUNCH = (
    "counted by a launch, which plays only what earlier ones have not finished, and drops what undone steps sampled"
)
OF_A_LAUNCH = {
    "loop/step/wall_s": TIMES,
    "loop/wait/wall_s": TIMES,
    "loop/learn/wall_s": TIMES,
    "loop/publish/wall_s": TIMES,
    "loop/eta/s": TIMES,
    "learner/tokens/per_s": TIMES,
    "rollout/prefill/tokens_per_s": TIMES,
    "rollout/decode/tokens_per_s": TIMES,
    "reward/term/wall_s": TIMES,
    "eval/wall/s": TIMES,
    "curriculum/wall/s": TIMES,
    "usage/cpu/s": MACHINE,
    "usage/memory/bytes": MACHINE,
    "usage/memory/peak_bytes": MACHINE,
    "loop/faults/count": LAUNCH,
    "buffer/dropped/groups": LAUNCH,
    "env/episodes/begun": LAUNCH,
    "env/episodes/failed": LAUNCH,
    "env/episodes/restored": LAUNCH,
    "env/episodes/lost": LAUNCH,
    "env/calls/answered": LAUNCH,
    "env/calls/expired": LAUNCH,
    "env/workers/died": LAUNCH,
    "env/workers/replaced": LAUNCH,
    "reward/terms/computed": LAUNCH,
    "reward/terms/failed": LAUNCH,
    "reward/terms/expired": LAUNCH,
}
"""Metrics that tell of a launch rather than of what was learnt, and why; all others must be equal."""

Values = dict[tuple[str, int, str], float | None]
"""(kind of line, step, metric) to value."""


def values_of(folder: Path) -> Values:
    """Metrics of the steps and evaluations on a run's line, less those of a launch."""
    return {
        (line["kind"], line["step"], name): value
        for line in read_metrics(folder / "metrics.jsonl")
        for name, value in line["metrics"].items()
        if pattern_of(name) not in OF_A_LAUNCH
    }


def differing_metrics(first: Path, second: Path) -> tuple[list[str], int]:
    """What differs between the metrics of two run folders, and how many were compared."""
    one, other = values_of(first), values_of(second)
    missing = "no value"
    pairs = {key: (one.get(key, missing), other.get(key, missing)) for key in sorted(one.keys() | other.keys())}
    differing = [f"{' '.join(map(str, key))}: {a!r}, {b!r}" for key, (a, b) in pairs.items() if a != b]
    return differing, len(pairs)


def differing_weights(first: Path, second: Path) -> tuple[list[str], int]:
    """Names of the tensors that differ between the exports of two run folders, and how many were compared."""
    one, other = (load_file(folder / "export" / "model.safetensors") for folder in (first, second))
    bits = [{name: (x.dtype, x.shape, x.tobytes()) for name, x in arrays.items()} for arrays in (one, other)]
    names = sorted(one.keys() | other.keys())
    return [name for name in names if bits[0].get(name) != bits[1].get(name)], len(names)
