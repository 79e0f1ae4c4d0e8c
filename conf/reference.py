"""The table of every key for `docs/config.md`, from the schema: defaults from its values, words from its docstrings."""

import ast
import dataclasses
import inspect
import typing
from collections.abc import Iterator
from enum import Enum
from typing import Any, cast

from segue.conf.keys import describe_type
from segue.conf.schema import SegueConfig


def key_table() -> str:
    """Every key with its type, default and meaning, as a Markdown table."""
    lines = ["| key | takes | default | meaning |", "|---|---|---|---|"]
    lines += [" | ".join(["", *row, ""]).strip() for row in _rows(SegueConfig(), "")]
    return "\n".join(lines)


def _rows(section: Any, prefix: str) -> Iterator[tuple[str, str, str, str]]:
    meanings = _field_docstrings(type(section))
    for field in dataclasses.fields(section):
        key, value = prefix + field.name, getattr(section, field.name)
        if dataclasses.is_dataclass(value):
            yield from _rows(value, f"{key}.")
        else:
            yield f"`{key}`", describe_type(key), f"`{_default(value)}`", meanings.get(field.name, "")


def _default(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_default, value))}]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return value.name if isinstance(value, Enum) else str(value)


def _field_docstrings(section: type) -> dict[str, str]:
    """The string that stands under a field, on one line."""
    definition = cast(ast.ClassDef, ast.parse(inspect.getsource(section)).body[0])
    found = {}
    for statement, follower in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            text = _string(follower)
            if text is not None:
                found[statement.target.id] = " ".join(text.split()).replace("|", "\\|")
    assert found.keys() <= typing.get_type_hints(section).keys(), section
    return found


def _string(statement: ast.stmt) -> str | None:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return cast(str, statement.value.value)
    return None
