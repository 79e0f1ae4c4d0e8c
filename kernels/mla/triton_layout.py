"""Work of the GPU kernels over packed, ragged sequences: parts of rows that are expanded together, and their items.

Rows are taken in parts, so that nothing expanded has the trajectory's length. An item is what one program of each head
does; its rows count from the part's first, its queries from the batch's first.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

Bounds = tuple[int, ...]
"""Borders of packed sequences, from 0."""
INTERPRETED_PROCESSORS = 8
"""Of the GPU that Triton's interpreter plays."""
_Item = tuple[int, int, int, int, int, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardPart:
    """Some rows and the queries that see any of them."""

    is_prior: bool
    rows: slice
    """Among the prior or the own rows."""
    items: Tensor
    """[items, 6] int32, most rows first: queries from, to; rows from, to; 1 if the queries saw earlier parts; 0."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BackwardWork:
    """What the backward pass does."""

    query_blocks: Tensor
    """[blocks, 2] int32: queries from, to. All blocks have as many places, so that a ragged one ends with idle ones."""
    parts: list["BackwardPart"]
    """They cover all rows, also those that no query sees."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BackwardPart:
    """Some rows and the queries that see any of them.

    Each pair of a block of rows and a block of queries has a tile of score gradients.
    """

    is_prior: bool
    rows: slice
    num_tiles: int
    """Of a head."""
    row_blocks: Tensor
    """[items, 6] int32: rows from, to; queries from, to, of which some see rows; tile and place of the first one."""
    queries: Tensor
    """[items, 6] int32, most rows first: queries from, to; rows from, to; the first row's tile; tiles to the next."""


class _Block(NamedTuple):
    """A block of rows of one sequence."""

    is_prior: bool
    sequence: int
    start: int
    end: int
    first_query: int
    """Start of the first block of queries with one that sees a row."""
    last_query: int
    first_place: int
    """Of the first query."""


@lru_cache(maxsize=8)
def forward_parts(
    own: Bounds, prior: Bounds, *, rows_at_once: int, query_block: int, device: torch.device
) -> list[ForwardPart]:
    """Parts in the order in which they are merged: the own rows, of which every query sees one, then the prior ones."""
    cuts: list[tuple[bool, slice]] = []
    items: list[list[_Item]] = []
    for is_prior, bounds in ((False, own), (True, prior)):
        for start in range(0, bounds[-1], rows_at_once):
            rows = slice(start, min(start + rows_at_once, bounds[-1]))
            found = sorted(_forward_items(own, bounds, is_prior, rows, query_block), reverse=True)
            if found:
                cuts.append((is_prior, rows))
                items.append([item for _, item in found])
    tables = _to_device(items, device)
    return [
        ForwardPart(is_prior=is_prior, rows=rows, items=table)
        for (is_prior, rows), table in zip(cuts, tables, strict=True)
    ]


def _forward_items(
    own: Bounds, bounds: Bounds, is_prior: bool, rows: slice, query_block: int
) -> Iterator[tuple[int, _Item]]:
    """Items with the number of rows that they see."""
    for (begin, end), (row_begin, row_end) in zip(pairwise(own), pairwise(bounds), strict=True):
        start, stop = max(row_begin, rows.start), min(row_end, rows.stop)
        if start >= stop:
            continue
        saw_earlier = is_prior or row_begin < start
        for query in range(begin, end, query_block):
            query_end = min(query + query_block, end)
            num_seen = (stop if is_prior else min(stop, query_end)) - start
            if num_seen > 0:
                yield num_seen, (query, query_end, start - rows.start, stop - rows.start, int(saw_earlier), 0)


@lru_cache(maxsize=8)
def backward_work(
    own: Bounds,
    prior: Bounds,
    *,
    rows_at_once: int,
    tiles_at_once: int,
    row_block: int,
    query_block: int,
    programs_a_block: int,
    processors: int,
    device: torch.device,
) -> BackwardWork:
    """What the backward pass does.

    Args:
        own, prior: borders of the own rows, one a query, and of the prior rows.
        rows_at_once: most rows of a part, at least `row_block`.
        tiles_at_once: most tiles of a part, unless a single block of rows has more.
        row_block: rows of a block.
        query_block: queries of a block.
        programs_a_block: programs that a block of rows is given to.
        processors: on which programs run at once; parts are cut where they fill them best.
        device: where the items lie.
    """
    query_blocks = [
        (query, min(query + query_block, end))
        for begin, end in pairwise(own)
        for query in range(begin, end, query_block)
    ]
    cuts: list[list[_Block]] = []
    for is_prior in (False, True):
        blocks = list(_blocks(own, prior if is_prior else own, is_prior, row_block, query_block))
        start = 0
        while start < len(blocks):
            count = _most_blocks(blocks, start, rows_at_once, tiles_at_once, query_block)
            if start + count < len(blocks):
                count = _best_count(count, programs_a_block, processors)
            cuts.append(blocks[start : start + count])
            start += count
    items = [_backward_items(part, query_block) for part in cuts]
    tables = iter(_to_device([table for _, *lists in items for table in lists], device))
    parts = [
        BackwardPart(
            is_prior=part[0].is_prior,
            rows=slice(part[0].start, part[-1].end),
            num_tiles=num_tiles,
            row_blocks=next(tables),
            queries=next(tables),
        )
        for part, (num_tiles, *_) in zip(cuts, items, strict=True)
    ]
    (table,) = _to_device([query_blocks], device)
    return BackwardWork(query_blocks=table, parts=parts)


def _blocks(own: Bounds, bounds: Bounds, is_prior: bool, row_block: int, query_block: int) -> Iterator[_Block]:
    place = 0
    for sequence, ((begin, end), (row_begin, row_end)) in enumerate(zip(pairwise(own), pairwise(bounds), strict=True)):
        for start in range(row_begin, row_end, row_block):
            hidden = 0 if is_prior else (start - begin) // query_block * query_block
            stop = min(start + row_block, row_end)
            yield _Block(is_prior, sequence, start, stop, begin + hidden, end, place + hidden)
        place += -(-(end - begin) // query_block) * query_block


def _most_blocks(blocks: list[_Block], start: int, rows_at_once: int, tiles_at_once: int, query_block: int) -> int:
    """How many blocks from `start` on make a part."""
    num_tiles, stride = 0, 0
    for i in range(start, len(blocks)):
        if i == start or blocks[i].sequence != blocks[i - 1].sequence:
            stride = _num_query_blocks(blocks[i], query_block)
        num_tiles += stride
        if i > start and (num_tiles > tiles_at_once or blocks[i].end - blocks[start].start > rows_at_once):
            return i - start
    return len(blocks) - start


def _num_query_blocks(block: _Block, query_block: int) -> int:
    return -(-(block.last_query - block.first_query) // query_block)


def _best_count(count: int, programs_a_block: int, processors: int) -> int:
    """How many of `count` blocks, at least half, fill the processors best."""

    def fill(blocks: int) -> float:
        programs = blocks * programs_a_block
        return programs / (-(-programs // processors) * processors)

    return max(range(count, (count - 1) // 2, -1), key=fill)


def _backward_items(part: list[_Block], query_block: int) -> tuple[int, list[_Item], list[_Item]]:
    """Number of tiles; items of blocks of rows, and of queries."""
    row_blocks, queries = [], []
    num_tiles, part_start = 0, part[0].start
    for _, found in groupby(part, key=lambda block: block.sequence):
        blocks = list(found)
        first, last_row = blocks[0], blocks[-1].end
        stride = _num_query_blocks(first, query_block)
        for i, block in enumerate(blocks):
            tile = num_tiles + i * stride + (block.first_query - first.first_query) // query_block
            rows = (block.start - part_start, block.end - part_start)
            row_blocks.append((*rows, block.first_query, block.last_query, tile, block.first_place))
        for i, query in enumerate(range(first.first_query, first.last_query, query_block)):
            query_end = min(query + query_block, first.last_query)
            end = last_row if first.is_prior else min(last_row, query_end)
            queries.append((query, query_end, first.start - part_start, end - part_start, num_tiles + i, stride))
        num_tiles += len(blocks) * stride
    queries.sort(key=lambda item: item[2] - item[3])
    return num_tiles, row_blocks, queries


def _to_device(tables: Sequence[Sequence[tuple[int, ...]]], device: torch.device) -> tuple[Tensor, ...]:
    """Each as an int32 table; one copy for all."""
    sizes = [len(table) for table in tables]
    rows = [row for table in tables for row in table]
    # outside inference mode, so that whoever asks first leaves tables that autograd may keep
    with torch.inference_mode(False):
        joint = (
            torch.tensor(rows, dtype=torch.int32).view(len(rows), -1) if rows else torch.zeros(0, 1, dtype=torch.int32)
        )
        return joint.to(device).split(sizes)


@lru_cache
def num_processors(device: torch.device) -> int:
    """On which programs run at once."""
    if device.type != "cuda":
        return INTERPRETED_PROCESSORS
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count
