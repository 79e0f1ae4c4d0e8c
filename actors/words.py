"""Numbers of things in words."""


def counted(number: int, thing: str) -> str:
    """`1 step`, `9 steps`, `1,024 steps`.

    Args:
        thing: in the singular, of a regular plural.
    """
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"
