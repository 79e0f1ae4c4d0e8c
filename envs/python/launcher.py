"""The first thing that runs in the sandbox: takes on its limits, for good, then becomes the model's program.

It is given to the interpreter as text, so it imports the standard library alone. The number of processes can be bounded
only here: the kernel counts them by user namespace, and this is the first moment inside the new one.
"""

import json
import os
import resource
import sys

_NICENESS = 10
_LAST_DESCRIPTOR = 2**16
_PYTHON_FLAGS = ("-s", "-B")


def main() -> None:
    """Reads `{limits: {name: value}, ready: descriptor, program: path}` from the first argument."""
    order = json.loads(sys.argv[1])
    # whoever watches the program must get the processor first
    os.nice(_NICENESS)
    for name, value in order["limits"].items():
        resource.setrlimit(getattr(resource, name), (value, value))
    os.write(order["ready"], b"1")
    # everything but the three standard ones; the new limit does not close what was open above it
    os.closerange(3, _LAST_DESCRIPTOR)
    os.execv(sys.executable, [sys.executable, *_PYTHON_FLAGS, order["program"]])


if __name__ == "__main__":
    main()
