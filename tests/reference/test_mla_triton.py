"""Latent attention's GPU kernels, run by Triton's interpreter on a CPU, against plain torch in fp64.

Covered: values and every gradient in fp32 at small sizes, ragged packing, carried rows, several parts, unequal widths,
bits that must not change, decoding over ragged pages in splits, the tables of work, refused sizes. Not covered: bf16
products, full widths, the kernel for many heads that is written for Hopper alone, and what the compiler makes of all;
`benchmarks/bench_mla.py` checks these on a GPU.
"""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tolerances import ERROR_FLOOR, TIMES_NAIVE

from segue.kernels.mla.triton_decode import triton_decode
from segue.kernels.mla.triton_layout import BackwardWork, backward_work, forward_parts
from segue.kernels.mla.triton_op import triton_mla_attention

PROGRAM = Path(__file__).parents[1] / "interpreted_mla.py"
CPU = torch.device("cpu")
# own and prior rows of each sequence
OWN, PRIOR = [40, 0, 1, 70], [9, 3, 130, 0]


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    """What the interpreted kernels gave, in a process of their own."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-P", "-W", "ignore", str(PROGRAM)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("case", ["packed", "carried", "parts", "tiles", "widths"])
def test_kernels_and_their_gradients_are_as_accurate_as_plain_torch(results: dict[str, Any], case: str) -> None:
    for name, (error, error_plain) in results["errors"][case].items():
        assert error <= TIMES_NAIVE * error_plain + ERROR_FLOOR[torch.float32], (name, error, error_plain)


@pytest.mark.parametrize("what", ["two equal calls", "gradient mode", "the future", "neighbours", "strides"])
def test_bits_do_not_depend_on(results: dict[str, Any], what: str) -> None:
    assert results["bits"][what]


@pytest.mark.parametrize("case", ["ragged", "split", "ragged splits", "odd pages", "many heads"])
def test_decoding_is_as_accurate_as_plain_torch_and_reads_no_unwritten_row(results: dict[str, Any], case: str) -> None:
    found = results["decode"][case]
    assert found["error"] <= TIMES_NAIVE * found["plain"] + ERROR_FLOOR[torch.float32]
    assert found["unwritten"] == 0


def bounds_of(lengths: list[int]) -> tuple[int, ...]:
    return 0, *itertools.accumulate(lengths)


def seen(own: list[int], prior: list[int]) -> set[tuple[bool, int, int]]:
    """All pairs of a row and a query that sees it, as (is prior, row, query)."""
    pairs = set()
    for n, (begin, end) in enumerate(itertools.pairwise(bounds_of(own))):
        for query in range(begin, end):
            pairs |= {(True, row, query) for row in range(bounds_of(prior)[n], bounds_of(prior)[n + 1])}
            pairs |= {(False, row, query) for row in range(begin, query + 1)}
    return pairs


@pytest.mark.parametrize("rows_at_once", [1000, 16, 7])
def test_forward_items_cover_each_query_s_rows_once(rows_at_once: int) -> None:
    parts = forward_parts(bounds_of(OWN), bounds_of(PRIOR), rows_at_once=rows_at_once, query_block=16, device=CPU)
    pairs: list[tuple[bool, int, int]] = []
    started: set[int] = set()
    for part in parts:
        assert part.rows.stop - part.rows.start <= rows_at_once
        for first, last, row, row_end, saw_earlier, _ in part.items.tolist():
            queries = range(first, last)
            # a block's first part of all finds nothing to merge with
            assert (first in started) == bool(saw_earlier)
            started.add(first)
            for query in queries:
                end = row_end if part.is_prior else min(row_end, query + 1 - part.rows.start)
                pairs += [(part.is_prior, part.rows.start + i, query) for i in range(row, end)]
    assert len(pairs) == len(set(pairs))
    assert set(pairs) == seen(OWN, PRIOR)


def make_work(rows_at_once: int, tiles_at_once: int) -> BackwardWork:
    return backward_work(
        bounds_of(OWN), bounds_of(PRIOR), rows_at_once=rows_at_once, tiles_at_once=tiles_at_once, row_block=16,
        query_block=16, programs_a_block=1, processors=4, device=CPU,
    )  # fmt: skip


LIMITS = [(1000, 1000), (16, 1000), (64, 6), (1000, 1)]


@pytest.mark.parametrize(("rows_at_once", "tiles_at_once"), LIMITS)
def test_backward_items_cover_each_query_s_rows_once_and_all_rows(rows_at_once: int, tiles_at_once: int) -> None:
    pairs: list[tuple[bool, int, int]] = []
    rows: list[tuple[bool, int]] = []
    for part in make_work(rows_at_once, tiles_at_once).parts:
        start = part.rows.start
        assert part.rows.stop - start <= rows_at_once
        rows += [(part.is_prior, row) for row in range(start, part.rows.stop)]
        covered = set()
        for first, end, query, last_query, *_ in part.row_blocks.tolist():
            covered |= set(range(first, end))
            for row in range(start + first, start + end):
                first_query = query if part.is_prior else max(query, row)
                pairs += [(part.is_prior, row, i) for i in range(first_query, last_query)]
        assert covered == set(range(part.rows.stop - start))
    assert len(pairs) == len(set(pairs)) and set(pairs) == seen(OWN, PRIOR)
    assert sorted(rows) == [*((False, i) for i in range(sum(OWN))), *((True, i) for i in range(sum(PRIOR)))]


@pytest.mark.parametrize(("rows_at_once", "tiles_at_once"), LIMITS)
def test_both_backward_kernels_mean_the_same_tiles(rows_at_once: int, tiles_at_once: int) -> None:
    work = make_work(rows_at_once, tiles_at_once)
    places = {block[0]: i * 16 for i, block in enumerate(work.query_blocks.tolist())}
    for part in work.parts:
        written = {}
        for first, end, query, last_query, tile, place in part.row_blocks.tolist():
            for i, start in enumerate(range(query, last_query, 16)):
                assert tile + i not in written
                written[tile + i] = (first, end, start)
                assert places[start] == place + 16 * i
        assert max(written, default=-1) < part.num_tiles
        for query, _, first, end, tile, stride in part.queries.tolist():
            for i, row in enumerate(range(first, end, 16)):
                block_first, block_end, block_query = written[tile + i * stride]
                assert (block_first, block_query) == (row, query)
                # rows past the block's end belong to another sequence, and would be added
                assert min(end, row + 16) <= block_end


def test_parts_are_cut_where_they_fill_the_processors() -> None:
    # 12 programs a block on 132 processors: of at most 20 blocks 11 fill them all, 20 would leave 24 of 264 idle
    work = backward_work(
        (0, 128), (0, 40 * 128), rows_at_once=20 * 128, tiles_at_once=1 << 30, row_block=128, query_block=128,
        programs_a_block=12, processors=132, device=CPU,
    )  # fmt: skip
    assert [len(part.row_blocks) for part in work.parts] == [1, 11, 11, 18]


@pytest.mark.parametrize(
    ("key", "shared", "value", "latent", "scale", "message"),
    [
        (24, 16, 32, 48, 0.1, r"must be \(16, 32, 64, 128\) wide"),
        (32, 16, 256, 48, 0.1, r"must be \(16, 32, 64, 128\) wide"),
        (32, 16, 32, 50, 0.1, "rows a multiple of 8"),
        (32, 16, 32, 48, -0.1, "the scale positive"),
    ],
)
def test_sizes_without_a_kernel_are_refused(
    key: int, shared: int, value: int, latent: int, scale: float, message: str
) -> None:
    q, rows, weight = (
        torch.zeros(5, 2, key + shared),
        torch.zeros(5, latent + shared),
        torch.zeros(2, key + value, latent),
    )
    with pytest.raises(ValueError, match=message):
        triton_mla_attention(q, rows, rows[:0], weight, (0, 5), (0, 0), scale)


def test_mixed_dtypes_are_refused() -> None:
    q, rows, weight = torch.zeros(5, 2, 48), torch.zeros(5, 64), torch.zeros(2, 64, 48, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="must have one dtype"):
        triton_mla_attention(q, rows, rows[:0], weight, (0, 5), (0, 0), 0.1)


@pytest.mark.parametrize(
    ("page_size", "latent", "dtype", "message"),
    [
        (8, 48, torch.float32, "a multiple of 16 rows"),
        (64, 520, torch.float32, "latents at most 512"),
        (64, 49, torch.float32, "a multiple of 16 bytes"),
        (64, 48, torch.bfloat16, "must have the pages' torch.float32"),
    ],
)
def test_decoding_refuses_sizes_without_a_kernel(page_size: int, latent: int, dtype: torch.dtype, message: str) -> None:
    q, weight = torch.zeros(1, 2, 48, dtype=dtype), torch.zeros(2, 64, latent)
    pages, table = torch.zeros(3, page_size, latent + 16), torch.zeros(1, 1, dtype=torch.int64)
    with pytest.raises(ValueError, match=message):
        triton_decode(q, pages, table, torch.ones(1, dtype=torch.int64), weight, 0.1)
