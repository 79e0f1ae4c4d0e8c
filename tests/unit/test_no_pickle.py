"""Nothing that is read can run: no module that turns data into code is used, and files that hold a pickle are refused.

Covered: every Python file outside of tests, by its syntax tree; each kind of file and message that is read, with a bomb
in its place. Not covered: Ray's own messages between the run's processes, which are pickles (docs/security.md), and
what the libraries do inside.
"""

import ast
import io
import pickle
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from segue.actors.checkpoint_store import CONTROLLER_NAME, LEARNER_NAME, CheckpointStore
from segue.actors.run_folder import RunFolder
from segue.conf.errors import ConfigError
from segue.conf.load import load_stored_config
from segue.envs.frames import FrameError, read_frame
from segue.learner.failure import reproduce
from segue.learner.learner import Learner
from segue.model.checkpoint import import_checkpoint
from segue.model.tokenizer.load import load_tokenizer
from segue.rollout.trajectory_file import TrajectoryFileError, load_group, open_group

ROOT = Path(__file__).parents[2]
FOLDERS = ("actors", "benchmarks", "conf", "envs", "examples", "kernels", "learner", "model", "rollout")

# modules that make objects or code of bytes; multiprocessing speaks pickle over its pipes
MODULES = {
    "pickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib", "jsonpickle", "multiprocessing", "runpy",
    "code",
}  # fmt: skip
# functions that do
FUNCTIONS = {
    "eval", "exec", "compile", "__import__", "importlib.import_module", "torch.load", "torch.save", "torch.hub.load",
    "torch.jit.load", "torch.package.PackageImporter", "torch.distributed.broadcast_object_list",
    "torch.distributed.all_gather_object", "numpy.load", "numpy.save", "numpy.fromfile", "yaml.load", "yaml.full_load",
    "yaml.unsafe_load", "hydra.utils.instantiate", "hydra.utils.call", "hydra.utils.get_class",
    "hydra.utils.get_method", "ray.cloudpickle", "pandas.read_pickle",
}  # fmt: skip
# arguments that allow it
ARGUMENTS = {"allow_pickle", "trust_remote_code", "weights_only", "unsafe_load"}
# (file, what it uses): why that runs nothing that somebody else wrote
ALLOWED = {
    ("actors/cli/main.py", "importlib.import_module"): "names a module of the list of commands",
    ("actors/cli/completion.py", "importlib.import_module"): "likewise",
    ("envs/user_module.py", "importlib.import_module"): "the modules that the user's own configuration names",
    ("learner/user_loss.py", "importlib.import_module"): "likewise, of a loss",
    ("learner/corpus.py", "numpy.save"): "numbers, which need no pickle",
    ("learner/corpus.py", "numpy.load"): "refuses pickles unless it is told not to, and that would be found",
}


def found_in(source: str) -> set[str]:
    """What a source uses of the above, by its full name, whether it is called or only named."""
    tree = ast.parse(source)
    names: dict[str, str] = {}
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                names[alias.asname or alias.name.partition(".")[0]] = alias.name if alias.asname else ""
                found |= {alias.name} if alias.name.partition(".")[0] in MODULES else set()
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                found |= {node.module} if node.module.partition(".")[0] in MODULES else set()
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg in ARGUMENTS:
            found.add(node.arg)
        elif isinstance(node, ast.Name | ast.Attribute | ast.ImportFrom):
            found |= set(full_names(node, names)) & FUNCTIONS
    return found


def full_names(node: ast.AST, names: dict[str, str]) -> Iterator[str]:
    """What a name, a dotted name or an import speaks of, with aliases undone."""
    if isinstance(node, ast.ImportFrom):
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
        return
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    # not a field or a variable of that name
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        yield ".".join([names.get(node.id) or node.id, *reversed(parts)])


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import pickle", {"pickle"}),
        ("def f():\n    from pickle import loads", {"pickle"}),
        ("import cloudpickle.cloudpickle as c", {"cloudpickle.cloudpickle"}),
        ("from multiprocessing.connection import Client", {"multiprocessing.connection"}),
        ("import torch\ntorch.load('x', weights_only=True)", {"torch.load", "weights_only"}),
        ("import torch as t\nread = t.load", {"torch.load"}),
        ("from torch import load as read\nread('x')", {"torch.load"}),
        ("import numpy as np\nnp.load('x', allow_pickle=True)", {"numpy.load", "allow_pickle"}),
        ("import yaml\nyaml.load(text, Loader=yaml.SafeLoader)", {"yaml.load"}),
        ("import torch.distributed as dist\ndist.all_gather_object(a, b)", {"torch.distributed.all_gather_object"}),
        ("from hydra.utils import instantiate", {"hydra.utils.instantiate"}),
        ("list(map(eval, texts))", {"eval"}),
        ("AutoModel.from_pretrained(name, trust_remote_code=flag)", {"trust_remote_code"}),
        (
            "import re\nre.compile('x')\nmodel.eval()\nself.exec(1)\neval: int = 0\nyaml.safe_load(text)\nfile.load(0)",
            set(),
        ),
    ],
)
def test_what_is_refused_is_found(source: str, found: set[str]) -> None:
    assert found_in(source) == found


def test_nothing_turns_data_into_code() -> None:
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    assert len(paths) > 150
    uses = {(str(path.relative_to(ROOT)), use) for path in paths for use in found_in(path.read_text())}
    # also: nothing is allowed any more that is not used
    assert uses == ALLOWED.keys()


class Bomb:
    """Makes a folder when it is unpickled."""

    def __init__(self, target: Path) -> None:
        self._target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.mkdir, (self._target,)


