"""Structure tokens: what marks the parts of a conversation. They come from structure only, never from text."""

from collections.abc import Callable
from dataclasses import astuple, dataclass

STRUCTURE_TOKENS = (
    "[BOS]",
    "[EOS]",
    "<|end_of_msg|>",
    "<|open|>",
    "<|close|>",
    "<|sep|>",
    "<|media_begin|>",
    "<|media_content|>",
    "<|media_end|>",
    "<|media_pad|>",
    "[PAD]",
)
"""Names of the structure tokens in the order of their ids, as Kimi-K3 names and orders them."""


@dataclass(frozen=True, slots=True)
class SpecialIds:
    """Ids of the structure tokens, in the order of `STRUCTURE_TOKENS`."""

    bos: int
    eos: int
    end_of_msg: int
    open: int
    close: int
    sep: int
    media_begin: int
    media_content: int
    media_end: int
    media_pad: int
    pad: int

    @classmethod
    def find(cls, id_of: Callable[[str], int | None]) -> "SpecialIds":
        """Look each structure token up by its name.

        Raises:
            ValueError: `id_of` knows no id for a name.
        """
        found = {name: id_of(name) for name in STRUCTURE_TOKENS}
        missing = [name for name, token_id in found.items() if token_id is None]
        if missing:
            raise ValueError(f"a tokenizer must hold every structure token, missing {', '.join(missing)}")
        return cls(*(token_id for token_id in found.values() if token_id is not None))

    @property
    def names(self) -> dict[int, str]:
        """Id to name of every structure token."""
        return dict(zip(astuple(self), STRUCTURE_TOKENS, strict=True))
