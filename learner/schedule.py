"""Which segments run together, on which rank, in which order: a pure function of lengths and ranks.

    trajectory      |--- segment ---|--- segment ---|-- last --|        one rank holds all of them
    swept           forward without grad, in order; later rebuilt and backpropagated, in reverse
    last            forward with grad and backward at once, in between

A micro-step is a packed set of segments of different trajectories. It holds last segments or none, so the two kinds
make two lists. Ranks run in step: each list is padded with empty (dummy) micro-steps to the same count on every rank.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush

from segue.conf.schema import SEGMENT_MULTIPLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A slice [start, end) of one trajectory's token stream."""

    trajectory: int
    """Index into the lengths that the schedule was built from."""
    start: int
    end: int

    @property
    def num_tokens(self) -> int:
        """Tokens in the slice."""
        return self.end - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroStep:
    """Segments that one forward runs packed, each of another trajectory; none at all is a dummy."""

    segments: tuple[Segment, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens of all segments."""
        return sum(segment.num_tokens for segment in self.segments)

    @property
    def is_dummy(self) -> bool:
        """True where it only keeps this rank in step with the others."""
        return not self.segments


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSchedule:
    """What one rank runs: `swept` forward, then `last`, then `swept` again in reverse."""

    trajectories: tuple[int, ...]
    """Ascending."""
    swept: tuple[MicroStep, ...]
    last: tuple[MicroStep, ...]

    def renumbered(self) -> "RankSchedule":
        """The same plan for a batch that holds this rank's trajectories only, in their order."""
        numbers = {trajectory: number for number, trajectory in enumerate(self.trajectories)}

        def move(step: MicroStep) -> MicroStep:
            return MicroStep(segments=tuple(replace(s, trajectory=numbers[s.trajectory]) for s in step.segments))

        return RankSchedule(
            trajectories=tuple(numbers.values()),
            swept=tuple(map(move, self.swept)),
            last=tuple(map(move, self.last)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentSchedule:
    """The plan of one optimiser step for every rank.

    Invariants:
        Every token is in exactly one segment; a trajectory stays on one rank, its segments in order, at most one in a
        micro-step; both lists are equally long on all ranks; no micro-step exceeds the budget; rank costs differ by at
        most the dearest trajectory: tests/property/test_schedule.py.
    """

    ranks: tuple[RankSchedule, ...]

    @staticmethod
    def build(
        lengths: Sequence[int],
        num_ranks: int,
        segment_tokens: int,
        micro_step_tokens: int,
        *,
        pair_cost: float,
        sweep_all: bool = False,
    ) -> "SegmentSchedule":
        """Plan the segments of trajectories of these lengths.

        Args:
            lengths: tokens of each trajectory; each at least 1.
            num_ranks: learner ranks; at least 1.
            segment_tokens: tokens of a segment (the last of a trajectory is shorter); a multiple of `SEGMENT_MULTIPLE`.
            micro_step_tokens: most tokens in a micro-step; at least `segment_tokens`.
            pair_cost: what one (query, key) pair of full attention costs, in tokens' worth of everything else.
            sweep_all: sweep last segments too, for a loss that must see all trajectories before any cotangent; `last`
                is then empty.
        Raises:
            ValueError: an argument outside the ranges above.
        """
        if segment_tokens < SEGMENT_MULTIPLE or segment_tokens % SEGMENT_MULTIPLE:
            raise ValueError(f"segment_tokens must be a multiple of {SEGMENT_MULTIPLE}, got {segment_tokens}")
        if micro_step_tokens < segment_tokens:
            raise ValueError(
                f"micro_step_tokens must be at least segment_tokens, {segment_tokens}, got {micro_step_tokens}"
            )
        if num_ranks < 1:
            raise ValueError(f"num_ranks must be at least 1, got {num_ranks}")
        if lengths and min(lengths) < 1:
            raise ValueError(f"lengths must be at least 1, got {min(lengths)}")

        costs = [length + pair_cost * length * (length + 1) / 2 for length in lengths]
        swept_lists, last_lists = [], []
        assignment = _assign(costs, num_ranks)
        for trajectories in assignment:
            chains = {i: _cut(i, lengths[i], segment_tokens) for i in trajectories}
            last = [] if sweep_all else [chain.pop() for chain in chains.values()]
            swept_lists.append(_pack_chains(chains, micro_step_tokens))
            last_lists.append(_pack_free(last, micro_step_tokens))
        num_swept = max(len(steps) for steps in swept_lists)
        num_last = max(len(steps) for steps in last_lists)
        return SegmentSchedule(
            ranks=tuple(
                RankSchedule(trajectories=tuple(trajectories), swept=_pad(swept, num_swept), last=_pad(last, num_last))
                for trajectories, swept, last in zip(assignment, swept_lists, last_lists, strict=True)
            )
        )


def _cut(trajectory: int, length: int, segment_tokens: int) -> list[Segment]:
    return [
        Segment(trajectory=trajectory, start=start, end=min(start + segment_tokens, length))
        for start in range(0, length, segment_tokens)
    ]


def _assign(costs: Sequence[float], num_ranks: int) -> list[list[int]]:
    """Dearest first, each to the rank with the least so far."""
    loads = [(0.0, rank) for rank in range(num_ranks)]
    heapify(loads)
    assignment: list[list[int]] = [[] for _ in range(num_ranks)]
    for trajectory in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        load, rank = heappop(loads)
        assignment[rank].append(trajectory)
        heappush(loads, (load + costs[trajectory], rank))
    return [sorted(trajectories) for trajectories in assignment]


def _pack_chains(chains: dict[int, list[Segment]], budget: int) -> list[list[Segment]]:
    """Pack ordered segments: each micro-step takes the next one of the longest remaining chains that fit.

    Longest remaining first makes the fewest micro-steps where segments are equal (Hu's level algorithm).
    """
    remaining = {trajectory: chain[::-1] for trajectory, chain in chains.items() if chain}
    steps = []
    while remaining:
        step: list[Segment] = []
        room = budget
        for trajectory in sorted(remaining, key=lambda i: (-len(remaining[i]), i)):
            if remaining[trajectory][-1].num_tokens <= room:
                step.append(remaining[trajectory].pop())
                room -= step[-1].num_tokens
        remaining = {trajectory: chain for trajectory, chain in remaining.items() if chain}
        steps.append(sorted(step, key=lambda segment: segment.trajectory))
    return steps


def _pack_free(segments: Sequence[Segment], budget: int) -> list[list[Segment]]:
    """Pack segments without an order between them: longest first, each into the fullest micro-step with room."""
    steps: list[list[Segment]] = []
    room: list[int] = []
    for segment in sorted(segments, key=lambda segment: (-segment.num_tokens, segment.trajectory)):
        fitting = [i for i in range(len(steps)) if room[i] >= segment.num_tokens]
        if fitting:
            best = min(fitting, key=lambda i: room[i])
        else:
            best = len(steps)
            steps.append([])
            room.append(budget)
        steps[best].append(segment)
        room[best] -= segment.num_tokens
    return [sorted(step, key=lambda segment: segment.trajectory) for step in steps]


def _pad(steps: Sequence[Sequence[Segment]], count: int) -> tuple[MicroStep, ...]:
    filled = [MicroStep(segments=tuple(step)) for step in steps]
    return tuple(filled + [MicroStep(segments=())] * (count - len(steps)))