@pytest.fixture(params=["pickle", "torch"])
def bomb(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[bytes]:
    """Bytes that run when they are unpickled, as a plain pickle or as torch writes one; nothing ran at the end."""
    target = tmp_path / "went off"
    stream = io.BytesIO()
    if request.param == "torch":
        torch.save({"weight": torch.zeros(2), "bomb": Bomb(target)}, stream)
    else:
        pickle.dump(Bomb(target), stream)
    yield stream.getvalue()
    assert not target.exists()


def test_a_bomb_goes_off_where_it_is_unpickled(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Bomb(tmp_path / "went off")))
    assert (tmp_path / "went off").is_dir()


def test_a_group_file_that_holds_a_pickle_is_refused(bomb: bytes, tmp_path: Path) -> None:
    path = tmp_path / "train-0000000.0.safetensors"
    path.write_bytes(bomb)
    with pytest.raises(TrajectoryFileError, match="must be a whole"):
        load_group(path)
    with pytest.raises(TrajectoryFileError, match=r"must (be a whole|have SHA-256)"):
        open_group(path, digest="0" * 64)


def test_a_frame_that_holds_a_pickle_is_refused(bomb: bytes) -> None:
    for data in (bomb, struct.pack(">I", len(bomb)) + bomb):
        with pytest.raises(FrameError):
            read_frame(io.BytesIO(data))
    # beside a header it is bytes, and stays bytes
    header = b'{"attachments": [%d]}' % len(bomb)
    frame = read_frame(io.BytesIO(struct.pack(">I", len(header)) + header + bomb))
    assert frame is not None and frame.attachments == (bomb,)


def test_a_weight_file_that_holds_a_pickle_is_refused(bomb: bytes, tmp_path: Path) -> None:
    config = ROOT / "model" / "warm_start" / "config.json"
    (tmp_path / "config.json").write_bytes(config.read_bytes())
    (tmp_path / "pytorch_model.bin").write_bytes(bomb)
    with pytest.raises(ValueError, match=r"model\.safetensors is not a safetensors file"):
        import_checkpoint(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(bomb)
    with pytest.raises(ValueError, match=r"model\.safetensors is not a safetensors file"):
        import_checkpoint(tmp_path)
    (tmp_path / "config.json").write_bytes(bomb)
    with pytest.raises(ValueError, match=r"config\.json"):
        import_checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["state.safetensors", "facts.json"])
def test_a_learners_state_that_holds_a_pickle_is_refused(bomb: bytes, tmp_path: Path, name: str) -> None:
    (tmp_path / "facts.json").write_text('{"num_updates": 1}')
    save_file({"weight": torch.zeros(2)}, tmp_path / "state.safetensors")
    (tmp_path / name).write_bytes(bomb)
    learner = cast(Learner, SimpleNamespace(_leave_zero_gradient=lambda: None))
    with pytest.raises((SafetensorError, ValueError)):
        Learner.load(learner, tmp_path)


@pytest.mark.parametrize("name", ["manifest.json", CONTROLLER_NAME, f"{LEARNER_NAME}/state.safetensors"])
def test_a_checkpoint_that_holds_a_pickle_is_named(bomb: bytes, tmp_path: Path, name: str) -> None:
    store = CheckpointStore(tmp_path, keep_last=2)
    for step in (1, 2):
        store.save(step, {}, lambda folder: (folder / "state.safetensors").write_bytes(b"weights") and None)
    (store.path(2) / name).write_bytes(bomb)
    step, _, faults = store.load_newest()
    assert (step, len(faults)) == (1, 1)


def test_a_kept_micro_step_that_holds_a_pickle_is_refused(bomb: bytes, tmp_path: Path) -> None:
    (tmp_path / "step.safetensors").write_bytes(bomb)
    with pytest.raises(SafetensorError):
        reproduce(tmp_path / "step.safetensors", ROOT / "model" / "warm_start")


def read_launches(folder: Path) -> None:
    RunFolder(folder).read_launches()


@pytest.mark.parametrize(
    ("name", "read"), [("config.yaml", load_stored_config), ("run.json", read_launches)], ids=["config", "launches"]
)
def test_a_run_folder_that_holds_a_pickle_is_refused(
    bomb: bytes, tmp_path: Path, name: str, read: Callable[[Path], Any]
) -> None:
    (tmp_path / name).write_bytes(bomb)
    with pytest.raises(ConfigError):
        read(tmp_path)


def test_a_tokenizer_that_holds_a_pickle_is_refused(bomb: bytes, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(bomb)
    with pytest.raises(ValueError):
        load_tokenizer(str(tmp_path / "tokenizer.json"))


@pytest.mark.parametrize("line", ["seed: {}", "env:\n  kwargs:\n    x: {}", "run:\n  dir: {}"])
def test_yaml_that_would_make_objects_makes_none(tmp_path: Path, line: str) -> None:
    target = tmp_path / "went off"
    tag = f"!!python/object/apply:os.mkdir ['{target}']"
    (tmp_path / "config.yaml").write_text(f"defaults:\n- base_config\n- _self_\n{line.format(tag)}\n")
    with pytest.raises(ConfigError):
        load_stored_config(tmp_path)
    assert not target.exists()


def test_a_target_in_a_stored_configuration_is_not_called(tmp_path: Path) -> None:
    target = tmp_path / "went off"
    text = f"env:\n  kwargs:\n    _target_: os.mkdir\n    _args_: ['{target}']"
    (tmp_path / "config.yaml").write_text(f"defaults:\n- base_config\n- _self_\n{text}\n")
    config = load_stored_config(tmp_path)
    assert config.env.kwargs == {"_target_": "os.mkdir", "_args_": [str(target)]}
    assert not target.exists()
