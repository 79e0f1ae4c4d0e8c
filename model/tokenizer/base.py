"""What the project asks of a tokenizer: text to ids and back, with structure tokens out of text's reach."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from segue.model.tokenizer.special import SpecialIds

UNKNOWN = "\N{REPLACEMENT CHARACTER}"
"""What an id outside the vocabulary decodes to."""


class Tokenizer(Protocol):
    """Text to ids and back.

    Invariants:
        `encode` yields no structure token, whatever the text; `decode(encode(text)) == text` for text that UTF-8 can
        hold; `decode` accepts every sequence of ids: tests/unit/model/test_tokenizer.py.
    """

    @property
    def vocab_size(self) -> int:
        """Highest id plus one."""

    @property
    def special(self) -> SpecialIds:
        """Ids of the structure tokens."""

    def encode(self, text: str) -> list[int]:
        """Ids of ordinary text. Lone surrogates, which UTF-8 cannot hold, become question marks."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids. Broken UTF-8 and unknown ids become U+FFFD; structure tokens add nothing."""


def join_bytes(pieces: dict[int, bytes], ids: Iterable[int]) -> str:
    """Text of ids whose bytes are known; the others become U+FFFD."""
    unknown = UNKNOWN.encode()
    return b"".join([pieces.get(token_id, unknown) for token_id in ids]).decode(errors="replace")


def storable(text: str) -> str:
    """The text with what UTF-8 cannot hold (lone surrogates) replaced by question marks."""
    return text.encode(errors="replace").decode()


def render(tokenizer: Tokenizer, ids: Iterable[int]) -> str:
    """Text of ids for a human reader: structure tokens by name, unknown ids by number."""
    names = tokenizer.special.names
    parts: list[str] = []
    text: list[int] = []
    for token_id in map(int, ids):
        if token_id < tokenizer.vocab_size and token_id not in names:
            text.append(token_id)
            continue
        parts.append(tokenizer.decode(text))
        text = []
        parts.append(names.get(token_id, f"<|{token_id}|>"))
    parts.append(tokenizer.decode(text))
    return "".join(parts)
