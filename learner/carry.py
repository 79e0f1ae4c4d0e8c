"""States on their way through the segments of many trajectories, and gradients on their way back.

A micro-step packs segments of different trajectories, another set each time, so states are kept per trajectory and
gathered per micro-step. With a single trajectory gathering copies nothing: what grows with it are its rows and the
gradients of those, each held once.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from segue.learner.schedule import Segment
from segue.learner.segment_module import StateLayout


class CarriedStates:
    """Where each trajectory of a rank stands while its swept segments run forward, then backward.

    Forward, a segment's state is gathered and the one after it stored; backward, gradients arrive from the segments
    after and are handed to those before. No segments at all (a dummy micro-step) stand for one sequence without a past.

    Invariants:
        Segmented gradients equal whole ones: tests/reference/test_sweeps_exactness.py. Nothing but rows and their
        gradients has a trajectory-sized axis: tests/reference/test_memory_shape.py.
    """

    def __init__(self, layout: StateLayout, swept_tokens: Mapping[int, int]) -> None:
        """`swept_tokens`: tokens in the swept segments of each trajectory that has some."""
        self._layout = layout
        self._row_starts: dict[int, int] = {}
        num_rows = 0
        for trajectory, count in swept_tokens.items():
            self._row_starts[trajectory] = num_rows
            num_rows += count
        self._rows = [
            torch.empty(num_rows, *shape, dtype=dtype, device=layout.device) for shape, dtype in layout.per_token
        ]
        self._row_grads: list[Tensor] = []
        self._reached: dict[int, list[Tensor]] = {}
        self._arrived: dict[int, list[Tensor]] = {}

    def gather(self, segments: Sequence[Segment]) -> list[Tensor]:
        """Per-sequence tensors before these segments, whose trajectories all stand there; each is gathered once."""
        return self._stack([self._reached.pop(segment.trajectory, None) for segment in segments] or [None])

    def flat(self, segments: Sequence[Segment], per_sequence: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Flat state before these segments: its per-sequence tensors as given, and the rows of earlier segments."""
        # on the CPU, where operators read them without waiting for a GPU
        starts = torch.tensor([segment.start for segment in segments] or [0])
        borders = torch.cat([starts.new_zeros(1), starts.cumsum(0)])
        spans = [self._rows_before(segment) for segment in segments] or [slice(0)]
        return (starts, borders, *per_sequence, *(_take(rows, spans) for rows in self._rows))

    def leaves(self, state: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """A flat state whose tensors take gradients; rows in at least float32, so that their gradients come unrounded.

        Also where no sequence has a past: ZeRO-3 wants the same backward hooks to fire on every rank.
        """
        per_sequence, per_token = self._split(state)
        wide = (rows.to(torch.promote_types(rows.dtype, torch.float32)) for rows in per_token)
        return (*state[:2], *(tensor.detach().requires_grad_() for tensor in (*per_sequence, *wide)))

    def store(self, segments: Sequence[Segment], state: Sequence[Tensor]) -> None:
        """Take the flat state that a forward returned: the trajectories now stand after these segments."""
        per_sequence, per_token = self._split(state)
        for n, segment in enumerate(segments):
            self._reached[segment.trajectory] = [tensor[n] for tensor in per_sequence]
        position = 0
        for segment in segments:
            own = slice(position, position + segment.num_tokens)
            for stored, rows in zip(self._rows, per_token, strict=True):
                stored[self._rows_of(segment)] = rows[own]
            position = own.stop

    def arrived(self, segments: Sequence[Segment], state: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Each tensor of the flat state after these segments with the gradient that later segments left for it.

        A dummy's gradients are zero, not absent: ZeRO-3 wants the same backward hooks to fire on every rank.
        """
        per_sequence, per_token = self._split(state)
        if not segments:
            return [(tensor, torch.zeros_like(tensor)) for tensor in (*per_sequence, *per_token)]
        grads = self._stack([self._arrived.pop(segment.trajectory, None) for segment in segments])
        spans = [self._rows_of(segment) for segment in segments]
        row_grads = [_take(sums, spans) for sums in self._row_sums()]
        return [*zip(per_sequence, grads, strict=True), *zip(per_token, row_grads, strict=True)]

    def hand_back(self, segments: Sequence[Segment], state: Sequence[Tensor]) -> None:
        """Take the gradients of the flat state before these segments, and release them there."""
        per_sequence, per_token = self._split(state)
        for n, segment in enumerate(segments):
            if segment.start:
                self._arrived[segment.trajectory] = [_grad(tensor)[n] for tensor in per_sequence]
        for tensor, sums in zip(per_token, self._row_sums(), strict=True):
            position = 0
            for segment in segments:
                sums[self._rows_before(segment)] += _grad(tensor)[position : position + segment.start]
                position += segment.start
        for tensor in (*per_sequence, *per_token):
            tensor.grad = None

    def _row_sums(self) -> list[Tensor]:
        """Gradients of all stored rows so far, in at least float32."""
        if not self._row_grads:
            self._row_grads = [
                torch.zeros_like(rows, dtype=torch.promote_types(rows.dtype, torch.float32)) for rows in self._rows
            ]
        return self._row_grads

    def _split(self, state: Sequence[Tensor]) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        # a flat state begins with the consumed tokens and the row borders
        num = 2 + len(self._layout.per_sequence)
        return state[2:num], state[num:]

    def _stack(self, states: Sequence[list[Tensor] | None]) -> list[Tensor]:
        """Per-sequence tensors of several trajectories, zeros for None, as one [N, ...] each."""
        if len(states) == 1 and states[0] is not None:
            return [tensor.unsqueeze(0) for tensor in states[0]]
        stacked = []
        for place, (shape, dtype) in enumerate(self._layout.per_sequence):
            zero = torch.zeros(shape, dtype=dtype, device=self._layout.device)
            stacked.append(torch.stack([zero if state is None else state[place] for state in states]))
        return stacked

    def _rows_before(self, segment: Segment) -> slice:
        start = self._row_starts.get(segment.trajectory, 0)
        return slice(start, start + segment.start)

    def _rows_of(self, segment: Segment) -> slice:
        start = self._row_starts[segment.trajectory] + segment.start
        return slice(start, start + segment.num_tokens)


def _take(tensor: Tensor, spans: Sequence[slice]) -> Tensor:
    return tensor[spans[0]] if len(spans) == 1 else torch.cat([tensor[span] for span in spans])


def _grad(tensor: Tensor) -> Tensor:
    assert tensor.grad is not None, tuple(tensor.shape)
    return tensor.grad
