"""Which rank orthogonalises which matrices under ZeRO, and what travels for it.

A matrix that lies whole on a rank is its own. One that a border of ZeRO's cuts is dealt to the least loaded of the
ranks that hold a part of it: they send it their parts and get back what it made of them, a bucket at a time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
from torch import Tensor

_BUCKET_NUMEL = 2**26
"""Elements that a rank of average share sends at once, or makes orthogonal at once: 256 MiB in fp32."""

Blocks = tuple[int, int, int]
"""(N, R, C): a parameter's rows in order, cut into N matrices, each orthogonalised by itself."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shard:
    """What one of the optimiser's tensors holds of a parameter; both are meant flat."""

    name: str
    """Of the parameter."""
    offset: int
    """Where in the optimiser's tensor this rank's part begins."""
    borders: np.ndarray
    """[ranks + 1] int64, rising from 0 to the parameter's size: rank n holds elements [borders[n], borders[n + 1])."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Elements of a parameter that this rank updates."""

    name: str
    held: slice
    """In the optimiser's tensor."""
    elements: slice
    """In the parameter."""


@dataclass(slots=True, kw_only=True)
class Bucket:
    """Cut matrices that are gathered at once."""

    parts: list[Part]
    """What this rank holds of them, by the rank that it sends them to."""
    num_sent: list[int]
    """Elements for each rank."""
    places: list[slice]
    """Where in the matrices that this rank makes whole what arrives belongs, by the rank that it comes from."""
    num_received: list[int]
    """Elements from each rank."""
    matrices: list[Blocks]
    """Those that it makes whole, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a rank does for one of the optimiser's tensors."""

    whole: list[Part]
    """Whole matrices, of one parameter each."""
    buckets: list[Bucket]
    """As many on every rank."""


def plan_updates(
    shards: Mapping[Tensor, Sequence[Shard]], blocks: Mapping[str, Blocks], rank: int, bucket_numel: int = _BUCKET_NUMEL
) -> dict[Tensor, Plan]:
    """A rank's plans; the ranks' fit together.

    Args:
        shards: of each of the optimiser's tensors, in the same order on all ranks.
        blocks: of every parameter.
        rank: whose plans.
        bucket_numel: elements of a bucket for each rank; a larger matrix is a bucket of its own.
    """
    loads = sum(_own_loads(shard, blocks[shard.name]) for held in shards.values() for shard in held)
    dealer = _Dealer(blocks, rank, bucket_numel, np.atleast_1d(loads).tolist())
    return {
        tensor: Plan(
            whole=[part for shard in held for part in _whole_parts(shard, blocks[shard.name], rank, bucket_numel)],
            buckets=dealer.buckets(held),
        )
        for tensor, held in shards.items()
    }


def numel(place: slice) -> int:
    """Elements of a place."""
    return int(place.stop - place.start)


@dataclass(slots=True)
class _Draft:
    parts: list[tuple[int, Part]] = field(default_factory=list)
    """With the rank that it goes to."""
    places: list[tuple[int, slice]] = field(default_factory=list)
    """With the rank that it comes from."""
    shapes: list[tuple[int, int]] = field(default_factory=list)
    numel: int = 0
    """Of the matrices of all ranks."""
    own_numel: int = 0
    """Of those of `shapes`."""

    def finished(self, num_ranks: int) -> Bucket:
        num_sent, num_received = [0] * num_ranks, [0] * num_ranks
        for owner, part in self.parts:
            num_sent[owner] += numel(part.held)
        for holder, place in self.places:
            num_received[holder] += numel(place)
        return Bucket(
            # both sides in the order of the matrices, since sorting is stable
            parts=[part for _, part in sorted(self.parts, key=lambda entry: entry[0])],
            num_sent=num_sent,
            places=[place for _, place in sorted(self.places, key=lambda entry: entry[0])],
            num_received=num_received,
            matrices=[(len(list(same)), *shape) for shape, same in groupby(self.shapes)],
        )


class _Dealer:
    """Deals cut matrices out, and keeps the bill of what every rank has to do."""

    def __init__(self, blocks: Mapping[str, Blocks], rank: int, bucket_numel: int, loads: list[float]) -> None:
        self._blocks, self._rank, self._bucket_numel, self._loads = blocks, rank, bucket_numel, loads

    def buckets(self, shards: Sequence[Shard]) -> list[Bucket]:
        # the largest first: they then go to a rank each, and the small ones level what they left uneven
        ordered = sorted(shards, key=lambda shard: -_work(self._blocks[shard.name]))
        drafts: list[_Draft] = []
        for shard in ordered:
            _, num_rows, num_columns = self._blocks[shard.name]
            size = num_rows * num_columns
            for block in _cut_blocks(shard, size).tolist():
                if not drafts or drafts[-1].numel + size > self._bucket_numel * len(self._loads):
                    drafts.append(_Draft())
                self._deal(shard, block, drafts[-1])
        return [draft.finished(len(self._loads)) for draft in drafts]

    def _deal(self, shard: Shard, block: int, draft: _Draft) -> None:
        blocks = self._blocks[shard.name]
        _, num_rows, num_columns = blocks
        size, borders, rank = num_rows * num_columns, shard.borders, self._rank
        first, last = block * size, (block + 1) * size
        holders = range(int(borders.searchsorted(first, "right")) - 1, int(borders.searchsorted(last, "left")))
        owner = min(holders, key=self._loads.__getitem__)
        self._loads[owner] += _work(blocks)
        draft.numel += size
        if rank in holders:
            start, stop = max(first, int(borders[rank])), min(last, int(borders[rank + 1]))
            draft.parts.append((owner, _part(shard, rank, start, stop)))
        if rank == owner:
            shift = draft.own_numel - first
            draft.own_numel += size
            draft.shapes.append((num_rows, num_columns))
            for holder in holders:
                start, stop = max(first, int(borders[holder])), min(last, int(borders[holder + 1]))
                draft.places.append((holder, slice(start + shift, stop + shift)))


def _work(blocks: Blocks) -> int:
    """What a step of the iteration multiplies for one of the matrices."""
    _, *sides = blocks
    short, long = sorted(sides)
    return short**2 * (2 * long + short)


def _whole_blocks(shard: Shard, size: int) -> tuple[np.ndarray, np.ndarray]:
    """The first of each rank's whole blocks, and how many it has."""
    first = -(-shard.borders[:-1] // size)
    return first, np.maximum(shard.borders[1:] // size - first, 0)


def _own_loads(shard: Shard, blocks: Blocks) -> np.ndarray:
    _, num_rows, num_columns = blocks
    return _whole_blocks(shard, num_rows * num_columns)[1] * float(_work(blocks))


def _whole_parts(shard: Shard, blocks: Blocks, rank: int, most_numel: int) -> list[Part]:
    _, num_rows, num_columns = blocks
    size = num_rows * num_columns
    first, count = (int(of_ranks[rank]) for of_ranks in _whole_blocks(shard, size))
    at_once, last = max(1, most_numel // size), first + count
    return [
        _part(shard, rank, block * size, min(block + at_once, last) * size) for block in range(first, last, at_once)
    ]


def _cut_blocks(shard: Shard, size: int) -> np.ndarray:
    return np.unique(shard.borders[shard.borders % size != 0] // size)


def _part(shard: Shard, rank: int, start: int, stop: int) -> Part:
    shift = shard.offset - int(shard.borders[rank])
    return Part(name=shard.name, held=slice(start + shift, stop + shift), elements=slice(start, stop))
