"""How many actors a run has and what they compute on: settled before anything starts.

In a Ray of the run's own, rollout actors and learner ranks share the machine's GPUs in equal parts, unless told
otherwise, and each actor has its GPU named here. On a cluster that is there, Ray is asked for what the configuration
says, and chooses.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from segue.conf.errors import ConfigError
from segue.conf.rules import every_rank_has_work
from segue.conf.schema import CPU_PROCESSES, ClusterConfig, SegueConfig

GPU = "GPU"
"""Ray's name of the resource."""

# Ray counts parts of a GPU in ten-thousandths
_PARTS = 10_000


def placed(config: SegueConfig, num_gpus: int) -> SegueConfig:
    """The configuration with counts of actors and the share that each has of a GPU.

    Args:
        num_gpus: of this machine; of no account where the run joins a cluster.
    Returns:
        The same with `cluster.rollout_actors` and `.learner_ranks` given, and with `GPU` in `.rollout_resources` and
        `.learner_resources`: 0 where they compute on the CPU.
    Raises:
        ConfigError: the GPUs that are asked for are not there, are given away twice, or are too few for the ranks.
    """
    cluster = config.cluster
    if cluster.address is not None:
        settled = _settled(cluster, 0, [share or 0 for share in _asked(cluster)])
        _refuse_ranks_side_by_side(settled)
    elif num_gpus:
        settled = _settled(cluster, num_gpus, _shares(cluster, num_gpus))
    else:
        _refuse_what_is_not_there(cluster)
        settled = _settled(cluster, 0, [0, 0])
    result = replace(config, cluster=settled)
    every_rank_has_work(result)
    return result


def rollout_gpus(cluster: ClusterConfig, num_gpus: int) -> list[int]:
    """The GPU of each rollout actor by number, in a Ray of the run's own; empty where they compute on the CPU.

    From the last GPU to the first: one that has no rank comes before one that has.
    """
    if device_type(cluster.rollout_resources) == "cpu":
        return []
    return [num_gpus - 1 - index % num_gpus for index in range(cluster.num_rollout_actors)]


def learner_gpus(cluster: ClusterConfig) -> list[int]:
    """The GPU of each learner rank, likewise: one each, since their collectives take no two ranks on one."""
    return [] if device_type(cluster.learner_resources) == "cpu" else list(range(cluster.num_learner_ranks))


def device_type(resources: Mapping[str, Any]) -> str:
    """`cuda` for actors with a share of a GPU, else `cpu`.

    Args:
        resources: `rollout_resources` or `learner_resources`.
    """
    return "cuda" if resources.get(GPU, 0) > 0 else "cpu"


def devices(cluster: ClusterConfig) -> dict[str, str]:
    """What each kind of actor of a placed cluster computes on, in words."""
    kinds = {
        "rollout": (cluster.num_rollout_actors, "actor", cluster.rollout_resources),
        "learner": (cluster.num_learner_ranks, "rank", cluster.learner_resources),
    }
    words = {}
    for kind, (count, noun, resources) in kinds.items():
        share = f", {resources[GPU]:g} of a GPU each" if resources[GPU] else ""
        words[kind] = f"{count} {noun}{'' if count == 1 else 's'} on {device_type(resources)}{share}"
    return words


def _asked(cluster: ClusterConfig) -> list[float | None]:
    """Shares of a rollout actor and of a learner rank; None where nothing is said."""
    return [cluster.rollout_resources.get(GPU), cluster.learner_resources.get(GPU)]


def _settled(cluster: ClusterConfig, num_gpus: int, shares: Sequence[float]) -> ClusterConfig:
    """With these shares, and counts of one for each GPU where they are not given."""
    rollout_share, learner_share = shares
    rollout_actors, learner_ranks = (
        count if count is not None else num_gpus if num_gpus and share else CPU_PROCESSES
        for count, share in zip((cluster.rollout_actors, cluster.learner_ranks), shares, strict=True)
    )
    return replace(
        cluster,
        rollout_actors=rollout_actors,
        learner_ranks=learner_ranks,
        rollout_resources={**cluster.rollout_resources, GPU: rollout_share},
        learner_resources={**cluster.learner_resources, GPU: learner_share},
    )


def _shares(cluster: ClusterConfig, num_gpus: int) -> list[float]:
    """Shares of a rollout actor and of a learner rank, of which those not given take what is left in equal parts."""
    asked = _asked(cluster)
    # who sits where depends on who takes part, not on how large a part is
    trial = _settled(cluster, num_gpus, [1 if share is None else share for share in asked])
    if len(learner_gpus(trial)) > num_gpus:
        raise ConfigError(
            f"cluster.learner_ranks must be at most the GPUs of this machine ({num_gpus}), one each, got "
            f"{trial.learner_ranks}; leave it out, or have the learner compute on the CPU with "
            "'cluster.learner_resources={GPU: 0}'"
        )
    seats = [Counter(rollout_gpus(trial, num_gpus)), Counter(learner_gpus(trial))]
    smallest = 1.0
    for gpu in range(num_gpus):
        counts = [seat[gpu] for seat in seats]
        left = 1.0 - sum(count * (share or 0) for count, share in zip(counts, asked, strict=True))
        num_sharing = sum(count for count, share in zip(counts, asked, strict=True) if share is None)
        # sums of decimals are off by a little
        part = math.floor(left / max(num_sharing, 1) * _PARTS + 1e-6) / _PARTS
        if part < 0 or (num_sharing and part == 0):
            raise ConfigError(
                "cluster.rollout_resources.GPU and cluster.learner_resources.GPU must leave each actor its part of a "
                f"GPU, got {' and '.join('nothing' if share is None else f'{share:g}' for share in asked)} for "
                f"{counts[0]} rollout actors and {counts[1]} learner ranks on one"
            )
        smallest = min(smallest, part) if num_sharing else smallest
    return [smallest if share is None else share for share in asked]


def _refuse_what_is_not_there(cluster: ClusterConfig) -> None:
    for kind, share in zip(("rollout", "learner"), _asked(cluster), strict=True):
        if share:
            raise ConfigError(
                f"cluster.{kind}_resources.GPU must be 0 where torch sees no GPU, got {share}; is a driver there, is "
                "it a torch built for CUDA, and is CUDA_VISIBLE_DEVICES not empty?"
            )


def _refuse_ranks_side_by_side(cluster: ClusterConfig) -> None:
    share = cluster.learner_resources[GPU]
    if cluster.num_learner_ranks > 1 and 0 < share <= 0.5:
        raise ConfigError(
            f"cluster.learner_resources.GPU must be 0, or above 0.5 for several ranks, got {share}: Ray would put two "
            "on one GPU, which their collectives do not take"
        )
