"""The files that an interpreter needs: what a sandbox shows of this machine, and nothing else is shown."""

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from segue.envs.errors import EnvironmentSetupError

# relocated, so that no path in the sandbox tells of this machine
FOLDER = "/python"
EXECUTABLE = f"{FOLDER}/bin/python3"
LIBRARIES = f"{FOLDER}/so"
_PACKAGE_FOLDERS = ("site-packages", "dist-packages")
_TIMEOUT_S = 30.0
_DESCRIBE = (
    "import json, os, sys, sysconfig\n"
    "print(json.dumps([os.path.realpath(sys.executable), sysconfig.get_path('stdlib'), sys.platlibdir]))"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Interpreter:
    """Where an interpreter's files lie, and where the sandbox shows them."""

    binds: tuple[tuple[str, str], ...]
    """(path here, path in the sandbox), read-only."""
    hidden: tuple[str, ...]
    """Folders in the sandbox to be covered: packages that somebody installed."""


def find_interpreter(path: str) -> Interpreter:
    """Finds an interpreter's executable, standard library and shared libraries.

    Args:
        path: of an interpreter that every user of this machine may read and run.

    Raises:
        EnvironmentSetupError: it is missing, or no interpreter.
    """
    try:
        executable, stdlib, library_folder = json.loads(_output_of([path, "-I", "-S", "-c", _DESCRIBE]))
        extensions = sorted(str(file) for file in Path(stdlib, "lib-dynload").glob("*.so"))
        libraries = _read_ldd(_output_of(["ldd", executable, *extensions]))
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise EnvironmentSetupError(
            f"env.kwargs.interpreter={path} is no interpreter for the sandbox: {error}; "
            "remedy: apt-get install python3, or name another one"
        ) from error
    stdlib_inside = f"{FOLDER}/{library_folder}/{os.path.basename(stdlib)}"
    hidden = tuple(f"{stdlib_inside}/{name}" for name in _PACKAGE_FOLDERS if Path(stdlib, name).is_dir())
    return Interpreter(binds=((executable, EXECUTABLE), (stdlib, stdlib_inside), *libraries), hidden=hidden)


def _read_ldd(text: str) -> tuple[tuple[str, str], ...]:
    """Shared libraries by the names under which they are looked for.

    Example:
        >>> _read_ldd("libm.so.6 => /lib/libm.so.6 (0x7f)\\n/lib64/ld-linux.so.2 (0x80)\\nlibtk.so => not found")
        (('/lib/libm.so.6', '/python/so/libm.so.6'), ('/lib64/ld-linux.so.2', '/lib64/ld-linux.so.2'))
    """
    binds: dict[str, str] = {}
    for line in text.splitlines():
        name, _, rest = line.strip().partition(" => ")
        path = (rest or name).rpartition(" (")[0]
        if not path.startswith("/"):
            continue
        # the loader stands in the executable by its whole path; libraries are looked for by name
        inside = f"{LIBRARIES}/{name}" if rest and not name.startswith("/") else (name if rest else path)
        binds[inside] = path
    return tuple((path, inside) for inside, path in binds.items())


def _output_of(command: list[str]) -> str:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, timeout=_TIMEOUT_S, env={}
    )
    return done.stdout
