"""Killed after each rename and removal, a replacement leaves one whole folder under the name."""

import shutil
from pathlib import Path

import pytest

from segue.actors.replacement import finish_replacements, replace_folder


class Killed(BaseException):
    """Nothing that would still be done happens."""


def make_folder(path: Path, text: str) -> Path:
    path.mkdir()
    for name in ("first", "second"):
        (path / name).write_text(text)
    return path


def whole_texts(path: Path) -> set[str]:
    return {(path / name).read_text() for name in ("first", "second")}


def test_the_new_folder_stands_where_the_old_one_stood(tmp_path: Path) -> None:
    target = make_folder(tmp_path / "target", "old")
    replace_folder(make_folder(tmp_path / ".new", "new"), target)
    assert whole_texts(target) == {"new"}
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


@pytest.mark.parametrize(("num_done", "left"), [(0, "old"), (1, "old"), (2, "new"), (3, "new")])
def test_a_kill_at_any_point_leaves_one_of_both_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_done: int, left: str
) -> None:
    target = make_folder(tmp_path / "target", "old")
    new = make_folder(tmp_path / ".new", "new")
    done: list[str] = []

    def killed_after(change):
        def run(*arguments, **options):
            if len(done) == num_done:
                raise Killed
            done.append(change.__name__)
            return change(*arguments, **options)

        return run

    def remove_half(path: Path, **_: object) -> None:
        (path / "first").unlink()

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Path, "rename", killed_after(Path.rename))
        patch.setattr(shutil, "rmtree", killed_after(remove_half))
        replace_folder(new, target)
        raise Killed
    assert done == ["rename", "rename", "remove_half"][:num_done]
    finish_replacements(tmp_path)
    assert whole_texts(target) == {left}
    assert {path.name for path in tmp_path.iterdir()} <= {"target", ".new"}
