"""Decoding steps on a GPU: of a few fixed sizes, each captured as a graph when it is first met and replayed after that.

What a step reads lies in tensors that stay where they are; numbers go there, and results come back, in one transfer
each. Rows without a session work on the pool's spare slot and page.

Dimensions: N rows of the graph, n of them sessions, P pages of the table, M layers with routed experts, k experts a
token.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from segue.model.inputs import PackedInputs
from segue.model.layers.linear import join_weights, refresh_derived
from segue.model.logits import wide_logits
from segue.model.network import SegueModel
from segue.model.pool import PooledState, StatePool, StepStates, StepTensors
from segue.model.routing import Routing
from segue.rollout.engine.batch import DecodeBatch
from segue.rollout.engine.stats import EngineStats
from segue.rollout.sampling import draw

_ROWS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128)
"""Sizes of steps; beyond the last, its multiples."""
_MIN_PAGES = 16
"""Least width of a page table; wider ones double, since width is cost."""
_TOKEN, _SLOT, _PLACE, _LENGTH, _NOISE, _TEMPERATURE, _IS_GREEDY = range(7)


class StepResult(NamedTuple):
    """What a step sampled."""

    token_ids: NDArray[np.int32]
    """[n]."""
    logprobs: NDArray[np.float32]
    """[n], nats."""
    expert_ids: NDArray[np.int32]
    """[n, M, k]: of the tokens fed."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Size:
    """Steps of one number of rows and one width of the page table."""

    numbers: Tensor
    """[7, N] int64, on the device; noise and temperature as bits of float64."""
    page_table: Tensor
    """[N, P] int64, on the device."""
    numbers_host: Tensor
    page_table_host: Tensor
    results_host: Tensor
    """[N, 2 + M k] int32: token, bits of the log-probability, experts."""
    graph: torch.cuda.CUDAGraph | None = None
    results: Tensor | None = None
    """Written by the graph."""
    view: PooledState | None = None
    """Whose rows the numbers speak of."""


