"""Packing, cutting and forking change no result, for random lengths: design laws 2 and 3 at the model's level.

fp64, slow decay. Not covered: gradients across cuts (the learner's tests).
"""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from model_cases import make_config, make_model, make_tokens, max_error, run_whole

from segue.model.inputs import PackedInputs
from segue.model.pool import StatePool
from segue.model.routing import Routing
from segue.model.state import DifferentiableState

CONFIG = make_config()
MODEL = make_model(CONFIG)
lengths = st.lists(st.integers(1, 70), min_size=1, max_size=4)


@settings(max_examples=15, derandomize=True)
@given(lengths=lengths, data=st.data())
def test_cut_and_packed_equals_alone(lengths: list[int], data: st.DataObject) -> None:
    """Each sequence is cut at random places (empty pieces included); pieces of the same number are packed together."""
    sequences = [make_tokens(length, seed=n) for n, length in enumerate(lengths)]
    borders = [
        [0, *sorted(data.draw(st.lists(st.integers(0, length), min_size=2, max_size=2))), length] for length in lengths
    ]
    with torch.no_grad():
        state = DifferentiableState.zeros(CONFIG, len(sequences), torch.float64)
        pieces: list[list[torch.Tensor]] = [[] for _ in sequences]
        for i in range(3):
            fed = [tokens[cuts[i] : cuts[i + 1]] for tokens, cuts in zip(sequences, borders, strict=True)]
            hidden, after = MODEL(PackedInputs.pack(fed), state, Routing())
            state = state.extended_by(after)
            for piece, part in zip(pieces, hidden.split([len(tokens) for tokens in fed]), strict=True):
                piece.append(part)
        assert state.consumed.tolist() == lengths
        for piece, tokens in zip(pieces, sequences, strict=True):
            assert max_error(torch.cat(piece), run_whole(MODEL, [tokens])[0]) < 1e-12


@settings(max_examples=15, derandomize=True)
@given(
    prompt=st.integers(1, 40), page_size=st.integers(1, 9), tails=st.lists(st.integers(0, 9), min_size=2, max_size=3)
)
def test_forks_continue_as_if_alone(prompt: int, page_size: int, tails: list[int]) -> None:
    """Siblings share a prompt's pages, go on in turn with tokens of their own, and give all pages back."""
    tokens = [make_tokens(prompt, seed=99)] * len(tails)
    ends = [make_tokens(length, seed=n) for n, length in enumerate(tails)]
    pool = StatePool(CONFIG, num_slots=5, num_pages=200, page_size=page_size, dtype=torch.float64)
    with torch.no_grad():
        root = pool.allocate()
        MODEL(PackedInputs.pack(tokens[:1]), pool.view([root]), Routing())
        slots = [pool.fork(root) for _ in tails]
        pool.free(root)
        outputs: list[list[torch.Tensor]] = [[] for _ in tails]
        for t in range(max(tails)):
            live = [n for n, length in enumerate(tails) if t < length]
            inputs = PackedInputs.pack([ends[n][t : t + 1] for n in live])
            hidden, _ = MODEL(inputs, pool.view([slots[n] for n in live]), Routing())
            for n, row in zip(live, hidden, strict=True):
                outputs[n].append(row)
        for n, end in enumerate(ends):
            if len(end):
                whole = run_whole(MODEL, [torch.cat([tokens[n], end])])[0]
                assert max_error(torch.stack(outputs[n]), whole[prompt:]) < 1e-9
    for slot in slots:
        pool.free(slot)
    assert (pool.free_slots, pool.free_pages) == (5, 200)
