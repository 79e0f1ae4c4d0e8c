"""Byte-level BPE from a file of the `tokenizers` library, as `tokenizer.json` files on model hubs are."""

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer as Backend

from segue.model.tokenizer.base import join_bytes, storable
from segue.model.tokenizer.special import SpecialIds


class BpeTokenizer:
    """A `tokenizers.Tokenizer` whose text cannot reach the structure tokens."""

    def __init__(self, backend: Backend) -> None:
        """Take over a tokenizer.

        Args:
            backend: byte-level BPE with every structure token; a fast transformers tokenizer holds one as
                `backend_tokenizer`. Its flag `encode_special_tokens` is set.
        Raises:
            ValueError: it is not byte-level, or its text reaches a structure token.
        """
        # without it a structure token's name in a text becomes that token
        backend.encode_special_tokens = True
        self._backend = backend
        self.special = SpecialIds.find(backend.token_to_id)
        vocab: dict[str, int] = backend.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocab.values()) + 1
        byte_of = _byte_alphabet()
        if not byte_of.keys() <= vocab.keys():
            raise ValueError("a BPE tokenizer must be byte-level: its vocabulary lacks single bytes")
        added = {token.content for token in backend.get_added_tokens_decoder().values()}
        self._pieces = {
            token_id: token.encode() if token in added else bytes(byte_of[c] for c in token)
            for token, token_id in vocab.items()
        } | dict.fromkeys(self.special.names, b"")
        for token_id, name in self.special.names.items():
            if token_id in self.encode(name):
                raise ValueError(f"a BPE tokenizer must hold {name} as a special token, but text reaches it")

    @classmethod
    def from_file(cls, path: Path) -> "BpeTokenizer":
        """Read a `tokenizer.json`.

        Raises:
            ValueError: the file cannot be read, or is not fit (see the constructor).
        """
        try:
            backend = Backend.from_file(str(path))
        # the library raises bare Exception for a missing or foreign file
        except Exception as error:
            raise ValueError(f"{path} must be a file of the tokenizers library: {error}") from error
        return cls(backend)

    def encode(self, text: str) -> list[int]:
        """See `Tokenizer.encode`."""
        ids: list[int] = self._backend.encode(storable(text), add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """See `Tokenizer.decode`."""
        return join_bytes(self._pieces, ids)


def _byte_alphabet() -> dict[str, int]:
    """The printable character that stands for each byte in a byte-level vocabulary, and its byte.

    Source: GPT-2's convention: printable Latin-1 stands for itself, the other bytes for U+0100 and up, in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}
