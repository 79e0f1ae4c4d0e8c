"""Text as arrays: every token once, no document in sight of another, held-out ones apart.

That trajectories of one batch do not see each other is tests/property/test_model_packing.py.
"""

import resource
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from segue.conf.errors import ConfigError
from segue.learner.corpus import Corpus, TextSpan, find_files, is_whole, write_corpus
from segue.model.tokenizer.byte import ByteTokenizer

TOKENIZER = ByteTokenizer()
END = TOKENIZER.special.eos
# letters tell the documents apart
TEXTS = {name: name * count for name, count in {"a": 5, "b": 1, "c": 17, "d": 64, "e": 3, "f": 130}.items()}


def make_corpus(folder: Path, *, num_held_out: int = 2, shortest_span: int = 0, seed: int = 0) -> Corpus:
    for name, text in TEXTS.items():
        (folder / f"{name}.txt").write_text(text)
    write_corpus(folder / "text", find_files(str(folder / "*.txt")), TOKENIZER)
    return Corpus(folder / "text", num_held_out=num_held_out, shortest_span=shortest_span, seed=seed)


def letters(piece: np.ndarray) -> str:
    return TOKENIZER.decode([i for i in piece.tolist() if i != END])


def labels(pieces: list[np.ndarray]) -> Counter[str]:
    """Predicted tokens, end marks by the document before them."""
    found: Counter[str] = Counter()
    for piece in pieces:
        for before, token in zip(piece[:-1].tolist(), piece[1:].tolist(), strict=True):
            found[f"end of {TOKENIZER.decode([before])}" if token == END else TOKENIZER.decode([token])] += 1
    return found


@pytest.mark.parametrize(("length", "shortest"), [(1, 0), (7, 0), (64, 0), (1000, 0), (7, 7), (64, 7), (70, 65)])
def test_an_epoch_predicts_every_token_once_whatever_the_spans(tmp_path: Path, length: int, shortest: int) -> None:
    corpus = make_corpus(tmp_path, shortest_span=shortest)
    held_out = {name for piece in corpus.held_out_pieces(1000, 1000) for name in letters(piece)}
    wanted: Counter[str] = Counter()
    for name, text in TEXTS.items():
        if name not in held_out:
            wanted.update({name: len(text), f"end of {name}": 1})
    assert corpus.epoch_tokens == sum(wanted.values())
    total = corpus.epoch_tokens
    spans = [TextSpan(start, min(length, total - start)) for start in range(0, total, length)]
    pieces = [piece for span in spans for piece in corpus.pieces(span)]
    assert labels(pieces) == wanted
    # the second epoch, asked for in one span over the border, predicts them once more
    assert labels(corpus.pieces(TextSpan(total - 10, total + 10))) == wanted + labels(
        corpus.pieces(TextSpan(total - 10, 10))
    )


def test_a_piece_holds_one_document_behind_its_own_token_or_an_end_mark(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path)
    starts = 0
    end = 3 * corpus.epoch_tokens
    for start in range(0, end, 50):
        length = min(50, end - start)
        pieces = corpus.pieces(TextSpan(start, length))
        assert sum(len(piece) - 1 for piece in pieces) == length
        for piece in pieces:
            assert len(set(letters(piece))) <= 1
            assert not (piece[1:-1] == END).any()
            starts += piece[0] == END
    num_documents = len(TEXTS) - 2
    assert starts == 3 * num_documents


def test_a_document_that_fits_into_a_span_is_not_cut(tmp_path: Path) -> None:
    # a document and its end mark: 6, 2, 18, 65, 4 and 131 tokens
    corpus = make_corpus(tmp_path, num_held_out=1, shortest_span=18)
    seen: dict[str, list[int]] = {}
    for start in range(0, 18 * corpus.epoch_tokens, 18):
        pieces = corpus.pieces(TextSpan(start, 18))
        # a span always has something, at most itself and what begins at its end
        assert 1 <= sum(len(piece) - 1 for piece in pieces) < 2 * 18
        for piece in pieces:
            seen.setdefault(letters(piece)[:1], []).append(len(piece) - 1)
    for name, lengths in seen.items():
        assert sum(lengths) == 18 * (len(TEXTS[name]) + 1)
        assert (len(lengths) == 18) == (name in "abce"), name


def test_epochs_have_orders_of_their_own_drawn_by_the_seed(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path, num_held_out=1)
    total = corpus.epoch_tokens

    def order(which: Corpus, epoch: int) -> str:
        return "".join(letters(piece)[:1] for piece in which.pieces(TextSpan(epoch * total, total)))

    orders = [order(corpus, epoch) for epoch in range(6)]
    assert len({"".join(sorted(found)) for found in orders}) == 1
    assert len(set(orders)) > 2
    again = Corpus(tmp_path / "text", num_held_out=1, shortest_span=0, seed=0)
    assert [order(again, epoch) for epoch in reversed(range(6))] == orders[::-1]


