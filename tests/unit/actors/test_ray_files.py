"""Who can read what Ray writes; that Ray takes it up is in tests/e2e/test_security.py."""

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from segue.actors.ray_files import delete_session, keep_ray_files_private, ray_folder
from segue.conf.schema import ClusterConfig


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder for temporary files that others may enter; its path is short."""
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


@pytest.fixture(autouse=True)
def _machine(tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A home that others may enter, and no word on Ray."""
    for name in ("RAY_TMPDIR", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        # set first, so that what is set here is taken back
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_folder_and_token_are_this_users_alone(tmp_path: Path, temporary: Path) -> None:
    keep_ray_files_private(ClusterConfig())
    folder, token = Path(os.environ["RAY_TMPDIR"]), tmp_path / "home" / ".ray" / "auth_token"
    assert folder == temporary / f"segue-{os.getuid()}"
    assert (mode(folder), mode(token), mode(token.parent)) == (0o700, 0o600, 0o700)
    text = token.read_text()
    # 256 bits, as Ray's own
    assert len(bytes.fromhex(text)) == 32
    del os.environ["RAY_TMPDIR"]
    keep_ray_files_private(ClusterConfig())
    assert (os.environ["RAY_TMPDIR"], token.read_text()) == (str(folder), text)


def test_a_token_that_others_could_read_is_closed_and_kept(tmp_path: Path) -> None:
    token = tmp_path / "home" / ".ray" / "auth_token"
    token.parent.mkdir()
    token.write_text("of another tool")
    assert mode(token) == 0o666
    keep_ray_files_private(ClusterConfig())
    assert (token.read_text(), mode(token)) == ("of another tool", 0o600)


@pytest.mark.parametrize("other", ["open", "link", "file"])
def test_a_folder_that_somebody_could_have_prepared_is_left_alone(tmp_path: Path, temporary: Path, other: str) -> None:
    name = temporary / f"segue-{os.getuid()}"
    if other == "open":
        name.mkdir(mode=0o777)
    elif other == "link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        name.symlink_to(tmp_path / "elsewhere")
    else:
        name.write_text("")
    keep_ray_files_private(ClusterConfig())
    folder = Path(os.environ["RAY_TMPDIR"])
    assert folder != name and (folder.parent, mode(folder)) == (temporary, 0o700)


def test_a_private_folder_for_temporary_files_is_good_as_it_is(temporary: Path) -> None:
    temporary.chmod(0o700)
    keep_ray_files_private(ClusterConfig())
    assert os.environ["RAY_TMPDIR"] == str(temporary)


@pytest.mark.parametrize("is_private", [True, False])
def test_a_folder_whose_path_leaves_no_room_for_sockets_is_not_taken(
    temporary: Path, monkeypatch: pytest.MonkeyPatch, is_private: bool
) -> None:
    long = temporary / ("x" * 30)
    long.mkdir(mode=0o700 if is_private else 0o755)
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    keep_ray_files_private(ClusterConfig())
    folder = Path(os.environ["RAY_TMPDIR"])
    assert (folder.parent, mode(folder)) == (Path("/tmp"), 0o700)


def test_what_the_user_has_set_and_a_cluster_that_is_there_stay_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_ray_files_private(ClusterConfig(address="auto"))
    assert "RAY_TMPDIR" not in os.environ
    monkeypatch.setenv("RAY_TMPDIR", "/somewhere")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "of this cluster")
    keep_ray_files_private(ClusterConfig())
    assert os.environ["RAY_TMPDIR"] == "/somewhere"
    assert not (tmp_path / "home" / ".ray").exists()


def test_a_session_is_deleted_with_the_links_into_it_and_no_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    ours, other = (ray_folder() / name for name in ("session_1", "session_2"))
    assert ray_folder() == tmp_path / "ray"
    for session in (ours, other):
        (session / "logs").mkdir(parents=True)
    # Ray makes no link where there is one that leads nowhere
    (tmp_path / "ray" / "session_latest").symlink_to(ours)
    (tmp_path / "ray" / "scraped.json").symlink_to(ours / "scraped.json")
    (tmp_path / "ray" / "theirs").symlink_to(other)
    delete_session(ours)
    assert sorted(path.name for path in (tmp_path / "ray").iterdir()) == ["session_2", "theirs"]
    # nor does a folder that somebody has emptied meanwhile undo a run that ended well
    shutil.rmtree(tmp_path / "ray")
    delete_session(ours)
