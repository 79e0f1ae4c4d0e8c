"""A whole run, looked at from outside: who can reach its processes, where its secrets are, how SIGTERM ends it.

Covered: every address and socket of every process, what their servers answer without the token, what is left in files.
Not covered: a cluster that a run joins, which has its own rules.
"""

import json
import os
import re
import signal
import stat
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path

import grpc
import psutil
import pytest
from run_cases import TIMEOUT_S

OVERRIDES = (
    "run.init_from=null",
    "learner.advantage.zero_variance=keep",
    "train.groups_per_step=2",
    "train.group_size=2",
    "train.steps=1000",
    "train.checkpoint_every=1000",
    "train.eval_every=0",
    "eval.episodes=2",
    "env.variants={}",
    "rollout.max_turn_tokens=16",
    "rollout.max_sessions=8",
    "cluster.dashboard=true",
    "cluster.rollout_actors=1",
    "cluster.learner_ranks=2",
)
SECRETS = {
    "WANDB_API_KEY": "sk-3141592653589793",
    "HF_TOKEN": "sk-2718281828459045",
    "AWS_SECRET_ACCESS_KEY": "sk-1618033988749894",
}
# a call of each kind of server that Ray has: state, nodes, objects, drivers and actors, reports
GRPC_CALLS = (
    "InternalKVGcsService/InternalKVGet",
    "NodeManagerService/GetNodeStats",
    "ObjectManagerService/Pull",
    "CoreWorkerService/GetCoreWorkerStats",
    "ReporterService/GetTraceback",
)
ASK_STATE = """
import sys
from ray._raylet import GcsClient
try:
    print("nodes", len(GcsClient(address=sys.argv[1]).get_all_node_info(timeout=30)))
except Exception as error:
    print(type(error).__name__)
"""


@dataclass
class Seen:
    """What was found while the run went on, and what it left."""

    folder: Path
    token_file: Path
    token: str = ""
    addresses: list[str] = field(default_factory=list)
    """Of everything that takes connections or packets."""
    socket_paths: set[str] = field(default_factory=set)
    open_socket_paths: set[str] = field(default_factory=set)
    """Those to which a folder leads that others can enter."""
    grpc_codes: dict[tuple[str, bool], set[str]] = field(default_factory=dict)
    """(call, with the token): what the servers said."""
    http_codes: dict[str, int] = field(default_factory=dict)
    """Whose token: what the dashboard said."""
    state: dict[str, str] = field(default_factory=dict)
    """Whose token: what Ray's store of state said."""
    query_environments: list[dict[str, str]] = field(default_factory=list)
    token_mode: int = 0
    left_behind: list[psutil.Process] = field(default_factory=list)
    """Processes of the run that outlived it."""
    texts: dict[str, bytes] = field(default_factory=dict)
    """What was printed, and every file that the run and Ray left but the token's own: its path and content."""


@pytest.fixture(scope="module")
def seen() -> Iterator[Seen]:
    """A run of at least a step, with secrets in its environment and a home and temporary files of its own."""
    # short, as paths of sockets must be
    with tempfile.TemporaryDirectory(prefix="sg", dir="/tmp") as name:
        place = Path(name)
        place.chmod(0o755)
        for part in ("home", "tmp"):
            (place / part).mkdir(mode=0o755)
        yield watch_run(place)


def watch_run(place: Path) -> Seen:
    found = Seen(folder=place / "run", token_file=place / "home" / ".ray" / "auth_token")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"HOME": str(place / "home"), "TMPDIR": str(place / "tmp"), **SECRETS}
    command = [sys.executable, "-P", "-m", "segue.actors.cli.main", "train", *OVERRIDES, f"run.dir={found.folder}"]
    printed = place / "printed"
    with printed.open("w") as file:
        process = subprocess.Popen(command, env=environment, umask=0o022, stdout=file, stderr=subprocess.STDOUT)
    try:
        wait_for_step(process, found.folder / "metrics.jsonl")
        found.token, found.token_mode = found.token_file.read_text(), found.token_file.stat().st_mode
        look_around(found, process, environment, printed)
    finally:
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGTERM)
        process.wait(TIMEOUT_S)
    assert process.returncode == 130, printed.read_text()
    _, found.left_behind = psutil.wait_procs(children, timeout=20)
    files = [path for path in place.rglob("*") if path.is_file() and path != found.token_file]
    found.texts = {str(path.relative_to(place)): path.read_bytes() for path in files}
    return found


def wait_for_step(process: subprocess.Popen[bytes], metrics: Path) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not (metrics.is_file() and '"kind": "step"' in metrics.read_text()):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.2)


