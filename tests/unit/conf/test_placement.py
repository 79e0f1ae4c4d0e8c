"""Who computes on what, for machines with any number of GPUs; none is needed here. Not covered: that Ray does so."""

from collections import Counter
from itertools import product
from typing import Any

import pytest

from segue.conf.errors import ConfigError
from segue.conf.placement import devices, learner_gpus, placed, rollout_gpus
from segue.conf.schema import ClusterConfig, SegueConfig


def make_cluster(num_gpus: int, **cluster: Any) -> ClusterConfig:
    return placed(SegueConfig(cluster=ClusterConfig(**cluster)), num_gpus).cluster


def shares(cluster: ClusterConfig) -> tuple[float, float]:
    return cluster.rollout_resources["GPU"], cluster.learner_resources["GPU"]


def counts(cluster: ClusterConfig) -> tuple[int, int]:
    return cluster.num_rollout_actors, cluster.num_learner_ranks


def test_without_a_gpu_two_actors_of_each_kind_compute_on_the_cpu() -> None:
    cluster = make_cluster(0)
    assert (counts(cluster), shares(cluster)) == ((2, 2), (0, 0))
    assert (rollout_gpus(cluster, 0), learner_gpus(cluster)) == ([], [])
    assert devices(cluster) == {"rollout": "2 actors on cpu", "learner": "2 ranks on cpu"}


def test_gpus_that_are_there_are_shared_by_one_actor_of_each_kind_without_being_told() -> None:
    for num_gpus in (1, 8):
        cluster = make_cluster(num_gpus)
        assert (counts(cluster), shares(cluster)) == ((num_gpus, num_gpus), (0.5, 0.5))
        assert sorted(rollout_gpus(cluster, num_gpus)) == learner_gpus(cluster) == list(range(num_gpus))
    one = devices(make_cluster(1))
    assert one == {"rollout": "1 actor on cuda, 0.5 of a GPU each", "learner": "1 rank on cuda, 0.5 of a GPU each"}


@pytest.mark.parametrize(
    ("num_gpus", "given", "expected"),
    [
        # three actors and a rank on the only GPU: a quarter each; four of them: a fifth
        (1, {"rollout_actors": 3}, ((3, 1), (0.25, 0.25))),
        (1, {"rollout_actors": 4}, ((4, 1), (0.2, 0.2))),
        # thirds are rounded down, so that three fit
        (1, {"rollout_actors": 2}, ((2, 1), (0.3333, 0.3333))),
        # the actor takes the GPU without a rank
        (2, {"rollout_actors": 1, "learner_ranks": 1}, ((1, 1), (1.0, 1.0))),
        # one kind says its part, the other has what is left
        (1, {"rollout_actors": 2, "rollout_resources": {"GPU": 0.25}}, ((2, 1), (0.25, 0.5))),
        (1, {"rollout_actors": 2, "learner_resources": {"GPU": 0.6}}, ((2, 1), (0.2, 0.6))),
        (1, {"rollout_resources": {"GPU": 0.3}, "learner_resources": {"GPU": 0.7}}, ((1, 1), (0.3, 0.7))),
        # a kind that is sent to the CPU leaves the GPUs to the other one
        (2, {"learner_resources": {"GPU": 0}}, ((2, 2), (1.0, 0))),
        (4, {"learner_resources": {"GPU": 0}}, ((4, 2), (1.0, 0))),
        (4, {"rollout_resources": {"GPU": 0}}, ((2, 4), (0, 1.0))),
        (4, {"rollout_resources": {"GPU": 0}, "learner_resources": {"GPU": 0}}, ((2, 2), (0, 0))),
    ],
)
def test_what_is_not_given_is_derived(num_gpus: int, given: dict[str, Any], expected: Any) -> None:
    cluster = make_cluster(num_gpus, **given)
    assert (counts(cluster), shares(cluster)) == expected
    # what stands in it is taken as given the next time
    assert make_cluster(num_gpus, **{name: getattr(cluster, name) for name in ClusterConfig.__slots__}) == cluster


def test_no_gpu_is_given_away_twice_nor_in_part_left_over() -> None:
    for num_gpus, num_actors in product(range(1, 5), range(1, 10)):
        for num_ranks in range(1, num_gpus + 1):
            cluster = make_cluster(num_gpus, rollout_actors=num_actors, learner_ranks=num_ranks)
            share = shares(cluster)[0]
            assert shares(cluster) == (share, share)
            seats = Counter(rollout_gpus(cluster, num_gpus)) + Counter(learner_gpus(cluster))
            assert sum(seats.values()) == num_actors + num_ranks
            assert max(Counter(learner_gpus(cluster)).values()) == 1
            busiest = max(seats.values())
            assert share * busiest <= 1 + 1e-12 < (share + 1e-4) * busiest


@pytest.mark.parametrize(
    ("num_gpus", "given", "message"),
    [
        (
            0,
            {"rollout_resources": {"GPU": 0.5}},
            "cluster.rollout_resources.GPU must be 0 where torch sees no GPU",
        ),
        (
            0,
            {"learner_resources": {"GPU": 1}},
            "cluster.learner_resources.GPU must be 0 where torch sees no GPU",
        ),
        (
            1,
            {"learner_ranks": 2},
            r"cluster.learner_ranks must be at most the GPUs of this machine \(1\), one",
        ),
        (
            1,
            {"rollout_resources": {"GPU": 1}},
            "cluster.rollout_resources.GPU and .* got 1 and nothing for 1 rollout actors and 1 learner ranks on one",
        ),
        (
            2,
            {"rollout_actors": 3, "rollout_resources": {"GPU": 0.4}, "learner_resources": {"GPU": 0.4}},
            "cluster.rollout_resources.GPU and .* got 0.4 and 0.4 for 2 rollout actors and 1 learner ranks on one",
        ),
        # 16 groups of 8 are 128 trajectories
        (129, {}, r"cluster.learner_ranks must be at most the trajectories of a step \(128\), got 129"),
        (
            0,
            {"address": "auto", "learner_resources": {"GPU": 0.5}},
            "cluster.learner_resources.GPU must be 0, or above 0.5 for several ranks, got 0.5",
        ),
    ],
)
def test_gpus_that_are_not_there_or_not_enough_are_refused(num_gpus: int, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}"):
        make_cluster(num_gpus, **given)


def test_a_cluster_that_is_there_is_asked_for_what_is_said_and_for_no_gpu_unsaid() -> None:
    given = {"rollout_resources": {"GPU": 0.25, "player": 1}, "learner_resources": {"trainer": 1}}
    # this machine's own GPUs are of no account
    for num_gpus in (0, 8):
        cluster = make_cluster(num_gpus, address="auto", **given)
        assert (counts(cluster), shares(cluster)) == ((2, 2), (0.25, 0))
        assert cluster.rollout_resources == {"GPU": 0.25, "player": 1}
    one = make_cluster(0, address="auto", learner_ranks=1, learner_resources={"GPU": 0.5})
    assert (counts(one), shares(one)) == ((2, 1), (0, 0.5))
