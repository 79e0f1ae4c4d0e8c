"""What Ray's own errors at the start mean, in words that name the remedy. Pure text: nothing here imports Ray."""

import re

_VERSIONS = re.compile(r"Version mismatch:.*?Ray: (\S+)\s+Python: (\S+).*?Ray: (\S+)\s+Python: (\S+)", re.DOTALL)


def explain_version_clash(error: BaseException) -> str | None:
    """What to do where a cluster runs another Ray or Python than this process; None for any other error.

    Args:
        error: as `ray.init` raised it.

    Example:
        "a cluster to join must run the same Ray and Python, got Ray 2.9.0 with Python 3.10.1 there and Ray 2.60.0 with
        Python 3.11.7 here; install ray==2.60.0 under Python 3.11.7 on every node and start the cluster again, or leave
        cluster.address out to start one"
    """
    found = _VERSIONS.search(str(error))
    if found is None:
        return None
    their_ray, their_python, our_ray, our_python = found.groups()
    return (
        f"a cluster to join must run the same Ray and Python, got Ray {their_ray} with Python {their_python} there and "
        f"Ray {our_ray} with Python {our_python} here; install ray=={our_ray} under Python {our_python} on every node "
        "and start the cluster again, or leave cluster.address out to start one"
    )
