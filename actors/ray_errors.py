"""What Ray's own errors mean, in words that name the remedy. Pure text: nothing here imports Ray."""

import re

_VERSIONS = re.compile(r"Version mismatch:.*?Ray: (\S+)\s+Python: (\S+).*?Ray: (\S+)\s+Python: (\S+)", re.DOTALL)

_NODE = re.compile(r"\bip[:=] ?([0-9a-fA-F.:]*[0-9a-fA-F])")
_NEVER_BEGAN = "The actor never ran"
_UNAVAILABLE = "is unavailable: "
# of a process that said nothing: its connection closed, and Ray, which reaps it, does not tell its exit status
_ENDED_SILENTLY = re.compile(r"unexpectedly exits with a connection error|End of file\.")
_OUT_OF_MEMORY = re.compile(r"Memory on the node \(IP: ([0-9a-fA-F.:]+)")
_NODE_DIED = re.compile(r"node was terminated \w+: (.*)")
# what a module or a folder that a node lacks is told by
_MISSING = ("EnvironmentSetupError", "FileNotFoundError", "ImportError", "ModuleNotFoundError")


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


def explain_loss(text: str) -> str:
    """What befell an actor, on one line.

    Args:
        text: of Ray's error; the cause stands last, before guesses at it.
    """
    if _UNAVAILABLE in text:
        return "it cannot be reached: its process or its node is gone"
    died = _NODE_DIED.search(text)
    if died is not None:
        return f"its node {node_of(text)} is gone: {died.group(1)}"
    full = _OUT_OF_MEMORY.search(text)
    if full is not None:
        return f"Ray ended it, as the memory of its node {full.group(1)} was full"
    if _ENDED_SILENTLY.search(text):
        return "its process ended without a word: killed by a signal (9, where memory was full), or crashed"
    # that it never ran stands below the cause
    told = [line for line in text.strip().splitlines() if _NEVER_BEGAN not in line]
    return last_line("\n".join(told)).partition(" Some common causes")[0]


def has_never_begun(text: str) -> bool:
    """Whether an actor was lost with its node before it began, of which Ray's error tells.

    Not where its own process ended before it had begun: that is the actor's loss, and comes again.
    """
    return _NEVER_BEGAN in text and _NODE_DIED.search(text) is not None


def explain_failure(owner: str, what: str, *, node: str | None) -> str:
    """What an actor's code raised, on one line.

    Args:
        what: the error's type and message.
        node: where, on a cluster of several machines; None on the one at which the command was given.

    Example:
        "rollout-0 on node 10.0.0.7 failed: ModuleNotFoundError: No module named 'mine'; every node must have what the
        command and its configuration name: the same packages installed, and folders on a file system that each sees"
    """
    place = owner if node is None else f"{owner} on node {node}"
    kind, _, message = what.partition(": ")
    # one that is in our words already
    if kind == "RunError":
        return f"{place}: {message}"
    is_missing = node is not None and kind in _MISSING
    remedy = (
        "; every node must have what the command and its configuration name: the same packages installed, and folders "
        "on a file system that each sees"
    )
    return f"{place} failed: {what}" + (remedy if is_missing else "")


def node_of(text: str) -> str | None:
    """Address of the node that Ray's error tells of."""
    found = _NODE.search(text)
    return None if found is None else found.group(1)


def last_line(text: str) -> str:
    """The cause, which stands below a traceback."""
    return text.strip().splitlines()[-1].strip()