def test_held_out_documents_are_never_trained_and_cut_by_length(tmp_path: Path) -> None:
    for seed in range(5):
        corpus = make_corpus(tmp_path, num_held_out=3, seed=seed)
        held_out = {name for piece in corpus.held_out_pieces(8, 10**6) for name in letters(piece)}
        trained = {name for piece in corpus.pieces(TextSpan(0, corpus.epoch_tokens)) for name in letters(piece)}
        assert len(held_out) == 3 and held_out | trained == set(TEXTS) and not held_out & trained
        pieces = corpus.held_out_pieces(8, 20)
        assert max(len(piece) - 1 for piece in pieces) <= 8
        available = sum(len(TEXTS[name]) + 1 for name in held_out)
        assert sum(len(piece) - 1 for piece in pieces) == min(20, available)


def test_one_document_at_least_is_left_to_train(tmp_path: Path) -> None:
    assert make_corpus(tmp_path, num_held_out=99).epoch_tokens > 0


def test_half_a_corpus_is_none_and_written_again(tmp_path: Path) -> None:
    make_corpus(tmp_path)
    folder = tmp_path / "text"
    before = (folder / "tokens.bin").read_bytes()
    assert is_whole(folder)
    (folder / "corpus.json").unlink()
    (folder / "tokens.bin").write_bytes(b"half")
    assert not is_whole(folder)
    write_corpus(folder, find_files(str(tmp_path / "*.txt")), TOKENIZER)
    assert (folder / "tokens.bin").read_bytes() == before


def test_a_disk_that_fills_up_leaves_no_half_of_what_stands_for_the_whole(tmp_path: Path) -> None:
    texts = tmp_path / ("a" * 200)
    texts.mkdir()
    for name in ("a", "b"):
        (texts / f"{name}.txt").write_text(name)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    # room for the arrays, and not for the names of the files
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, limits[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            write_corpus(tmp_path / "text", find_files(str(texts / "*.txt")), TOKENIZER)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    write_corpus(tmp_path / "text", find_files(str(texts / "*.txt")), TOKENIZER)
    assert Corpus(tmp_path / "text", num_held_out=1, shortest_span=0, seed=0).epoch_tokens == 2


def test_long_files_are_tokenised_line_by_line_and_lose_nothing(tmp_path: Path) -> None:
    lines = [f"line {number} says é\n" for number in range(120_000)]
    (tmp_path / "long.txt").write_text("".join(lines), encoding="utf-8")
    (tmp_path / "other.txt").write_text("x")
    write_corpus(tmp_path / "text", find_files(str(tmp_path / "*.txt")), TOKENIZER)
    tokens = np.fromfile(tmp_path / "text" / "tokens.bin", np.uint16)
    assert tokens[:-3].astype(np.uint8).tobytes().decode() == "".join(lines)
    assert tokens[-3:].tolist() == [END, ord("x"), END]


def test_a_line_of_any_length_is_tokenised_by_pieces_and_loses_nothing(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("segue.learner.corpus._PIECE_CHARS", 10)
    encode, given, noted = TOKENIZER.encode, [], []
    monkeypatch.setattr(TOKENIZER, "encode", lambda text: given.append(text) or encode(text))
    (tmp_path / "a.txt").write_text("é" * 25 + "\nand\nmore\nlines\n")
    (tmp_path / "b.txt").write_text("x")
    paths = find_files(str(tmp_path / "*.txt"))
    write_corpus(tmp_path / "text", paths, TOKENIZER, lambda *place: noted.append(place))
    # lines are kept whole where they are shorter than a piece, however they fill it
    assert given == ["é" * 10, "é" * 10, "é" * 5 + "\nand\n", "more\nlines\n", "x"]
    assert len(noted) == len(given) and noted == sorted(noted) and noted[-1] == (67, 67)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"a.txt": b"x"}, "must find at least two files, got 1"),
        ({"a.txt": b"x", "b.txt": b""}, "must hold text in at least two files, got 1"),
        ({"a.txt": b"x", "b.txt": b"\xff\xfe"}, "must find UTF-8 text, got .*b.txt: invalid start byte"),
    ],
)
def test_what_is_no_text_is_refused(tmp_path: Path, files: dict[str, bytes], expected: str) -> None:
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    with pytest.raises(ConfigError, match=f"pretrain.curriculum.text {expected}"):
        write_corpus(tmp_path / "text", find_files(str(tmp_path / "*.txt")), TOKENIZER)


def test_a_file_that_is_gone_meanwhile_is_no_full_disk(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("x")
    paths = find_files(str(tmp_path / "*.txt"))
    paths[1].unlink()
    with pytest.raises(ConfigError, match=r"pretrain.curriculum.text must find files that can be read, got .*b\.txt"):
        write_corpus(tmp_path / "text", paths, TOKENIZER)
