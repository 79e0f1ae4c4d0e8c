"""Overrides and values that are secrets: what is printed and recorded of them."""

import re
from collections.abc import Mapping
from typing import Any

from segue.conf.keys import known_keys

MASK = "***"
# counts of tokens and tokenizers are no secrets
_NAME = r"(?:secret|passw|passphrase|credential|authorization|token(?!s|iz)|(?:api|access|private)_?key)"
_SECRET_NAME = re.compile(_NAME, re.IGNORECASE)
# a name in a dictionary, or a user and a password in an address
_SECRET_VALUE = re.compile(rf"{_NAME}[^,{{}}:]*:|://[^/\s]*:[^/\s]*@", re.IGNORECASE)


def mask_override(text: str) -> str:
    """An override as it may be seen: without its value where that is a secret by its key, or holds one.

    Example:
        >>> [mask_override(text) for text in ("env.kwargs.api_key=x", "env.kwargs={token: x}", "rollout.page_tokens=4")]
        ['env.kwargs.api_key=***', 'env.kwargs=***', 'rollout.page_tokens=4']
    """
    key, equals, value = text.partition("=")
    return f"{key}={MASK}" if equals and (names_secret(key) or holds_secret(value)) else text


def mask_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by dotted key as they may be seen: those of a secret's key, and those that hold one, masked."""
    return {
        key: MASK if value is not None and (names_secret(key) or holds_secret(str(value))) else value
        for key, value in values.items()
    }


def holds_secret(value: str) -> bool:
    """True where a value has a user's password in an address, or a dictionary in it an entry that says so."""
    return _SECRET_VALUE.search(value) is not None


def names_secret(key: str) -> bool:
    """True where a key, which may be one of a user's own, says that its value is a secret; no key of ours does."""
    return key.lstrip("+~") not in known_keys() and _SECRET_NAME.search(key) is not None
