"""`envs/` runs in small processes: what it may import, and what the query process starts with."""

import json
import pkgutil
import subprocess
import sys

import segue.envs

HEAVY = ("torch", "ray", "deepspeed", "hydra", "omegaconf", "transformers", "triton")


def modules_after(statement: str) -> set[str]:
    script = f"import json, sys\n{statement}\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, check=True, timeout=60)
    return set(json.loads(done.stdout))


def test_no_module_of_envs_imports_torch_or_the_like() -> None:
    names = [module.name for module in pkgutil.walk_packages(segue.envs.__path__, "segue.envs.")]
    assert "segue.envs.sql.env" in names and "segue.envs.worker" in names
    loaded = modules_after("\n".join(f"import {name}" for name in names))
    assert loaded.isdisjoint(HEAVY)


def test_the_client_needs_no_gymnasium() -> None:
    assert "gymnasium" not in modules_after("import segue.envs.client, segue.envs.reply, segue.envs.errors")


def test_the_query_process_needs_the_standard_library_alone() -> None:
    loaded = modules_after("import segue.envs.sql.query_process")
    top = {name.partition(".")[0] for name in loaded}
    # what the interpreter itself loads from site-packages when it starts stands in this list, too
    started = {name.partition(".")[0] for name in modules_after("")}
    assert top - started - set(sys.stdlib_module_names) == {"segue"}
