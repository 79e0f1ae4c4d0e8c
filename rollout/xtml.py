"""XTML: elements whose marks are structure tokens, so that no text can forge one.

    element := OPEN name (` key="value"`)* SEP body CLOSE name SEP

Written and read on the level of token ids. Name, ` key`, `="`, value and `"` are encoded each on its own; reading
decodes all text between two structure tokens at once, so it does not matter how a policy split it.
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from segue.model.tokenizer.base import Tokenizer

_HEADER = re.compile(r"([\w-]+)((?: [\w-]+=\"[^\"]*\")*)")
_ATTRIBUTE = re.compile(r" ([\w-]+)=\"([^\"]*)\"")
# longest excerpt of sampled text in a reason, in characters
_EXCERPT_CHARS = 40


class MalformedTurn(ValueError):
    """Sampled tokens are not an assistant turn; the message says where they leave the grammar."""


class XtmlWriter:
    """Token ids of elements."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._special = tokenizer.special
        # names, keys and most values come again in every turn
        self._constant = lru_cache(maxsize=4096)(lambda text: tuple(tokenizer.encode(text)))

    def open(self, name: str, attributes: Mapping[str, str] | None = None) -> list[int]:
        """`OPEN name key="value"… SEP`."""
        ids = [self._special.open, *self._constant(name)]
        for key, value in (attributes or {}).items():
            ids += self._constant(f" {key}")
            ids += self._constant('="')
            ids += self._constant(value.replace("&", "&amp;").replace('"', "&quot;"))
            ids += self._constant('"')
        ids.append(self._special.sep)
        return ids

    def text(self, text: str) -> list[int]:
        """Ids of a body's text; none of them is a structure token."""
        return self._tokenizer.encode(text)

    def constant(self, text: str) -> list[int]:
        """The same for a text that comes again: its ids are remembered."""
        return list(self._constant(text))

    def close(self, name: str) -> list[int]:
        """`CLOSE name SEP`."""
        return [self._special.close, *self._constant(name), self._special.sep]

    def end_message(self) -> list[int]:
        """`CLOSE message SEP END_OF_MSG`."""
        return [*self.close("message"), self._special.end_of_msg]


class XtmlReader:
    """A cursor over token ids that takes what the grammar expects next.

    Every method raises `MalformedTurn` where something else stands.
    """

    def __init__(self, tokenizer: Tokenizer, ids: Sequence[int] | NDArray[np.integer]) -> None:
        self._tokenizer = tokenizer
        self._special = tokenizer.special
        self._names = tokenizer.special.names
        self._ids: list[int] = np.asarray(ids, np.int64).tolist()
        self._marks = [i for i, token_id in enumerate(self._ids) if token_id in self._names]
        self._place = 0
        self._mark = 0

    def text(self) -> str:
        """Take the text up to the next structure token; empty where one stands here."""
        end = self._marks[self._mark] if self._mark < len(self._marks) else len(self._ids)
        ids = self._ids[self._place : end]
        self._place = end
        if ids and not 0 <= min(ids) <= max(ids) < self._tokenizer.vocab_size:
            raise MalformedTurn(f"a token outside the vocabulary of {self._tokenizer.vocab_size}")
        return self._tokenizer.decode(ids)

    def next_opens(self) -> bool:
        """True where an element starts right here."""
        return self._place < len(self._ids) and self._ids[self._place] == self._special.open

    def take_open(self, name: str, keys: tuple[str, ...] = ()) -> tuple[str, ...]:
        """Take `OPEN name key="value"… SEP` with exactly these keys in this order.

        Returns:
            The attributes' values.
        """
        header, found, attributes = self._take_header(name)
        if found != name or tuple(key for key, _ in attributes) != keys:
            raise MalformedTurn(f"expected an element {name} with keys {list(keys)}, got {_excerpt(header)}")
        return tuple(value for _, value in attributes)

    def take_message(self) -> dict[str, str]:
        """Take `OPEN message key="value"… SEP` with any keys; returns its attributes."""
        header, found, attributes = self._take_header("message")
        if found != "message":
            raise MalformedTurn(f"expected a message, got {_excerpt(header)}")
        return dict(attributes)

    def take_close(self, name: str) -> None:
        """Take `CLOSE name SEP`."""
        self._take(self._special.close)
        found = self.text()
        if found != name:
            raise MalformedTurn(f"expected the end of {name}, got that of {_excerpt(found)}")
        self._take(self._special.sep)

    def take_message_end(self) -> None:
        """Take `CLOSE message SEP END_OF_MSG`."""
        self.take_close("message")
        self._take(self._special.end_of_msg)

    def take_end(self) -> None:
        """Take `CLOSE message SEP END_OF_MSG` and nothing after it."""
        self.take_message_end()
        if self._place < len(self._ids):
            raise MalformedTurn(f"{len(self._ids) - self._place} tokens after the end of the message")

    def _take_header(self, name: str) -> tuple[str, str, list[tuple[str, str]]]:
        """Take `OPEN … SEP`: the text between them, the name in it, and the attributes."""
        self._take(self._special.open)
        header = self.text()
        match = _HEADER.fullmatch(header)
        if match is None:
            raise MalformedTurn(f"expected an element {name}, got {_excerpt(header)}")
        self._take(self._special.sep)
        attributes = [
            (key, value.replace("&quot;", '"').replace("&amp;", "&")) for key, value in _ATTRIBUTE.findall(match[2])
        ]
        return header, match[1], attributes

    def _take(self, token_id: int) -> None:
        expected = self._names[token_id]
        if self._place >= len(self._ids):
            raise MalformedTurn(f"expected {expected}, got the end of the tokens")
        found = self._ids[self._place]
        if found != token_id:
            raise MalformedTurn(f"expected {expected}, got {self._names.get(found) or _excerpt(self.text())}")
        self._place += 1
        self._mark += 1


def _excerpt(text: str) -> str:
    return repr(text if len(text) <= _EXCERPT_CHARS else text[:_EXCERPT_CHARS] + "…")