class DecodeSteps:
    """Runs the steps of a `DecodeBatch` whose pool lies on a GPU.

    A step with top-p or top-k, or of a model that is not in bf16, whose operators wait for the GPU, is not captured:
    it runs launch by launch and is counted in `EngineStats.num_eager_steps`.

    Args:
        model: in bf16 it is captured; its weights are laid side by side (`join_weights`) and may be changed in place,
            with `refresh` afterwards.
        pool: its states, on the model's device.
        num_recorded: M; 0 brings no experts back.
        stats: counted into.
        uses_graphs: False runs every step launch by launch, to compare.
    Invariants:
        Results are those of the engine's steps on a CPU, to rounding: tests/unit/rollout/test_graphs.py (without
        graphs), benchmarks/bench_decode.py (on a GPU).
    """

    def __init__(
        self, model: SegueModel, pool: StatePool, *, num_recorded: int, stats: EngineStats, uses_graphs: bool = True
    ) -> None:
        self._model, self._pool, self._stats = model, pool, stats
        self._num_recorded = num_recorded
        join_weights(model)
        self._is_gpu = pool.device.type == "cuda"
        self._can_capture = uses_graphs and self._is_gpu and model.lm_head.weight.dtype is torch.bfloat16
        self._sizes: dict[tuple[int, int], _Size] = {}
        self._memory: Any = None
        # of the step before: whose rows, how many tokens each has consumed, and in what size
        self._view: PooledState | None = None
        self._consumed = np.zeros(0, np.int64)
        self._size: _Size | None = None

    def refresh(self) -> None:
        """Take up weights that were changed in place."""
        refresh_derived(self._model)

    def run(self, batch: DecodeBatch) -> StepResult:
        """Feed a token of every session and sample the next one; takes the pages that the tokens need.

        Raises:
            PoolExhausted: too few pages are free; nothing has happened then.
        """
        slots = batch.view.slots
        n = len(slots)
        size = self._fill(batch)
        if self._can_capture and not batch.is_truncated:
            self._replay(size)
            assert size.results is not None
            results = size.results
        else:
            self._stats.num_eager_steps += self._is_gpu
            results = self._step(size, batch if batch.is_truncated else None)
        for slot in slots:
            slot.num_tokens += 1
        self._consumed += 1
        size.results_host.copy_(results, non_blocking=True)
        if self._is_gpu:
            torch.cuda.current_stream().synchronize()
        found = size.results_host.numpy()[:n]
        experts = found[:, 2:].reshape(n, self._num_recorded, self._model.config.num_experts_per_token)
        return StepResult(found[:, 0], found[:, 1].view(np.float32), experts)

    def _fill(self, batch: DecodeBatch) -> _Size:
        """Bring the numbers of the batch to a size that holds it."""
        pool, view = self._pool, batch.view
        n, page_size = len(view.slots), pool.page_size
        size, num_taken = self._size, 0
        if self._view is not view:
            self._consumed = np.fromiter((slot.num_tokens for slot in view.slots), np.int64, n)
            size = None
        consumed = self._consumed
        # pages are looked at where one may be needed only: Python over all rows would cost as much as the step
        if size is None or not (consumed % page_size).all():
            num_taken = pool.reserve(view.slots, [1] * n)
            size = self._size_of(_round_rows(n), _round_pages(max(len(slot.pages) for slot in view.slots)))
        self._view, self._size = view, size
        numbers, table = size.numbers_host.numpy(), size.page_table_host.numpy()
        if size.view is not view:
            numbers[_SLOT] = pool.num_slots
            numbers[_PLACE] = pool.num_pages * page_size
            numbers[_LENGTH] = 1
            numbers[_TEMPERATURE] = np.ones(1).view(np.int64)
            numbers[_TOKEN] = numbers[_NOISE] = numbers[_IS_GREEDY] = 0
            numbers[_SLOT, :n] = [slot.index for slot in view.slots]
            numbers[_TEMPERATURE, :n] = batch.temperature.astype(np.float64).view(np.int64)
            numbers[_IS_GREEDY, :n] = batch.is_greedy
        if size.view is not view or num_taken:
            # pages that nothing was written to are finite, and not counted
            table[n:] = pool.num_pages
            known = pool.page_table.numpy()[numbers[_SLOT, :n], : table.shape[1]]
            table[:n, : known.shape[1]] = known
            size.page_table.copy_(size.page_table_host, non_blocking=True)
        size.view = view
        numbers[_TOKEN, :n] = batch.next_tokens
        numbers[_PLACE, :n] = table[np.arange(n), consumed // page_size] * page_size + consumed % page_size
        numbers[_LENGTH, :n] = consumed + 1
        numbers[_NOISE, :n] = batch.noise().view(np.int64)
        size.numbers.copy_(size.numbers_host, non_blocking=True)
        return size

    def _size_of(self, num_rows: int, num_pages: int) -> _Size:
        size = self._sizes.get((num_rows, num_pages))
        if size is None:
            config, device = self._model.config, self._pool.device

            def make(*shape: int, dtype: torch.dtype = torch.int64, host: bool = False) -> Tensor:
                # made outside inference mode, in which alone they could be written otherwise
                with torch.inference_mode(False):
                    if host:
                        return torch.zeros(shape, dtype=dtype, pin_memory=self._is_gpu)
                    return torch.zeros(shape, dtype=dtype, device=device)

            width = 2 + self._num_recorded * config.num_experts_per_token
            size = self._sizes[num_rows, num_pages] = _Size(
                numbers=make(7, num_rows),
                page_table=make(num_rows, num_pages),
                numbers_host=make(7, num_rows, host=True),
                page_table_host=make(num_rows, num_pages, host=True),
                results_host=make(num_rows, width, dtype=torch.int32, host=True),
            )
        return size

    def _replay(self, size: _Size) -> None:
        if size.graph is None:
            self._capture(size)
        assert size.graph is not None
        size.graph.replay()

    def _capture(self, size: _Size) -> None:
        """Capture a step; the states stay as they are, since what runs meanwhile has no session's rows."""
        with self._without_sessions(size):
            stream = torch.cuda.Stream(self._pool.device)
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                # twice: kernels are compiled and chosen in the first
                for _ in range(2):
                    self._step(size, None)
            torch.cuda.current_stream().wait_stream(stream)
            if self._memory is None:
                self._memory = torch.cuda.graph_pool_handle()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._memory, stream=stream, capture_error_mode="thread_local"):
                size.results = self._step(size, None)
            size.graph = graph
        self._stats.num_graphs += 1

    @contextmanager
    def _without_sessions(self, size: _Size) -> Iterator[None]:
        """The device's numbers with nobody in them, then again those of the host."""
        pool = self._pool
        size.numbers.zero_()
        size.numbers[_SLOT] = pool.num_slots
        size.numbers[_PLACE] = pool.num_pages * pool.page_size
        size.numbers[_LENGTH] = 1
        size.numbers[_TEMPERATURE].view(torch.float64).fill_(1.0)
        size.page_table.fill_(pool.num_pages)
        yield
        size.numbers.copy_(size.numbers_host)
        size.page_table.copy_(size.page_table_host)

    def _step(self, size: _Size, truncated: DecodeBatch | None) -> Tensor:
        """Launch a step; results as `_Size.results_host` has them.

        Args:
            size: what it reads.
            truncated: who samples, where some exclude unlikely tokens.
        """
        model, numbers = self._model, size.numbers
        tensors = StepTensors(
            index=numbers[_SLOT], places=numbers[_PLACE], lengths=numbers[_LENGTH], page_table=size.page_table
        )
        offsets = torch.arange(numbers.shape[1] + 1)
        routing = Routing()
        hidden, _ = model(
            PackedInputs(token_ids=numbers[_TOKEN], offsets=offsets),
            StepStates(self._pool, tensors, offsets),
            routing,
        )
        if truncated is None:
            temperature = numbers[_TEMPERATURE].view(torch.float64)
            logits = wide_logits(hidden, model.lm_head.weight, temperature)
            ids, logprobs = draw(logits, numbers[_NOISE].view(torch.float64), numbers[_IS_GREEDY].bool())
        else:
            n = len(truncated)
            ids, logprobs = numbers[_TOKEN].clone(), hidden.new_zeros(len(hidden), dtype=torch.float32)
            ids[:n], logprobs[:n] = truncated.sample(hidden[:n], model.lm_head.weight)
        columns = [ids.int().unsqueeze(1), logprobs.float().unsqueeze(1).view(torch.int32)]
        if self._num_recorded:
            columns.append(routing.expert_ids.flatten(1).int())
        return torch.cat(columns, 1)


def _round_rows(num_rows: int) -> int:
    """Rows of the smallest step that holds so many."""
    last = _ROWS[-1]
    return next((rows for rows in _ROWS if rows >= num_rows), -(-num_rows // last) * last)


def _round_pages(num_pages: int) -> int:
    """Width of the narrowest table that holds so many."""
    return max(_MIN_PAGES, 1 << (num_pages - 1).bit_length())
