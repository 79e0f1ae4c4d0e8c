"""Laws of the segment schedule, on arbitrary lengths, ranks, segments and budgets.

Not covered here: that gradients do not depend on the schedule (tests/reference/test_sweeps_exactness.py).
"""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segue.conf.schema import SEGMENT_MULTIPLE
from segue.kernels.kda.layout import CHUNK
from segue.learner.schedule import RankSchedule, Segment, SegmentSchedule

PAIR_COST = 0.01
EITHER = st.booleans()


@st.composite
def plans(draw, sweep_all=EITHER):
    lengths = draw(st.lists(st.integers(1, 1500), max_size=24))
    segment = 64 * draw(st.integers(1, 6))
    budget = segment * draw(st.integers(1, 5)) + draw(st.integers(0, 63))
    arguments = {
        "lengths": lengths,
        "num_ranks": draw(st.integers(1, 4)),
        "segment_tokens": segment,
        "micro_step_tokens": budget,
        "pair_cost": PAIR_COST,
        "sweep_all": draw(sweep_all),
    }
    return arguments, SegmentSchedule.build(**arguments)


def segments_of(rank: RankSchedule) -> list[Segment]:
    return [segment for step in rank.swept + rank.last for segment in step.segments]


@given(plans())
def test_every_token_is_in_exactly_one_segment(plan):
    arguments, schedule = plan
    covered = Counter(
        (segment.trajectory, t)
        for rank in schedule.ranks
        for segment in segments_of(rank)
        for t in range(segment.start, segment.end)
    )
    expected = {(i, t): 1 for i, length in enumerate(arguments["lengths"]) for t in range(length)}
    assert covered == expected


@given(plans())
def test_a_trajectory_stays_on_one_rank_in_order_and_once_a_micro_step(plan):
    arguments, schedule = plan
    owners = [i for rank in schedule.ranks for i in rank.trajectories]
    assert sorted(owners) == list(range(len(arguments["lengths"])))
    for rank in schedule.ranks:
        reached = dict.fromkeys(rank.trajectories, 0)
        for step in rank.swept + rank.last:
            trajectories = [segment.trajectory for segment in step.segments]
            assert len(set(trajectories)) == len(trajectories)
            for segment in step.segments:
                # raises KeyError for a trajectory of another rank
                assert segment.start == reached[segment.trajectory]
                reached[segment.trajectory] = segment.end
        assert all(reached[i] == arguments["lengths"][i] for i in rank.trajectories)


@given(plans())
def test_segments_are_cut_at_multiples_and_only_the_last_is_shorter(plan):
    arguments, schedule = plan
    for rank in schedule.ranks:
        for segment in segments_of(rank):
            assert segment.start % arguments["segment_tokens"] == 0
            length = arguments["lengths"][segment.trajectory]
            assert segment.end == min(segment.start + arguments["segment_tokens"], length)


@given(plans())
def test_a_micro_step_holds_last_segments_or_none(plan):
    arguments, schedule = plan
    lengths = arguments["lengths"]
    for rank in schedule.ranks:
        swept = [segment for step in rank.swept for segment in step.segments]
        last = [segment for step in rank.last for segment in step.segments]
        assert all(segment.end == lengths[segment.trajectory] for segment in last)
        if arguments["sweep_all"]:
            assert not last
        else:
            assert all(segment.end < lengths[segment.trajectory] for segment in swept)
            assert sorted(segment.trajectory for segment in last) == list(rank.trajectories)


@given(plans())
def test_all_ranks_run_the_same_number_of_micro_steps_with_dummies_at_the_end(plan):
    _, schedule = plan
    for kind in ("swept", "last"):
        lists = [getattr(rank, kind) for rank in schedule.ranks]
        assert len({len(steps) for steps in lists}) == 1
        for steps in lists:
            dummies = [step.is_dummy for step in steps]
            assert dummies == sorted(dummies)
        # at least one rank needs each of them
        assert not lists[0] or any(not steps[-1].is_dummy for steps in lists)


