"""Matrices dealt out to ranks: each goes to one that holds a part of it, and loads come out even."""

import numpy as np
import torch

from segue.learner.muon_plan import Plan, Shard, plan_updates


def plans_of(borders: dict[str, list[int]], blocks: dict[str, tuple[int, int, int]], bucket_numel: int) -> list[Plan]:
    """One of each rank; all parameters lie in one tensor."""
    num_ranks, tensor = len(next(iter(borders.values()))) - 1, torch.zeros(0)
    plans = []
    for rank in range(num_ranks):
        shards, offset = [], 0
        for name, ends in borders.items():
            shards.append(Shard(name=name, offset=offset, borders=np.array(ends)))
            offset += ends[rank + 1] - ends[rank]
        plans.append(plan_updates({tensor: shards}, blocks, rank, bucket_numel)[tensor])
    return plans


def test_matrices_are_made_whole_where_a_part_lies_and_little_is_to_do():
    # two ranks: of six 2 x 2 matrices each holds three, or two and halves of a third and a fourth
    blocks = {"even": (6, 2, 2), "odd": (5, 2, 2), "large": (1, 4, 8)}
    borders = {"even": [0, 12, 24], "odd": [0, 10, 20], "large": [0, 16, 32]}
    first, second = plans_of(borders, blocks, bucket_numel=1000)
    assert [(part.name, part.elements) for part in first.whole] == [("even", slice(0, 12)), ("odd", slice(0, 8))]
    assert [(part.name, part.elements) for part in second.whole] == [("even", slice(12, 24)), ("odd", slice(12, 20))]
    # loads are even so far: the large matrix goes to the first, and the small one to the other
    assert [bucket.matrices for bucket in first.buckets] == [[(1, 4, 8)]]
    assert [bucket.matrices for bucket in second.buckets] == [[(1, 2, 2)]]
    # the first keeps 16 elements of its own for the large one, and sends 2 of the small one
    assert (first.buckets[0].num_sent, first.buckets[0].num_received) == ([16, 2], [16, 16])
    assert (second.buckets[0].num_sent, second.buckets[0].num_received) == ([16, 2], [2, 2])
    assert [part.held for part in first.buckets[0].parts] == [slice(22, 38), slice(20, 22)]
    assert second.buckets[0].places == [slice(0, 2), slice(2, 4)]


def test_ranks_agree_on_what_travels_in_every_bucket():
    # each of 40 matrices of 6 x 10 cut among 7 ranks as stage 3 does, of a stack of 9 and of one that all hold
    blocks = {"stack": (9, 6, 10)} | {f"m{n}": (1, 6, 10) for n in range(40)}
    borders = {
        name: [min(rank * -(-count * 60 // 7), count * 60) for rank in range(8)] for name, (count, *_) in blocks.items()
    }
    plans = plans_of(borders, blocks, bucket_numel=100)
    counts = {len(plan.buckets) for plan in plans}
    # 700 elements hold eleven matrices
    cut = 40 + len({end // 60 for end in borders["stack"] if end % 60})
    assert counts == {-(-cut // 11)}
    for number in range(counts.pop()):
        sent = np.array([plan.buckets[number].num_sent for plan in plans])
        received = np.array([plan.buckets[number].num_received for plan in plans])
        assert (sent == received.T).all()
    made = [
        sum(n for bucket in plan.buckets for n, *_ in bucket.matrices)
        + sum(part.elements.stop - part.elements.start for part in plan.whole) // 60
        for plan in plans
    ]
    assert sum(made) == 49
    assert max(made) - min(made) <= 1
    # what a rank updates is there once, be it whole or a part
    for rank, plan in enumerate(plans):
        held = [part.held for part in plan.whole] + [part.held for bucket in plan.buckets for part in bucket.parts]
        numel = sum(ends[rank + 1] - ends[rank] for ends in borders.values())
        assert sorted(n for place in held for n in range(place.start, place.stop)) == list(range(numel))


def test_whole_matrices_are_worked_on_a_bucket_at_a_time():
    (plan,) = plans_of({"stack": [0, 40]}, {"stack": (10, 2, 2)}, bucket_numel=15)
    assert [part.elements for part in plan.whole] == [slice(0, 12), slice(12, 24), slice(24, 36), slice(36, 40)]
    assert not plan.buckets
