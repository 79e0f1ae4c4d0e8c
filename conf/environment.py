"""Every environment variable that Segue reads or sets, in one place.

Read: none while a run is going on; the Makefile alone reads SEGUE_CPU_INDEX. Set, so that a process behaves as the
configuration says whatever the shell had:
"""

import os


def driver_environment() -> dict[str, str]:
    """Variables of the driver, to be set before Ray is imported.

    RAY_USAGE_STATS_ENABLED: 0 sends nothing about this run anywhere.
    RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO: 0 leaves device variables of actors without a GPU alone.
    RAY_DEDUP_LOGS: 0 repeats lines of several actors as they are.
    """
    return {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_DEDUP_LOGS": "0",
    }


def actor_environment(threads: int) -> dict[str, str]:
    """Variables of an actor's process, in force before its libraries load.

    Args:
        threads: threads of the tensor library.

    OMP_NUM_THREADS, MKL_NUM_THREADS: threads of the tensor library's pools.
    TOKENIZERS_PARALLELISM: false keeps the tokenizer from starting threads of its own.
    TORCH_COMPILE_DISABLE: 1, so that no optimiser compiles C++ at its first step.
    """
    return {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "false",
        "TORCH_COMPILE_DISABLE": "1",
    }


def apply_driver_environment() -> None:
    """Put `driver_environment` into this process."""
    os.environ.update(driver_environment())
