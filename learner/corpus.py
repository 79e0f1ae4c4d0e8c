"""Plain text as arrays: tokenised once, mapped into memory, cut into sequences of which none sees another document.

<folder>/tokens.bin       every document's tokens and one end mark behind each; uint16 or int32
<folder>/documents.npy    [D + 1] int64: where each document begins in it
<folder>/corpus.json      what the rest was made from; written last, so that it stands for the whole

An *epoch* is all training documents in an order drawn from the seed, end to end. A span of it is cut at the documents'
borders; a document that fits into a span is not cut by one, but belongs to the span in which it begins. Each piece is
fed behind the token that stands before it in its document, and behind an end mark where it begins one: so every token
of an epoch is predicted exactly once, and no document sees another.

Legend: T tokens, D documents.
"""

import glob
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from segue.conf.errors import ConfigError
from segue.model.tokenizer.base import Tokenizer

_TOKENS_NAME, _DOCUMENTS_NAME, _FACTS_NAME = "tokens.bin", "documents.npy", "corpus.json"
# what is tokenised at a time: a list of Python integers stands for no more than twice as many characters
_PIECE_CHARS = 1 << 20


@dataclass(frozen=True, slots=True)
class TextSpan:
    """Tokens [start, start + length) of the endless line of epochs."""

    start: int
    length: int


def find_files(pattern: str) -> list[Path]:
    """Files of a path with `*` and `**`, in the order of their names.

    Raises:
        ConfigError: there are fewer than two, one to train on and one to hold out.
    """
    paths = sorted(Path(name) for name in glob.glob(pattern, recursive=True) if Path(name).is_file())
    if len(paths) < 2:
        raise ConfigError(
            f"pretrain.curriculum.text must find at least two files, got {len(paths)} by {pattern}; "
            "`python -m segue.envs.archive.recall_text <folder>` writes some that teach recall"
        )
    return paths


def is_whole(folder: Path) -> bool:
    """True where `write_corpus` has come to its end."""
    return (folder / _FACTS_NAME).is_file()


def write_corpus(
    folder: Path, paths: Sequence[Path], tokenizer: Tokenizer, note: Callable[[int, int], None] = lambda *_: None
) -> None:
    """Tokenise files, a document each; empty ones are left out. Memory is bounded, however long a file or a line is.

    Args:
        folder: what it holds of a corpus is written anew.
        paths: of the files.
        tokenizer: its ids are kept.
        note: is told now and then how many bytes have been read, and of how many.
    Raises:
        ConfigError: a file cannot be read or is no UTF-8 text, or fewer than two hold anything.
        OSError: there is no room.
    """
    folder.mkdir(parents=True, exist_ok=True)
    dtype = np.dtype(np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.int32)
    borders = [0]
    names = []
    with _reading():
        sizes = [path.stat().st_size for path in paths]
    num_bytes, total_bytes = 0, sum(sizes)
    with (folder / _TOKENS_NAME).open("wb") as file:
        for path, size in zip(paths, sizes, strict=True):
            count = 0
            for ids, place in _tokenise(path, tokenizer):
                np.array(ids, dtype).tofile(file)
                count += len(ids)
                note(num_bytes + place, total_bytes)
            num_bytes += size
            if count:
                np.array([tokenizer.special.eos], dtype).tofile(file)
                borders.append(borders[-1] + count + 1)
                names.append(str(path))
    if len(names) < 2:
        raise ConfigError(f"pretrain.curriculum.text must hold text in at least two files, got {len(names)}")
    np.save(folder / _DOCUMENTS_NAME, np.array(borders, np.int64))
    facts = {"dtype": dtype.name, "end_mark": tokenizer.special.eos, "files": names}
    # a disk that fills up here leaves no half of it
    partial = folder / f".{_FACTS_NAME}.tmp"
    partial.write_text(json.dumps(facts, indent=1) + "\n")
    partial.replace(folder / _FACTS_NAME)


def _tokenise(path: Path, tokenizer: Tokenizer) -> Iterator[tuple[list[int], int]]:
    """Tokens of a file by pieces, each with the place in the file, in bytes, that has been read up to."""
    try:
        with _reading(), path.open("rb") as raw, TextIOWrapper(raw, encoding="utf-8") as file:
            for piece in _pieces(file):
                yield tokenizer.encode(piece), raw.tell()
    except UnicodeDecodeError as error:
        raise ConfigError(f"pretrain.curriculum.text must find UTF-8 text, got {path}: {error.reason}") from error


