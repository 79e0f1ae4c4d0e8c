"""The sessions that decode together: one token each a step, with bookkeeping in arrays over the rows.

Dimensions: N sessions (rows, kept dense), D model width, Y vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from segue.model.inputs import PackedInputs
from segue.model.logits import wide_logits
from segue.model.pool import PooledState, StatePool
from segue.rollout.engine.base import EngineFailure
from segue.rollout.engine.request import Request
from segue.rollout.engine.tape import Tape
from segue.rollout.noise import uniform
from segue.rollout.sampling import sample, take_best, truncate
from segue.rollout.trajectory import PolicyVersion

_TAPE_STEPS = 64

_ROW = np.dtype(
    [
        ("lane", np.int64),
        ("tape_start", np.int64),
        ("key", np.uint64),
        ("next_token", np.int64),
        ("position", np.int64),
        ("num_sampled", np.int64),
        ("max_new_tokens", np.int64),
        ("stop_set", np.int64),
        ("temperature", np.float32),
        ("is_greedy", np.bool_),
        ("is_truncated", np.bool_),
    ]
)
"""A row: its lane and first step on the tape, noise key, token to feed, index in the stream of the token to sample."""


@dataclass(slots=True, kw_only=True)
class _Draw:
    """How the present rows sample; changes only when a session joins or leaves."""

    temperature_N: Tensor
    is_greedy_N: Tensor
    any_greedy: bool
    all_greedy: bool
    truncated: dict[tuple[float, int | None], list[int]] = field(default_factory=dict)
    """(top_p, top_k) to the rows that ask for it."""


class DecodeBatch:
    """Rows of sessions that wait for their next token.

    Args:
        pool: holds the sessions' states.
        max_rows: most sessions that decode together.
        vocab_size: Y.
        expert_shape: (layers with routed experts, experts a token).
    """

    def __init__(self, pool: StatePool, *, max_rows: int, vocab_size: int, expert_shape: tuple[int, int]) -> None:
        self.requests: list[Request] = []
        self.view: PooledState = pool.view(())
        """The rows' states, for the model's forward."""
        self._pool = pool
        self._device = pool.device
        self._rows = np.zeros(0, _ROW)
        self._tape = Tape(num_lanes=max_rows, num_steps=_TAPE_STEPS, expert_shape=expert_shape)
        self._free_lanes = list(range(max_rows))
        self._offsets = torch.arange(max_rows + 1, device=self._device)
        self._vocab_size = vocab_size
        # row s of the table marks the stop tokens of the s-th distinct set seen
        self._stop_sets: dict[tuple[int, ...], int] = {}
        self._is_stop = np.zeros((0, vocab_size), np.bool_)
        self._draw = self._compose_draw()

    def __len__(self) -> int:
        return len(self.requests)

    @property
    def next_tokens(self) -> NDArray[np.int64]:
        """[N]: the token that each row feeds next."""
        return self._rows["next_token"]

    @property
    def temperature(self) -> NDArray[np.float32]:
        """[N]."""
        return self._rows["temperature"]

    @property
    def is_greedy(self) -> NDArray[np.bool_]:
        """[N]."""
        return self._rows["is_greedy"]

    @property
    def is_truncated(self) -> bool:
        """True where a row excludes unlikely tokens."""
        return bool(self._draw.truncated)

    def noise(self) -> NDArray[np.float64]:
        """[N]: the number in [0, 1) that decides each row's next token."""
        return uniform(self._rows["key"], self._rows["position"])

    def inputs(self) -> PackedInputs:
        """The token that each row feeds next."""
        tokens = torch.from_numpy(self._rows["next_token"].copy())
        return PackedInputs(token_ids=tokens.to(self._device), offsets=self._offsets[: len(self) + 1])

    def add(self, requests: Sequence[Request]) -> None:
        """Let sessions join whose state has consumed all of their stream but its last token."""
        if not requests:
            return
        joining = np.zeros(len(requests), _ROW)
        for row, request in zip(joining, requests, strict=True):
            assert request.sampling is not None and request.num_unfed == 0, request
            row["lane"] = self._free_lanes.pop()
            row["tape_start"] = self._tape.cursor
            row["key"] = request.key
            row["next_token"] = request.stream[-1]
            row["position"] = len(request.stream)
            row["num_sampled"] = request.num_sampled
            row["max_new_tokens"] = request.sampling.max_new_tokens
            row["stop_set"] = self._stop_set(request.sampling.stop_ids)
            row["temperature"] = request.sampling.temperature
            row["is_greedy"] = request.sampling.greedy
            row["is_truncated"] = request.sampling.is_truncated
        self._rows = np.concatenate([self._rows, joining])
        self.requests.extend(requests)
        self._recompose()

    def remove(self, rows: Sequence[int]) -> list[Request]:
        """Let rows leave; their requests hold everything sampled for them."""
        leaving = []
        for row in rows:
            request = self.requests[row]
            self._read_tape(row)
            request.num_sampled = int(self._rows["num_sampled"][row])
            self._free_lanes.append(int(self._rows["lane"][row]))
            leaving.append(request)
        stays = np.ones(len(self), np.bool_)
        stays[list(rows)] = False
        self._rows = self._rows[stays]
        self.requests = [request for request, stay in zip(self.requests, stays, strict=True) if stay]
        self._recompose()
        return leaving

    def sample(self, hidden_ND: Tensor, head_YD: Tensor) -> tuple[Tensor, Tensor]:
        """The rows' next tokens [N] int64 and their log-probabilities [N], at least float32."""
        draw = self._draw
        logits_NY = wide_logits(hidden_ND, head_YD, draw.temperature_N)
        for (top_p, top_k), rows in draw.truncated.items():
            logits_NY[rows] = truncate(logits_NY[rows], top_p=top_p, top_k=top_k)
        if draw.all_greedy:
            return take_best(logits_NY)
        noise_N = torch.from_numpy(self.noise()).to(self._device)
        ids_N, logprobs_N = sample(logits_NY, noise_N)
        if not draw.any_greedy:
            return ids_N, logprobs_N
        best_N, best_logprobs_N = take_best(logits_NY)
        greedy_N = draw.is_greedy_N
        return torch.where(greedy_N, best_N, ids_N), torch.where(greedy_N, best_logprobs_N, logprobs_N)

    def record(
        self,
        ids_N: NDArray[Any],
        logprobs_N: NDArray[Any],
        expert_ids_NMk: NDArray[Any],
        version: PolicyVersion,
    ) -> list[int]:
        """Write one step down.

        Returns:
            Rows that are finished.
        Raises:
            EngineFailure: a log-probability is not finite, so neither are the weights' outputs.
        """
        if not np.isfinite(logprobs_N).all():
            row = int(np.flatnonzero(~np.isfinite(logprobs_N))[0])
            raise EngineFailure(f"log-probability of {self.requests[row].state.session.id} is {logprobs_N[row]}")
        rows = self._rows
        self._tape.write(rows["lane"], ids_N, logprobs_N, expert_ids_NMk, version)
        rows["next_token"] = ids_N
        rows["position"] += 1
        rows["num_sampled"] += 1
        finished = self._is_stop[rows["stop_set"], ids_N] | (rows["num_sampled"] == rows["max_new_tokens"])
        if self._tape.is_full:
            self._turn_tape()
        return [int(row) for row in np.flatnonzero(finished)] if finished.any() else []

    def _turn_tape(self) -> None:
        for row in range(len(self)):
            self._read_tape(row)
        self._tape.rewind()
        self._rows["tape_start"] = 0

    def _read_tape(self, row: int) -> None:
        start = int(self._rows["tape_start"][row])
        if start < self._tape.cursor:
            self.requests[row].take(self._tape.read(int(self._rows["lane"][row]), start))

    def _stop_set(self, stop_ids: tuple[int, ...]) -> int:
        if stop_ids not in self._stop_sets:
            self._stop_sets[stop_ids] = len(self._is_stop)
            marks = np.zeros((1, self._vocab_size), np.bool_)
            marks[0, list(stop_ids)] = True
            self._is_stop = np.concatenate([self._is_stop, marks])
        return self._stop_sets[stop_ids]

    def _recompose(self) -> None:
        slots = [request.state.slot for request in self.requests]
        self.view = self._pool.view([slot for slot in slots if slot is not None])
        self._draw = self._compose_draw()

    def _compose_draw(self) -> _Draw:
        rows = self._rows
        draw = _Draw(
            temperature_N=torch.from_numpy(rows["temperature"].copy()).to(self._device),
            is_greedy_N=torch.from_numpy(rows["is_greedy"].copy()).to(self._device),
            any_greedy=bool(rows["is_greedy"].any()),
            all_greedy=bool(rows["is_greedy"].all()),
        )
        for row in np.flatnonzero(rows["is_truncated"]):
            sampling = self.requests[row].sampling
            assert sampling is not None
            draw.truncated.setdefault((sampling.top_p, sampling.top_k), []).append(int(row))
        return draw
