"""The tokenizer without a vocabulary: one id a byte."""

from collections.abc import Sequence

from segue.model.tokenizer.base import join_bytes
from segue.model.tokenizer.special import STRUCTURE_TOKENS, SpecialIds

_NUM_BYTES = 256


class ByteTokenizer:
    """The 256 bytes of UTF-8, then the structure tokens in their order."""

    def __init__(self) -> None:
        self.special = SpecialIds(*range(_NUM_BYTES, _NUM_BYTES + len(STRUCTURE_TOKENS)))
        self.vocab_size = _NUM_BYTES + len(STRUCTURE_TOKENS)
        self._pieces = {i: bytes([i]) for i in range(_NUM_BYTES)} | dict.fromkeys(self.special.names, b"")

    def encode(self, text: str) -> list[int]:
        """See `Tokenizer.encode`."""
        return list(text.encode(errors="replace"))

    def decode(self, ids: Sequence[int]) -> str:
        """See `Tokenizer.decode`."""
        return join_bytes(self._pieces, ids)