@contextmanager
def _reading() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"pretrain.curriculum.text must find files that can be read, got {error}") from error


def _pieces(file: TextIOWrapper) -> Iterator[str]:
    """Whole lines; one that is longer than a piece is cut."""
    lines: list[str] = []
    num_chars = 0
    while line := file.readline(_PIECE_CHARS):
        lines.append(line)
        num_chars += len(line)
        if num_chars >= _PIECE_CHARS:
            yield "".join(lines)
            lines, num_chars = [], 0
    if lines:
        yield "".join(lines)


class Corpus:
    """A corpus that `write_corpus` left, mapped into memory; training and held-out documents are apart.

    Invariants:
        Consecutive spans predict every token of an epoch once; a piece holds one document's tokens:
        tests/unit/learner/test_corpus.py.
    """

    def __init__(self, folder: Path, *, num_held_out: int, shortest_span: int, seed: int) -> None:
        """Args:
        num_held_out: documents that are kept out of training, as far as one is left.
        shortest_span: tokens; a document of at most so many, its end mark included, is not cut.
        seed: draws the held-out ones, and the order of each epoch.
        """
        facts = json.loads((folder / _FACTS_NAME).read_text())
        self._tokens = np.memmap(folder / _TOKENS_NAME, np.dtype(facts["dtype"]), mode="r")
        self._borders = np.load(folder / _DOCUMENTS_NAME)
        self._end_mark = facts["end_mark"]
        self._seed, self._shortest_span = seed, shortest_span
        num_documents = len(self._borders) - 1
        order = np.random.default_rng([seed, 0]).permutation(num_documents)
        num_held_out = min(num_held_out, num_documents - 1)
        self._held_out, self._training = np.sort(order[:num_held_out]), np.sort(order[num_held_out:])
        self._epoch: tuple[int, NDArray[np.int64], NDArray[np.int64]] | None = None

    @property
    def num_documents(self) -> int:
        """Training documents."""
        return len(self._training)

    @property
    def epoch_tokens(self) -> int:
        """Tokens of an epoch, end marks included."""
        return int(self._lengths(self._training).sum())

    def pieces(self, span: TextSpan) -> list[NDArray[np.int32]]:
        """What a span of training text is fed as, [T] each: its first token is context, every other one predicted."""
        found: list[NDArray[np.int32]] = []
        start, left = span.start, span.length
        while left:
            epoch, offset = divmod(start, self.epoch_tokens)
            length = min(left, self.epoch_tokens - offset)
            found += self._cut(*self._ordered(epoch), offset, length)
            start, left = start + length, left - length
        return found

    def held_out_pieces(self, length: int, num_tokens: int) -> list[NDArray[np.int32]]:
        """Held-out text by spans of `length` tokens, some `num_tokens` as far as there are."""
        lengths = self._lengths(self._held_out)
        starts = np.concatenate([[0], np.cumsum(lengths)])
        end = min(int(starts[-1]), num_tokens)
        found: list[NDArray[np.int32]] = []
        for start in range(0, end, length):
            found += self._cut(self._held_out, starts, start, min(length, end - start))
        return found

    def _ordered(self, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Documents in the order of an epoch, and where each begins in it."""
        if self._epoch is None or self._epoch[0] != epoch:
            documents = np.random.default_rng([self._seed, 1, epoch]).permutation(self._training)
            self._epoch = (epoch, documents, np.concatenate([[0], np.cumsum(self._lengths(documents))]))
        return self._epoch[1:]

    def _cut(
        self, documents: NDArray[np.int64], starts: NDArray[np.int64], start: int, length: int
    ) -> list[NDArray[np.int32]]:
        """A span [start, start + length) of documents laid end to end, a piece a document."""
        found = []
        end = start + length
        first = int(np.searchsorted(starts, start, side="right")) - 1
        for place in range(first, int(np.searchsorted(starts, end))):
            head, tail = int(starts[place]), int(starts[place + 1])
            if tail - head > self._shortest_span:
                begin = max(start, head)
                count = min(end, tail) - begin
            elif head >= start:
                begin, count = head, tail - head
            else:
                # in the span before
                continue
            source = int(self._borders[documents[place]]) + begin - head
            piece = np.empty(count + 1, np.int32)
            piece[0] = self._end_mark if begin == head else self._tokens[source - 1]
            piece[1:] = self._tokens[source : source + count]
            found.append(piece)
        return found

    def _lengths(self, documents: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._borders[documents + 1] - self._borders[documents]
