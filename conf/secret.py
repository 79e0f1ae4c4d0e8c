"""Overrides that give a secret: what is printed and recorded of them."""

import re

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
    return f"{key}={MASK}" if equals and (names_secret(key) or _SECRET_VALUE.search(value)) else text


def names_secret(key: str) -> bool:
    """True where a key, which may be one of a user's own, says that its value is a secret; no key of ours does."""
    return key.lstrip("+~") not in known_keys() and _SECRET_NAME.search(key) is not None
