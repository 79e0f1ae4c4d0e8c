"""Text that a policy, a program or an environment wrote, as a terminal may be given it."""

import unicodedata

# control characters, and halves of characters, which no encoding can say
_HIDDEN = ("Cc", "Cs")


def visible(text: str) -> str:
    """Control characters but line breaks and tabs as escapes: a terminal would act on them.

    Example:
        >>> visible("a\\tb\\x1b[2J")
        'a\\tb\\\\x1b[2J'
    """
    return "".join(
        sign if sign in "\n\t" or unicodedata.category(sign) not in _HIDDEN else repr(sign)[1:-1] for sign in text
    )
