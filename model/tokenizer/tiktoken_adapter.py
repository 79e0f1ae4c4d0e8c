"""Adapter for a `tiktoken.Encoding`, the form in which Kimi-K3 publishes its vocabulary."""

from collections.abc import Sequence
from typing import Protocol

from segue.model.tokenizer.base import join_bytes, storable
from segue.model.tokenizer.special import SpecialIds


class Encoding(Protocol):
    """What is used of a `tiktoken.Encoding`."""

    @property
    def n_vocab(self) -> int:
        """Highest id plus one."""

    def encode_ordinary(self, text: str) -> list[int]:
        """Ids of text, no special token among them."""

    def encode_single_token(self, text_or_bytes: str) -> int:
        """Id of a token by its name; KeyError where there is none."""

    def decode_single_token_bytes(self, token: int) -> bytes:
        """Bytes of an id; KeyError where there is none."""


class TiktokenTokenizer:
    """A `tiktoken.Encoding` that holds the structure tokens as special tokens."""

    def __init__(self, encoding: Encoding) -> None:
        """Take over an encoding.

        Raises:
            ValueError: a structure token is missing.
        """
        self._encoding = encoding
        self.special = SpecialIds.find(self._find)
        self.vocab_size = encoding.n_vocab
        # filled as ids are seen: asking for all of a large vocabulary takes a second
        self._pieces: dict[int, bytes] = dict.fromkeys(self.special.names, b"")

    def encode(self, text: str) -> list[int]:
        """See `Tokenizer.encode`."""
        return self._encoding.encode_ordinary(storable(text))

    def decode(self, ids: Sequence[int]) -> str:
        """See `Tokenizer.decode`."""
        for token_id in set(ids) - self._pieces.keys():
            try:
                self._pieces[token_id] = self._encoding.decode_single_token_bytes(token_id)
            except KeyError:
                # an unknown id stays unknown
                continue
        return join_bytes(self._pieces, ids)

    def _find(self, name: str) -> int | None:
        try:
            return self._encoding.encode_single_token(name)
        except KeyError:
            return None
