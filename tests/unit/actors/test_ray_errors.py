"""Ray's errors in our words, on the errors that Ray itself raises."""

import platform

import pytest
from ray import __version__ as our_ray
from ray._private.utils import check_version_info

from segue.actors.ray_errors import explain_version_clash

OUR_PYTHON = platform.python_version()


@pytest.mark.parametrize(("their_ray", "their_python"), [("2.9.0", OUR_PYTHON), (our_ray, "3.10.1")])
def test_a_cluster_of_another_version_is_told_with_both_versions_and_the_remedy(
    their_ray: str, their_python: str
) -> None:
    with pytest.raises(RuntimeError) as caught:
        check_version_info({"ray_version": their_ray, "python_version": their_python}, "node 10.0.0.1:6379")
    assert explain_version_clash(caught.value) == (
        f"a cluster to join must run the same Ray and Python, got Ray {their_ray} with Python {their_python} there and "
        f"Ray {our_ray} with Python {OUR_PYTHON} here; install ray=={our_ray} under Python {OUR_PYTHON} on every node "
        "and start the cluster again, or leave cluster.address out to start one"
    )


def test_any_other_error_is_not_explained() -> None:
    assert explain_version_clash(ConnectionError("Version mismatch: none of these")) is None
