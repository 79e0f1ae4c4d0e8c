"""States of many sequences in place: fixed slots for the recurrent part, shared pages for the latent rows.

Legend: N sequences of one forward, T new tokens, H heads, K key width, V value width, W convolution taps, C convolution
channels, L latent width, R shared key width. A page holds `page_size` rows of every MLA layer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

import numpy as np
import torch
from torch import Tensor

from segue.conf.model_config import ModelConfig
from segue.kernels.mla.op import mla_attention, mla_decode
from segue.model.inputs import PackedInputs


class PoolExhausted(RuntimeError):
    """No slot or too few pages are free.

    Admission prevents it: `StatePool.free_slots`, `free_pages`, `pages_needed`.
    """


@dataclass(kw_only=True, slots=True, eq=False)
class Slot:
    """Place of one sequence's state in a pool; changed by the pool only."""

    index: int
    """Row of the recurrent tensors."""
    num_tokens: int = 0
    """Tokens that the state has consumed."""
    pages: list[int] = field(default_factory=list)
    """Pages of the latent rows in order; all but the last are full."""


class StatePool:
    """Slots and refcounted pages for the states of one model.

    A fork shares full pages, which are never written again, and copies the partial one; so a write never meets a page
    that another sequence reads.

    Args:
        config: the model's.
        num_slots: sequences (and snapshots) that can be held.
        num_pages: pages for all of them.
        page_size: tokens of a page.
        dtype: the model's activations; recurrent states are at least float32.
        device: where the states live; tables and indices are kept on the CPU.
        num_spare: slots and pages behind all others, which no sequence is ever given: steps of a fixed size, as graphs
            have them, write there for rows without a sequence.
    Invariants:
        A fork and a moved state continue bit for bit as their source; no page leaks: tests/unit/model/test_pool.py.
    Example:
        >>> slot = pool.allocate()
        >>> hidden, _ = model(prompt, pool.view([slot]), Routing())
        >>> sibling = pool.fork(slot)
        >>> hidden, _ = model(one_token_each, pool.view([slot, sibling]), Routing())
    """

    def __init__(
        self,
        config: ModelConfig,
        num_slots: int,
        num_pages: int,
        page_size: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        num_spare: int = 0,
    ) -> None:
        self.num_slots, self.num_pages, self.page_size = num_slots, num_pages, page_size
        self.device = torch.device(device)
        self.num_spare = num_spare
        num_slots, num_pages = num_slots + num_spare, num_pages + num_spare
        wide = torch.promote_types(dtype, torch.float32)
        kda, mla = config.kda_layers, config.mla_layers
        self.recurrent = tuple(torch.zeros(num_slots, *config.recurrent_shape, dtype=wide, device=device) for _ in kda)
        self.conv = tuple(torch.zeros(num_slots, *config.conv_shape, dtype=dtype, device=device) for _ in kda)
        self.pages = tuple(
            torch.zeros(num_pages, page_size, config.latent_row_size, dtype=dtype, device=device) for _ in mla
        )
        self.page_table = torch.zeros(num_slots, 1, dtype=torch.int64)
        # a heap, lowest first: slots of sequences that start together stand side by side
        self._free_slots = list(range(self.num_slots))
        self._free_pages = list(range(self.num_pages))
        self._num_owners = [0] * num_pages

    @property
    def free_slots(self) -> int:
        """Slots that can be allocated."""
        return len(self._free_slots)

    @property
    def free_pages(self) -> int:
        """Pages that can be taken."""
        return len(self._free_pages)

    def pages_needed(self, num_tokens: int, num_new_tokens: int) -> int:
        """Pages that a sequence of `num_tokens` takes when fed `num_new_tokens` more; all of its pages from 0."""
        return self._pages_of(num_tokens + num_new_tokens) - self._pages_of(num_tokens)

    def size_bytes(self, num_tokens: int) -> int:
        """Memory that a state of so many tokens holds here, unshared."""
        fixed = sum(tensor[0].nbytes for tensor in (*self.recurrent, *self.conv))
        return fixed + self._pages_of(num_tokens) * sum(tensor[0].nbytes for tensor in self.pages)

    def allocate(self) -> Slot:
        """A slot for a sequence that has consumed nothing.

        Raises:
            PoolExhausted: no slot is free.
        """
        slot = self._take_slot()
        for tensor in (*self.recurrent, *self.conv):
            tensor[slot.index].zero_()
        return slot

    def fork(self, slot: Slot) -> Slot:
        """A second sequence that stands where this one stands; takes a page if the last one is partly filled.

        Raises:
            PoolExhausted: no slot or no page is free; nothing is taken then.
        """
        num_full = slot.num_tokens // self.page_size
        num_partial = self._pages_of(slot.num_tokens) - num_full
        if num_partial > self.free_pages:
            raise PoolExhausted(f"fork needs {num_partial} page, free are {self.free_pages} of {self.num_pages}")
        twin = self._take_slot()
        twin.num_tokens = slot.num_tokens
        for tensor in (*self.recurrent, *self.conv):
            tensor[twin.index].copy_(tensor[slot.index])
        for page in slot.pages[:num_full]:
            self._num_owners[page] += 1
        self._append_pages(twin, slot.pages[:num_full])
        for page in slot.pages[num_full : num_full + num_partial]:
            copy = self._take_page()
            for tensor in self.pages:
                tensor[copy].copy_(tensor[page])
            self._append_pages(twin, [copy])
        return twin

    def free(self, slot: Slot) -> None:
        """Give a slot and its share of pages back; the slot must not be used again."""
        for page in slot.pages:
            self._num_owners[page] -= 1
            if self._num_owners[page] == 0:
                self._free_pages.append(page)
        slot.pages.clear()
        heappush(self._free_slots, slot.index)

    def view(self, slots: Sequence[Slot], *, may_step: bool = True) -> "PooledState":
        """The states of these sequences for forwards, which change them in place; one view serves many forwards.

        Args:
            may_step: a forward of one token a sequence is a decoding step; False takes the form for many then too.
        """
        return PooledState(self, slots, may_step)

    def export(self, slot: Slot) -> dict[str, np.ndarray]:
        """A copy of one state that leaves the pool: bits of every tensor, rows without their page structure."""
        rows = self.row_places(slot.pages, slot.num_tokens).to(self.device)
        arrays = {"num_tokens": np.array(slot.num_tokens)}
        for layer, (recurrent, conv) in enumerate(zip(self.recurrent, self.conv, strict=True)):
            arrays[f"recurrent.{layer}"] = _to_bits(recurrent[slot.index])
            arrays[f"conv.{layer}"] = _to_bits(conv[slot.index])
        for layer, pages in enumerate(self.pages):
            arrays[f"rows.{layer}"] = _to_bits(pages.flatten(0, 1)[rows])
        return arrays

    def import_(self, arrays: Mapping[str, np.ndarray]) -> Slot:
        """A slot that holds an exported state, bit for bit.

        Raises:
            PoolExhausted: no slot or too few pages are free; nothing is taken then.
        """
        num_tokens = int(arrays["num_tokens"])
        slot = self._take_slot()
        try:
            self.reserve([slot], [num_tokens])
        except PoolExhausted:
            self.free(slot)
            raise
        slot.num_tokens = num_tokens
        rows = self.row_places(slot.pages, num_tokens).to(self.device)
        for layer, (recurrent, conv) in enumerate(zip(self.recurrent, self.conv, strict=True)):
            recurrent[slot.index] = _from_bits(arrays[f"recurrent.{layer}"], recurrent)
            conv[slot.index] = _from_bits(arrays[f"conv.{layer}"], conv)
        for layer, pages in enumerate(self.pages):
            pages.flatten(0, 1)[rows] = _from_bits(arrays[f"rows.{layer}"], pages)
        return slot

    def reserve(self, slots: Sequence[Slot], num_new_tokens: Sequence[int]) -> int:
        """Take the pages that these sequences' next tokens need and that they do not own yet; how many these are.

        Raises:
            PoolExhausted: too few pages are free; nothing is taken then.
        """
        wanted = [
            max(0, self._pages_of(slot.num_tokens + num_new) - len(slot.pages))
            for slot, num_new in zip(slots, num_new_tokens, strict=True)
        ]
        needed = sum(wanted)
        if needed > self.free_pages:
            raise PoolExhausted(f"{needed} pages are needed, free are {self.free_pages} of {self.num_pages}")
        for slot, num_pages in zip(slots, wanted, strict=True):
            if num_pages:
                self._append_pages(slot, [self._take_page() for _ in range(num_pages)])
        return needed

    def row_places(self, pages: Sequence[int], end: int, start: int = 0) -> Tensor:
        """Places of rows start up to end of a sequence among the rows of all pages, [end - start] int64 on the CPU."""
        first = start // self.page_size
        used = torch.tensor(pages[first : self._pages_of(end)], dtype=torch.int64)
        places = used[:, None] * self.page_size + torch.arange(self.page_size)
        return places.flatten()[start - first * self.page_size : end - first * self.page_size]

    def _pages_of(self, num_tokens: int) -> int:
        return -(-num_tokens // self.page_size)

    def _take_slot(self) -> Slot:
        if not self._free_slots:
            raise PoolExhausted(f"all {self.num_slots} slots are taken")
        return Slot(index=heappop(self._free_slots))

    def _take_page(self) -> int:
        page = self._free_pages.pop()
        self._num_owners[page] = 1
        return page

    def _append_pages(self, slot: Slot, pages: Sequence[int]) -> None:
        start, end = len(slot.pages), len(slot.pages) + len(pages)
        if end > self.page_table.shape[1]:
            wider = self.page_table.new_zeros(len(self.page_table), 2 * end)
            wider[:, : self.page_table.shape[1]] = self.page_table
            self.page_table = wider
        self.page_table[slot.index, start:end] = torch.tensor(pages, dtype=torch.int64)
        slot.pages.extend(pages)


class PooledState:
    """The states of chosen sequences between two forwards: a `SequenceState` over a pool."""

    def __init__(self, pool: StatePool, slots: Sequence[Slot], may_step: bool) -> None:
        self.pool, self.slots, self.may_step = pool, tuple(slots), may_step
        indices = [slot.index for slot in slots]
        assert len(set(indices)) == len(indices), f"a sequence stands twice in one forward: {indices}"
        self.index = torch.tensor(indices, dtype=torch.int64).to(pool.device)
        start = min(indices, default=0)
        self.run = slice(start, start + len(indices)) if indices == list(range(start, start + len(indices))) else None
        """The same rows where they stand side by side in order: reading them copies nothing."""

    def open(self, inputs: PackedInputs) -> "PooledStore":
        """Start a forward: takes the pages that the new tokens need.

        Raises:
            PoolExhausted: too few pages are free; the states are unchanged then.
        """
        assert not torch.is_grad_enabled(), "states in place carry no gradient: call under torch.no_grad()"
        return PooledStore(self, inputs)


class PooledStore:
    """One forward over the states of a pool."""

    def __init__(self, state: PooledState, inputs: PackedInputs) -> None:
        pool, slots = state.pool, state.slots
        assert len(slots) == inputs.num_sequences, (len(slots), inputs.num_sequences)
        self.offsets = inputs.offsets
        self._state, self._pool, self._index, self._run = state, pool, state.index, state.run
        self._num_new = inputs.lengths.tolist()
        self.incremental = state.may_step and all(num_new == 1 for num_new in self._num_new)
        pool.reserve(slots, self._num_new)
        device = pool.device
        if self.incremental:
            size = pool.page_size
            places = [slot.pages[slot.num_tokens // size] * size + slot.num_tokens % size for slot in slots]
            self._places = torch.tensor(places, dtype=torch.int64).to(device)
            self._lengths = torch.tensor([slot.num_tokens + 1 for slot in slots], dtype=torch.int64).to(device)
            max_pages = max((len(slot.pages) for slot in slots), default=0)
            self._page_table = pool.page_table[self._index.cpu(), :max_pages].to(device)
        else:
            spans = list(zip(slots, self._num_new, strict=True))
            own = [pool.row_places(slot.pages, slot.num_tokens + new, slot.num_tokens) for slot, new in spans]
            self._places = torch.cat(own).to(device)
            prior = [pool.row_places(slot.pages, slot.num_tokens) for slot in slots]
            self._prior_places = torch.cat(prior).to(device)
            self._prior_offsets = torch.tensor([0, *(slot.num_tokens for slot in slots)]).cumsum(0)

    def read_recurrent(self, layer: int) -> tuple[Tensor, Tensor]:
        """See `StateStore`."""
        recurrent, conv = self._pool.recurrent[layer], self._pool.conv[layer]
        if self._run is not None:
            return recurrent[self._run], conv[self._run]
        return recurrent.index_select(0, self._index), conv.index_select(0, self._index)

    def write_recurrent(self, layer: int, recurrent: Tensor, conv: Tensor) -> None:
        """See `StateStore`."""
        if self._run is not None:
            self._pool.recurrent[layer][self._run] = recurrent
            self._pool.conv[layer][self._run] = conv
            return
        self._pool.recurrent[layer].index_copy_(0, self._index, recurrent)
        self._pool.conv[layer].index_copy_(0, self._index, conv)

    def recurrent_in_place(self, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        """See `StateStore`."""
        return self._pool.recurrent[layer], self._pool.conv[layer], self._index

    def attend(self, layer: int, q: Tensor, rows: Tensor, kv_b: Tensor, *, scale: float) -> Tensor:
        """See `StateStore`."""
        pages = self._pool.pages[layer]
        all_rows = pages.flatten(0, 1)
        all_rows.index_copy_(0, self._places, rows)
        if self.incremental:
            return mla_decode(q, pages, self._page_table, self._lengths, kv_b, scale=scale)
        prior_rows = all_rows[self._prior_places]
        return mla_attention(q, rows, prior_rows, kv_b, self.offsets, self._prior_offsets, scale=scale)

    def close(self) -> PooledState:
        """Count the new tokens as consumed."""
        for slot, num_new in zip(self._state.slots, self._num_new, strict=True):
            slot.num_tokens += num_new
        return self._state


@dataclass(kw_only=True, slots=True, eq=False)
class StepTensors:
    """Where a decoding step of N rows finds and leaves its states: tensors that a captured step reads at each replay.

    Rows without a sequence name the pool's spare slot and page.
    """

    index: Tensor
    """[N] int64: slots."""
    places: Tensor
    """[N] int64: where each new latent row goes among the rows of all pages."""
    lengths: Tensor
    """[N] int64: latent rows that count, the new one included."""
    page_table: Tensor
    """[N, P] int64: pages in order, then any valid page."""


class StepStates:
    """The states of a decoding step whose pages were reserved and whose tensors were filled by whoever runs it.

    A `SequenceState` and its own store: the tokens are counted as consumed by whoever runs the step.
    """

    incremental = True

    def __init__(self, pool: StatePool, tensors: StepTensors, offsets: Tensor) -> None:
        self.offsets = offsets
        self._pool, self._tensors = pool, tensors

    def open(self, inputs: PackedInputs) -> "StepStates":
        """See `SequenceState`."""
        assert inputs.num_sequences == len(self._tensors.index), (inputs.num_sequences, len(self._tensors.index))
        return self

    def read_recurrent(self, layer: int) -> tuple[Tensor, Tensor]:
        """See `StateStore`."""
        index = self._tensors.index
        return self._pool.recurrent[layer].index_select(0, index), self._pool.conv[layer].index_select(0, index)

    def write_recurrent(self, layer: int, recurrent: Tensor, conv: Tensor) -> None:
        """See `StateStore`."""
        self._pool.recurrent[layer].index_copy_(0, self._tensors.index, recurrent)
        self._pool.conv[layer].index_copy_(0, self._tensors.index, conv)

    def recurrent_in_place(self, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        """See `StateStore`."""
        return self._pool.recurrent[layer], self._pool.conv[layer], self._tensors.index

    def attend(self, layer: int, q: Tensor, rows: Tensor, kv_b: Tensor, *, scale: float) -> Tensor:
        """See `StateStore`."""
        pages, tensors = self._pool.pages[layer], self._tensors
        pages.flatten(0, 1).index_copy_(0, tensors.places, rows)
        return mla_decode(q, pages, tensors.page_table, tensors.lengths, kv_b, scale=scale)

    def close(self) -> "StepStates":
        """See `ForwardStore`."""
        return self


def _to_bits(tensor: Tensor) -> np.ndarray:
    """A copy as a numpy array; bfloat16, which numpy lacks, as int16 of the same bits."""
    tensor = tensor.detach().to("cpu", copy=True).contiguous()
    return tensor.view(torch.int16).numpy() if tensor.dtype is torch.bfloat16 else tensor.numpy()


def _from_bits(array: np.ndarray, like: Tensor) -> Tensor:
    """Inverse of `_to_bits`, in the dtype and on the device of `like`."""
    tensor = torch.from_numpy(np.array(array))
    tensor = tensor.view(torch.bfloat16) if tensor.dtype is torch.int16 else tensor
    assert tensor.dtype is like.dtype, f"state of {tensor.dtype} moved into a pool of {like.dtype}"
    return tensor.to(like.device)