@given(plans())
def test_no_micro_step_exceeds_the_token_budget(plan):
    arguments, schedule = plan
    for rank in schedule.ranks:
        for step in rank.swept + rank.last:
            assert step.num_tokens <= arguments["micro_step_tokens"]


@given(plans(sweep_all=st.just(False)))
def test_swept_segments_fill_as_few_micro_steps_as_chains_allow(plan):
    arguments, schedule = plan
    per_step = arguments["micro_step_tokens"] // arguments["segment_tokens"]
    bounds = []
    for rank in schedule.ranks:
        counts = [-(-arguments["lengths"][i] // arguments["segment_tokens"]) - 1 for i in rank.trajectories]
        # a chain cannot be shortened, and a step holds `per_step` segments; both bounds are reached for equal segments
        bounds.append(max([-(-sum(counts) // per_step), *counts], default=0))
    assert len(schedule.ranks[0].swept) == max(bounds)


@given(plans())
def test_rank_costs_differ_by_at_most_the_dearest_trajectory(plan):
    arguments, schedule = plan

    def cost(i: int) -> float:
        # a token attends to itself and all before it
        return sum(1.0 + PAIR_COST * (t + 1) for t in range(arguments["lengths"][i]))

    loads = [sum(cost(i) for i in rank.trajectories) for rank in schedule.ranks]
    dearest = max((cost(i) for i in range(len(arguments["lengths"]))), default=0.0)
    assert max(loads) - min(loads) <= dearest * (1 + 1e-9)


@given(plans())
def test_the_plan_is_a_function_of_its_arguments(plan):
    arguments, schedule = plan
    assert SegmentSchedule.build(**arguments) == schedule


def test_attended_tokens_weigh_in_the_balance():
    # 1088 tokens stand against 1024: by tokens alone the two trajectories of 64 would be shared out differently
    lengths = [1024, *[64] * 18]
    by_tokens = SegmentSchedule.build(lengths, 2, 64, 1024, pair_cost=0.0)
    with_pairs = SegmentSchedule.build(lengths, 2, 64, 1024, pair_cost=1.0)
    assert sum(lengths[i] for i in by_tokens.ranks[0].trajectories) == 1024 + 64
    assert with_pairs.ranks[0].trajectories == (0,)


def test_segments_are_whole_chunks_of_the_operator():
    # then a chunk never straddles the border of two segments, and a segment's runs are cut as the whole trajectory's
    assert SEGMENT_MULTIPLE % CHUNK == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"segment_tokens": 100}, "segment_tokens must be a multiple of 64, got 100"),
        ({"segment_tokens": 0}, "segment_tokens must be a multiple of 64, got 0"),
        ({"micro_step_tokens": 64}, "micro_step_tokens must be at least segment_tokens, 128, got 64"),
        ({"num_ranks": 0}, "num_ranks must be at least 1, got 0"),
        ({"lengths": [5, 0]}, "lengths must be at least 1, got 0"),
    ],
)
def test_impossible_arguments_are_refused(change, message):
    arguments = {"lengths": [5], "num_ranks": 1, "segment_tokens": 128, "micro_step_tokens": 128, "pair_cost": 0.0}
    with pytest.raises(ValueError, match=message):
        SegmentSchedule.build(**(arguments | change))


@given(lengths=st.lists(st.integers(1, 500), max_size=12), num_ranks=st.integers(1, 4))
def test_renumbered_plans_are_the_same_plans_of_a_rank_alone(lengths, num_ranks):
    schedule = SegmentSchedule.build(lengths, num_ranks, 64, 128, pair_cost=0.0)
    for rank in schedule.ranks:
        own = rank.renumbered()
        assert own.trajectories == tuple(range(len(rank.trajectories)))
        for steps, moved in ((rank.swept, own.swept), (rank.last, own.last)):
            back = [[(rank.trajectories[s.trajectory], s.start, s.end) for s in step.segments] for step in moved]
            assert back == [[(s.trajectory, s.start, s.end) for s in step.segments] for step in steps]
