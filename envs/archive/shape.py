"""What can be chosen about an archive, and which choices make sense."""

import math
from dataclasses import dataclass
from typing import Any

from segue.envs.archive.question import KINDS

MIN_PAGE_TOKENS = 64
"""Room for all entries of a question on one page, beside others."""
_MAX_CHARS_PER_TOKEN = 3.5
_MAX_EXTRA_CHARS = 300


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """Size of an archive, place and class of what is asked.

    Raises:
        ValueError: naming the field and its rule.
    """

    length_tokens: int
    """Of all pages together, as `entry.count_tokens` counts them; a multiple of `page_tokens`."""
    page_tokens: int
    """Of a page at most; it falls short by less than an entry."""
    fact_region: tuple[float, float]
    """Part of the archive in which all decisive entries lie, as shares of its length: (0, 0.1) is its first tenth."""
    classes: tuple[str, ...]
    """Question classes, all equally likely."""

    def __post_init__(self) -> None:
        rule = f"an integer of at least {MIN_PAGE_TOKENS}"
        _require(_is_count(self.page_tokens, MIN_PAGE_TOKENS), "page_tokens", rule, self.page_tokens)
        is_whole = _is_count(self.length_tokens, 1) and self.length_tokens % self.page_tokens == 0
        rule = f"a positive multiple of page_tokens ({self.page_tokens})"
        _require(is_whole, "length_tokens", rule, self.length_tokens)
        region = self.fact_region
        is_region = len(region) == 2 and all(map(_is_share, region)) and region[0] <= region[1]
        _require(is_region, "fact_region", "two shares in [0, 1], the lower one first", list(region))
        is_known = bool(self.classes) and all(name in list(KINDS) for name in self.classes)
        _require(is_known, "classes", f"some of {', '.join(KINDS)}", list(self.classes))

    @property
    def num_pages(self) -> int:
        """Pages of the archive."""
        return self.length_tokens // self.page_tokens

    @property
    def max_page_chars(self) -> int:
        """No page, with what may stand before or behind it, has more characters."""
        return math.ceil(_MAX_CHARS_PER_TOKEN * self.page_tokens) + _MAX_EXTRA_CHARS


def as_tuple(name: str, value: Any) -> tuple[Any, ...]:
    """A list of the configuration.

    Raises:
        ValueError: it is none.
    """
    _require(isinstance(value, (list, tuple)), name, "a list", value)
    return tuple(value)


def _is_count(value: Any, least: int) -> bool:
    return type(value) is int and value >= least


def _is_share(value: Any) -> bool:
    return type(value) in (int, float) and 0.0 <= value <= 1.0


def _require(holds: bool, name: str, rule: str, value: Any) -> None:
    if not holds:
        raise ValueError(f"{name} must be {rule}, got {value!r}")
