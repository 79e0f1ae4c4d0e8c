"""What can be said of Ray without one; the rest is in tests/e2e/test_supervise.py and tests/e2e/test_cluster.py."""

import pytest

from segue.actors.ray_files import ray_folder
from segue.actors.ray_runtime import _explain_no_ray, describe_lack
from segue.conf.schema import ClusterConfig

NODES = [{"CPU": 8, "GPU": 2}, {"CPU": 8, "GPU": 2}, {"CPU": 64}]


@pytest.mark.parametrize(
    ("demand", "free", "told"),
    [
        ({"CPU": 1, "GPU": 2}, [{"CPU": 8, "GPU": 1}, {"CPU": 1, "GPU": 2}, {}], None),
        # enough in all, and on no node: parts of two, or each kind on another
        ({"CPU": 1, "GPU": 2}, [{"CPU": 8, "GPU": 1}, {"CPU": 8, "GPU": 1}, {"CPU": 64}], "CPU 1, GPU 2 free; `ray "),
        ({"CPU": 1, "GPU": 2}, [{"GPU": 2}, {"CPU": 8}, {"CPU": 64}], "CPU 1, GPU 2 free; `ray status` shows more"),
        # never, whatever becomes free
        ({"CPU": 9, "GPU": 0.5}, NODES, "CPU 9, GPU 0.5"),
        ({"player": 1}, NODES, "player 1"),
    ],
)
def test_a_place_is_on_one_node(demand: dict[str, float], free: list[dict[str, float]], told: str | None) -> None:
    found = describe_lack(demand, NODES, free)
    assert (found or "").startswith("" if told is None else f"no node of the cluster has {told}")
    assert (found is None) == (told is None)


def test_a_ray_that_did_not_start_is_told_with_its_first_line_and_the_folder_of_its_logs() -> None:
    told = _explain_no_ray(ClusterConfig(), RuntimeError("no room.\nand more"))
    assert told == (
        "Ray did not start: RuntimeError: no room; free memory, disk or processes, then run the command again; "
        f"Ray's own words are in {ray_folder()}/session_latest/logs"
    )
