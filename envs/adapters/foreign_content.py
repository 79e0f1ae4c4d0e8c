"""What a foreign tool gave, as one text."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

NOTHING = "none"
"""Where there is nothing to say."""


def content_text(blocks: Iterable[Mapping[str, Any]], value: Any = None) -> str:
    """Content blocks of the Model Context Protocol: their texts, a line each; what is no text by its type.

    Args:
        blocks: each with its `type`, as JSON.
        value: said instead where there is no block.
    """
    texts = [_block_text(block) for block in blocks]
    if not texts and value is not None:
        return value_text(value)
    return "\n".join(texts) or NOTHING


def value_text(value: Any) -> str:
    """A JSON value: text as it is, a dictionary as lines by name, anything else as JSON."""
    if isinstance(value, Mapping):
        parts = {name: inner for name, inner in value.items() if inner is not None}
        if len(parts) == 1:
            return value_text(next(iter(parts.values())))
        return "\n".join(f"{name}: {_in_line(inner)}" for name, inner in parts.items()) or NOTHING
    return _in_line(value) or NOTHING


def _in_line(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _block_text(block: Mapping[str, Any]) -> str:
    text = block.get("text", (block.get("resource") or {}).get("text"))
    return text if isinstance(text, str) else f"[{block.get('type')}, not shown]"
