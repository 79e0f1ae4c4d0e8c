"""The learner's step on a GPU: checks, then tokens a second and memory; no time is told when a check fails.

    python benchmarks/bench_learner_gpu.py --figures learner_gpu.json        on a machine with a GPU
    python benchmarks/bench_learner_gpu.py --report learner_gpu.json         in a clean checkout: writes the report

Checked, on a model of mini's widths with 4 layers: both runs of a segment agree bit for bit; every gradient of bf16 on
the GPU against fp32 on the CPU, with the GPU's experts. Timed: `model=mini` in bf16 through the sweeps on the bare
backend, one trajectory cut into segments of 8,192 tokens, activation checkpointing by blocks, then AdamW.
"""

import json
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from bench_decode import make_model, mini
from gpu import main
from report import Row
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from segue.conf.schema import Checkpointing
from segue.learner.bare_backend import BareBackend
from segue.learner.batch import TokenBatch
from segue.learner.schedule import SegmentSchedule
from segue.learner.segment_module import SegmentModule, state_layout
from segue.learner.sweeps import SweepResult, TrajectoryArrays, run_sweeps
from segue.model.network import SegueModel, build_model

SEGMENT = 8192
LENGTHS = (8192, 65536)
CHECKED_TOKENS, CHECKED_SEGMENT = 700, 256
GRADIENT_ERROR = 0.1
"""RMS of the difference over the RMS of the truth, of bf16 over 4 layers, of the worst of all parameters."""


def make_batch(num_tokens: int, vocab_size: int, replay_ids: list[np.ndarray] | None = None) -> TokenBatch:
    """One trajectory of random tokens, all of them labels but the first."""
    is_label = np.ones(num_tokens, np.bool_)
    is_label[0] = False
    tokens = np.random.default_rng(0).integers(0, vocab_size, num_tokens)
    return TokenBatch.pack([tokens], [is_label], [np.ones(num_tokens, np.float32)], replay_ids)


def mean_loss(arrays: TrajectoryArrays) -> Tensor:
    """Cross entropy."""
    return -arrays.logprob.mean() + 0.0 * arrays.entropy.sum()


def sweep(model: SegueModel, batch: TokenBatch, segment_tokens: int) -> SweepResult:
    """One step's backpropagation; gradients are in the parameters."""
    module = SegmentModule(model, num_bins=100)
    schedule = SegmentSchedule.build(batch.lengths, 1, segment_tokens, segment_tokens, pair_cost=0.0).ranks[0]
    backend = BareBackend(module, state_layout(model))
    return run_sweeps(backend, schedule, batch, mean_loss, is_exact=True, counts_routes=False, measures_logits=False)


def check_gradients() -> list[str]:
    """Where a gradient is further from fp32 than bf16 explains, and whether both runs of a segment are one."""
    linear = mini().linear_attn_config
    config = mini(num_hidden_layers=4, linear_attn_config=replace(linear, full_attn_layers=[4]))
    model, wide = make_model(config, 1), build_model(config, torch.float32)
    wide.load_state_dict({name: x.float().cpu() for name, x in model.state_dict().items()})
    batch = make_batch(CHECKED_TOKENS, config.vocab_size)
    routes: list[Tensor] = []
    module = SegmentModule(model, num_bins=100)
    with torch.no_grad():
        tokens = torch.from_numpy(batch.token_ids).cuda()
        layout = state_layout(model)
        zero = [torch.zeros(1, *shape, dtype=dtype, device="cuda") for shape, dtype in layout.per_sequence]
        rows = [torch.zeros(0, *shape, dtype=dtype, device="cuda") for shape, dtype in layout.per_token]
        none = torch.zeros(0, dtype=torch.int64, device="cuda")
        out = module(
            tokens, none, none, torch.zeros(0, device="cuda"), torch.tensor([0, len(tokens)]), False,
            torch.zeros(0, 0, 0, dtype=torch.int64, device="cuda"), torch.zeros(1, dtype=torch.int64),
            torch.zeros(2, dtype=torch.int64), *zero, *rows,
        )  # fmt: skip
        routes.append(out[4].cpu())
    batch = make_batch(CHECKED_TOKENS, config.vocab_size, [routes[0].numpy()])
    result = sweep(model, batch, CHECKED_SEGMENT)
    truth = sweep(wide, batch, CHECKED_SEGMENT)
    print(f"loss {result.loss:.5f}, on the CPU {truth.loss:.5f}; gauge {result.gauge}", flush=True)
    failures = [] if result.gauge == 0.0 else [f"two runs of a segment differ by {result.gauge} nats"]
    errors = {}
    truths = dict(wide.named_parameters())
    for name, parameter in model.named_parameters():
        expected = truths[name].grad
        if parameter.grad is None or expected is None:
            # layer 0's residual pair takes no part, on either
            assert parameter.grad is expected, name
            continue
        difference = parameter.grad.float().cpu() - expected
        errors[name] = float(difference.square().mean().sqrt() / expected.square().mean().sqrt().clamp_min(1e-12))
    worst = sorted(errors, key=errors.__getitem__, reverse=True)
    median = errors[worst[len(worst) // 2]]
    print(f"gradients against fp32: median {median:.1e}, worst {[(n, round(errors[n], 4)) for n in worst[:5]]}")
    failures += [
        f"{name}: gradient is wrong by {errors[name]:.3f}" for name in worst if not errors[name] < GRADIENT_ERROR
    ]
    return failures


def time_steps() -> list[Row]:
    """Whole steps."""
    rows = []
    model = make_model(mini(), 0)
    model.checkpointing = Checkpointing.block
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    for num_tokens in LENGTHS:
        batch = make_batch(num_tokens, model.config.vocab_size)

        def step(batch: TokenBatch = batch) -> SweepResult:
            result = sweep(model, batch, SEGMENT)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            torch.cuda.synchronize()
            return result

        result = step()
        torch.cuda.reset_peak_memory_stats()
        times = []
        for _ in range(3):
            start = time.perf_counter()
            result = step()
            times.append(time.perf_counter() - start)
        seconds, memory = min(times), torch.cuda.max_memory_allocated() / 1e9
        title = f"step over {num_tokens} tokens"
        rows += [
            Row(name=title, value=num_tokens / seconds, unit="tokens/s"),
            Row(name=f"{title}, time", value=seconds, unit="s"),
            Row(name=f"{title}, peak memory", value=memory, unit="GB"),
        ]
        print(
            f"{title}: {num_tokens / seconds:.0f} tokens/s, {seconds:.2f} s, {memory:.1f} GB, gauge {result.gauge}",
            flush=True,
        )
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
            step()
        print_kernels(profiler)
    return rows


def print_kernels(profiler: profile) -> None:
    """Device time by kernel."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    kernels: Counter[str] = Counter()
    launches: Counter[str] = Counter()
    for event in events:
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            kernels[event["name"][:100]] += event["dur"]
            launches[event["name"][:100]] += 1
    print(f"    {sum(kernels.values()) / 1e3:.1f} ms on the device in {sum(launches.values())} launches", flush=True)
    for name, duration in kernels.most_common(24):
        print(f"    {duration / 1e3:9.2f} ms {launches[name]:6}  {name}", flush=True)


def measure() -> list[Row]:
    """Check, then time.

    Raises:
        SystemExit: a check failed.
    """
    failures = check_gradients()
    if failures:
        raise SystemExit("no times, since checks failed:\n" + "\n".join(failures))
    return time_steps()


if __name__ == "__main__":
    main("learner_gpu", __doc__, measure)
