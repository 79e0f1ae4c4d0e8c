"""Keeps what a Ray of the run's own writes to the user who runs it, and deletes it where nobody needs it.

Ray opens its folders, and with them its sockets and logs, to every user of the machine; and it writes the token, with
which anybody can have it run code, so that all can read it who can enter the user's home.
"""

import contextlib
import os
import secrets
import shutil
import stat
import tempfile
from pathlib import Path

from segue.conf.schema import ClusterConfig

_FOLDER = "RAY_TMPDIR"
# where Ray looks for the token before it takes the file in the user's home
_TOKEN_VARIABLES = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
_TOKEN_BYTES = 32
# a socket's path has room for 107 characters, of which Ray takes up to 72 behind its folder
_MAX_FOLDER_CHARS = 35
_SHORT_FOLDER = Path("/tmp")


def keep_ray_files_private(cluster: ClusterConfig) -> None:
    """Where the run starts a Ray of its own, let nobody else read or change its files; before Ray is imported.

    Sets RAY_TMPDIR, unless it is set, in this process and so in all that Ray starts.
    """
    if cluster.address is not None:
        return
    if _FOLDER not in os.environ:
        os.environ[_FOLDER] = str(_private_folder())
    if not any(name in os.environ for name in _TOKEN_VARIABLES):
        # where it cannot be written Ray says so
        with contextlib.suppress(OSError):
            _close_token(Path.home() / ".ray" / "auth_token")


def ray_folder() -> Path:
    """Where Ray keeps the sockets and logs of its sessions; the last one by the name of `session_latest`."""
    return Path(os.environ.get(_FOLDER, tempfile.gettempdir())) / "ray"


def delete_session(folder: Path) -> None:
    """Delete what a session of Ray's has left, as far as that can be; its servers may be there no more.

    Args:
        folder: of the session.
    """
    shutil.rmtree(folder, ignore_errors=True)
    # another run's Ray may replace a link meanwhile
    with contextlib.suppress(OSError):
        for link in folder.parent.iterdir():
            # Ray replaces no link that leads nowhere
            if link.is_symlink() and folder in (target := link.readlink(), *target.parents):
                link.unlink()


def _private_folder() -> Path:
    """The folder for temporary files where it is this user's alone, else one in it."""
    shared = Path(tempfile.gettempdir())
    if _is_private(shared) and len(str(shared)) <= _MAX_FOLDER_CHARS:
        return shared
    own = shared / f"segue-{os.getuid()}"
    if len(str(own)) > _MAX_FOLDER_CHARS:
        own = _SHORT_FOLDER / own.name
    with contextlib.suppress(FileExistsError):
        own.mkdir(mode=0o700)
    # anybody could have made one of that name
    return own if _is_private(own) else Path(tempfile.mkdtemp(prefix="segue-", dir=own.parent))


def _is_private(folder: Path) -> bool:
    status = folder.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077


def _close_token(path: Path) -> None:
    """Let nobody else read the token; where there is none, write one before Ray does."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        path.chmod(0o600)
        return
    with open(descriptor, "w") as file:
        file.write(secrets.token_hex(_TOKEN_BYTES))
