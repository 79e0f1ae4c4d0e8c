"""The cut of packed sequences into chunks."""

import itertools

import torch

from segue.kernels.kda.layout import CHUNK, chunk_layout

LENGTHS = [3, 0, 40, 16, 33]


def make_layout(num_heads: int = 2):
    return chunk_layout((0, *itertools.accumulate(LENGTHS)), num_heads, torch.device("cpu"))


def test_every_token_has_one_tile_row_and_only_the_rest_is_padding() -> None:
    layout = make_layout()
    num_rows = sum(LENGTHS) * 2
    assert torch.equal(layout.rows[layout.inverse], torch.arange(num_rows))
    is_token = torch.ones(layout.num_tiles * CHUNK, dtype=torch.bool)
    is_token[layout.padding] = False
    assert torch.equal(is_token.nonzero()[:, 0], layout.inverse.sort().values)


def test_chunks_lie_by_index_and_sequences_by_number_of_chunks() -> None:
    layout = make_layout(num_heads=1)
    # chunks per sequence: 1 0 3 1 3; ranked: 2 4 0 3 1; slices by chunk index hold 4, 2, 2 chunks
    assert layout.order.tolist() == [2, 4, 0, 3, 1]
    assert layout.rank[layout.order].tolist() == [0, 1, 2, 3, 4]
    assert layout.steps == ((0, 4), (4, 2), (6, 2))
    first_token_of_tiles = layout.rows.view(-1, CHUNK)[:, 0].tolist()
    # sequences start at 0 3 3 43 59: chunk 0 of 2, 4, 0, 3; then chunks 1 and 2 of sequences 2 and 4
    assert first_token_of_tiles == [3, 59, 0, 43, 19, 75, 35, 91]


def test_padding_repeats_a_token_of_its_own_sequence() -> None:
    layout = make_layout(num_heads=1)
    rows = layout.rows.view(-1, CHUNK)
    # sequence 0 has tokens 0 1 2
    assert rows[2].tolist() == [0, 1, 2] + [2] * (CHUNK - 3)