def look_around(found: Seen, run: subprocess.Popen[bytes], environment: dict[str, str], printed: Path) -> None:
    processes = [psutil.Process(run.pid), *psutil.Process(run.pid).children(recursive=True)]
    ports: dict[str, list[int]] = {}
    for process in processes:
        for entry in process.net_connections("inet"):
            # a socket for packets has no state
            if entry.status in (psutil.CONN_LISTEN, psutil.CONN_NONE) and entry.laddr:
                found.addresses.append(entry.laddr.ip.removeprefix("::ffff:"))
                ports.setdefault(process.name(), []).append(entry.laddr.port)
        found.socket_paths |= {entry.laddr for entry in process.net_connections("unix") if entry.laddr}
        if "segue.envs.sql.query_process" in process.cmdline():
            found.query_environments.append(process.environ())
    found.open_socket_paths = {path for path in found.socket_paths if not is_closed(Path(path))}
    for port in sorted(port for some in ports.values() for port in some):
        ask_grpc(found, port)
    tokens = {"none": None, "wrong": "0" * 64, "right": found.token}
    (dashboard,) = re.findall(r"^dashboard: (http://\S+) ", printed.read_text(), re.MULTILINE)
    (state_port,) = ports["gcs_server"]
    clean = {name: value for name, value in environment.items() if name not in SECRETS} | {"HOME": "/nonexistent"}
    for whose, token in tokens.items():
        own = clean if token is None else clean | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
        done = subprocess.run(
            [sys.executable, "-P", "-c", ASK_STATE, f"127.0.0.1:{state_port}"], env=own, capture_output=True, text=True,
            timeout=TIMEOUT_S,
        )  # fmt: skip
        found.state[whose] = done.stdout.strip()
        found.http_codes[whose] = ask_dashboard(dashboard, token)


def is_closed(path: Path) -> bool:
    """Whether a folder above keeps all others out; a socket without a path has none."""
    return path.is_absolute() and any(not parent.stat().st_mode & 0o011 for parent in path.parents)


def ask_grpc(found: Seen, port: int) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=1)
        except grpc.FutureTimeoutError:
            # speaks something else
            return
        for call in GRPC_CALLS:
            for metadata in ((), (("authorization", f"Bearer {found.token}"),)):
                try:
                    channel.unary_unary(f"/ray.rpc.{call}")(b"", timeout=10, metadata=metadata)
                    code = "OK"
                except grpc.RpcError as error:
                    code = error.code().name
                found.grpc_codes.setdefault((call, bool(metadata)), set()).add(code)


def ask_dashboard(address: str, token: str | None) -> int:
    """The status of a call that tells about the cluster."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    try:
        request = urllib.request.Request(f"{address}/api/version", headers=headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def test_no_process_can_be_reached_from_another_machine(seen: Seen) -> None:
    # Ray's servers, the dashboard, the ranks' store and their collectives
    assert len(seen.addresses) > 10
    assert {address for address in seen.addresses if not ip_address(address).is_loopback} == set()


def test_no_socket_of_a_path_can_be_reached_or_replaced_by_another_user(seen: Seen) -> None:
    assert any(path.endswith("/plasma_store") for path in seen.socket_paths)
    assert seen.open_socket_paths == set()


def test_a_client_without_the_token_is_refused(seen: Seen) -> None:
    assert seen.state == {"none": "AuthenticationError", "wrong": "AuthenticationError", "right": "nodes 1"}
    assert seen.http_codes == {"none": 401, "wrong": 403, "right": 200}
    for call in GRPC_CALLS:
        # each call is known to some servers, and none of them answers it
        assert seen.grpc_codes[call, False] == {"UNAUTHENTICATED", "UNIMPLEMENTED"}, call
        assert "OK" in seen.grpc_codes[call, True] and "UNAUTHENTICATED" not in seen.grpc_codes[call, True], call


def test_the_token_is_this_users_alone(seen: Seen) -> None:
    assert len(seen.token) == 64 and stat.S_IMODE(seen.token_mode) == 0o600


def test_a_query_process_has_no_variable_of_the_users(seen: Seen) -> None:
    assert seen.query_environments and all(environment == {} for environment in seen.query_environments)


def test_no_secret_is_printed_or_left_in_a_file(seen: Seen) -> None:
    names = {Path(name).name for name in seen.texts}
    # of the run, and of Ray's log
    assert {"printed", "config.yaml", "run.json", "metrics.jsonl", "summary.json", "gcs_server.out"} <= names, names
    for secret in (*SECRETS.values(), seen.token):
        assert [name for name, content in seen.texts.items() if secret.encode() in content] == []


def test_sigterm_ends_a_run_with_a_checkpoint_and_leaves_no_process(seen: Seen) -> None:
    assert f"segue train run.dir={seen.folder} goes on" in seen.texts["printed"].decode()
    summary = json.loads(seen.texts["run/summary.json"])
    assert summary["status"] == "interrupted" and 1 <= summary["steps"] < 1000
    assert f"run/checkpoints/step-{summary['steps']:08d}/manifest.json" in seen.texts
    assert seen.left_behind == []
