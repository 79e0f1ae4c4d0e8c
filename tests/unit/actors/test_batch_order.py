"""Which groups make a batch, by hand; whole runs are in tests/property/test_controller_schedules.py."""

from segue.actors.batch_order import Place, next_batch


def places(*pairs: tuple[int, int]) -> list[Place]:
    """Of (number, oldest step)."""
    return [Place(number=number, oldest_step=oldest_step) for number, oldest_step in pairs]


def chosen(ready: list[Place], in_flight: list[Place], *, step: int, max_staleness: int | None, count: int = 2):
    batch = next_batch(ready, in_flight, count=count, step=step, max_staleness=max_staleness)
    return None if batch is None else [place.number for place in batch]


def test_the_example_of_the_docstring() -> None:
    assert chosen(places((3, 0), (1, 0)), places((0, 0), (2, 0)), step=0, max_staleness=1) == [1, 3]
    # groups 4 and 5 were begun at step 1 and finished first
    assert chosen(places((4, 1), (5, 1)), places((0, 0), (2, 0)), step=1, max_staleness=1) is None
    assert chosen(places((0, 0), (4, 1), (5, 1)), places((2, 0)), step=1, max_staleness=1) is None
    assert chosen(places((0, 0), (2, 0), (4, 1)), places((5, 1)), step=1, max_staleness=1) == [0, 2]


def test_a_batch_waits_before_more_groups_are_due_than_one_batch_holds() -> None:
    # begun at step 0, groups 1 and 2 must both have trained after steps 1 and 2, so step 1 needs one of them
    assert chosen(places((3, 1)), places((1, 0), (2, 0)), step=1, max_staleness=2, count=1) is None
    assert chosen(places((2, 0), (3, 1)), places((1, 0)), step=1, max_staleness=2, count=1) == [2]
    # where only one is due, the young one may overtake it
    assert chosen(places((3, 1)), places((1, 0)), step=1, max_staleness=2, count=1) == [3]


def test_nothing_that_is_played_is_waited_for_in_vain() -> None:
    # group 0 is past the bound already, as a restore may leave it: waiting for the young group 9 would not mend that
    assert chosen(places((0, 0), (1, 0), (2, 0)), places((9, 5)), step=5, max_staleness=1) == [0, 1]


def test_a_group_that_has_trained_only_fills_a_batch() -> None:
    used = Place(number=0, oldest_step=0, is_used=True)
    assert chosen([used, *places((5, 1), (6, 1))], [], step=1, max_staleness=1) == [5, 6]
    assert chosen([used, *places((5, 1))], places((6, 1)), step=1, max_staleness=1) == [5, 0]


def test_where_nothing_ages_the_order_is_that_of_the_tasks() -> None:
    assert chosen(places((1, 0)), places((0, 0)), step=4, max_staleness=None, count=1) is None
    assert chosen(places((0, 0)), places((1, 0)), step=4, max_staleness=None, count=1) == [0]
