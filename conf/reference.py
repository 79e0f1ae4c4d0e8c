"""The tables of `docs/config.md`, from the schema: defaults from its values, words from its docstrings."""

import ast
import dataclasses
import inspect
import typing
from collections.abc import Iterator
from enum import Enum
from typing import Any, cast

from segue.conf.keys import ELEMENT, describe_type
from segue.conf.schema import SegueConfig, StageConfig

STAGES = f"pretrain.curriculum.stages{ELEMENT}."


def key_table() -> str:
    """Every key with its type, default and meaning, as a Markdown table."""
    return _table(_rows(SegueConfig(), "", ""))


def stage_table() -> str:
    """The same of the keys of one stage of a curriculum."""
    return _table(_rows(StageConfig(), "", STAGES))


def _table(rows: Iterator[tuple[str, str, str, str]]) -> str:
    lines = ["| key | takes | default | meaning |", "|---|---|---|---|"]
    return "\n".join([*lines, *(" | ".join(["", *row, ""]).strip() for row in rows)])


def _rows(section: Any, prefix: str, where: str) -> Iterator[tuple[str, str, str, str]]:
    """Args:
    prefix: of the keys as they are shown.
    where: what stands before that in the schema.
    """
    meanings = _field_docstrings(type(section))
    for field in dataclasses.fields(section):
        key, value = prefix + field.name, getattr(section, field.name)
        if dataclasses.is_dataclass(value):
            yield from _rows(value, f"{key}.", where)
        else:
            yield f"`{key}`", describe_type(where + key), f"`{_default(value)}`", meanings.get(field.name, "")


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
