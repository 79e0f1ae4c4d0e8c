"""Environment variables of every run: set or taken away, so that a process behaves as the configuration says.

Read: what Ray made of RAY_AUTH_MODE; the Makefile reads SEGUE_CPU_INDEX. What keeps a run off the network is set by
`actors/loopback.py`; what DeepSpeed wants to know of a learner's rank, by `learner/backend.py` and the learner's actor.
"""

import os

_AUTH_MODE = "RAY_AUTH_MODE"


def driver_environment() -> dict[str, str]:
    """Variables of the driver, to be set before Ray is imported.

    RAY_USAGE_STATS_ENABLED: 0 sends nothing about this run anywhere.
    RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO: 0 leaves device variables of actors without a GPU alone.
    RAY_DEDUP_LOGS, RAY_DEDUP_LOGS_SKIP_REGEX: leave out every line that Ray would print into the run's own, pages of
        them where a node is lost; what befell an actor the run says itself.
    MLFLOW_LOGGING_LEVEL: WARNING, so that it does not write into what the run says.
    WANDB_ERROR_REPORTING, MLFLOW_DISABLE_TELEMETRY: keep these packages, where a run uses them, from telling their
        makers of it.
    """
    return {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_DEDUP_LOGS": "1",
        "RAY_DEDUP_LOGS_SKIP_REGEX": ".",
        "WANDB_ERROR_REPORTING": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_LOGGING_LEVEL": "WARNING",
    }


def actor_environment(threads: int) -> dict[str, str]:
    """Variables of an actor's process, in force before its libraries load.

    Args:
        threads: threads of the tensor library.

    OMP_NUM_THREADS, MKL_NUM_THREADS: threads of the tensor library's pools.
    MKL_CBWR: AUTO,STRICT, so that a row of a matrix product has the same bits whatever other rows there are; what an
        episode samples then does not depend on those played beside it.
    TOKENIZERS_PARALLELISM: false keeps the tokenizer from starting threads of its own.
    TORCH_COMPILE_DISABLE: 1, so that no optimiser compiles C++ at its first step.
    """
    return {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "MKL_CBWR": "AUTO,STRICT",
        "TOKENIZERS_PARALLELISM": "false",
        "TORCH_COMPILE_DISABLE": "1",
    }


def apply_driver_environment() -> None:
    """Put `driver_environment` into this process."""
    os.environ.update(driver_environment())


def forget_authentication_mode() -> None:
    """Take RAY_AUTH_MODE from this process before it starts a Ray of its own.

    Unset, Ray turns its token on for the cluster that it starts, whatever a shell may have said of another one.
    """
    os.environ.pop(_AUTH_MODE, None)


def has_token_authentication() -> bool:
    """True where the Ray of this process asks for a token: it says so in RAY_AUTH_MODE when it starts."""
    return os.environ.get(_AUTH_MODE, "").lower() == "token"
