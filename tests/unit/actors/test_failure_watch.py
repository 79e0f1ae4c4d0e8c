"""What counts as failure in a row, and what ends it."""

import pytest
from actor_cases import make_episode, make_group, make_record_of

from segue.actors.errors import RunError
from segue.actors.evaluation import evaluate
from segue.actors.failure_watch import FailureWatch, heed_evaluation
from segue.actors.faults import Fault
from segue.rollout.trajectory import Outcome

FAILED = (Outcome.environment_error, Outcome.infrastructure_error)


def test_one_episode_that_came_to_an_end_of_its_own_ends_the_row() -> None:
    watch = FailureWatch(2)
    for outcomes in (FAILED, FAILED, (Outcome.environment_error, Outcome.failure), FAILED, FAILED):
        watch.see(make_record_of(make_group(0), outcomes))
    with pytest.raises(RunError, match="no episode of 3 groups in a row"):
        watch.see(make_record_of(make_group(0), FAILED))


def test_the_most_common_cause_is_named_and_earlier_rows_do_not_count() -> None:
    watch = FailureWatch(1)
    for _ in range(3):
        watch.see(make_record_of(make_group(0), FAILED, cause="long mended"))
        watch.see(make_record_of(make_group(0), (Outcome.success, Outcome.success)))
    watch.see(make_record_of(make_group(0), FAILED, cause="no such table"))
    with pytest.raises(RunError, match=r"most often: no such table$"):
        watch.see(make_record_of(make_group(0), FAILED, cause="no such table"))


def test_a_group_without_a_token_to_train_has_failed() -> None:
    watch = FailureWatch(0)
    with pytest.raises(RunError, match=r"most often: truncated_time$"):
        watch.see(make_record_of(make_group(0, []), (Outcome.truncated_time, Outcome.truncated_time)))


BROKEN = [make_episode(outcome=outcome, info={"cause": f"cause {n}"}) for n, outcome in enumerate(FAILED)]


def test_an_evaluation_tells_of_episodes_that_broke_down_and_names_the_first_cause() -> None:
    faults: list[Fault] = []
    heed_evaluation("sampled", evaluate([make_episode(), *BROKEN]), faults.append, may_end=True)
    heed_evaluation("sampled", evaluate([make_episode(outcome=Outcome.malformed)]), faults.append, may_end=True)
    assert [(fault.who, fault.what) for fault in faults] == [
        ("evaluation (sampled)", "2 of 3 episodes did not come to an end of their own; the first: cause 0")
    ]


def test_a_first_evaluation_of_breakdowns_alone_ends_the_run_and_a_later_one_is_told() -> None:
    faults: list[Fault] = []
    with pytest.raises(RunError, match=r"\(sampled, 2 episodes\) came to an end of its own; the first: cause 0$"):
        heed_evaluation("sampled", evaluate(BROKEN), faults.append, may_end=True)
    # what was trained is kept; one call, tried greedily again and again, may be what breaks an environment
    heed_evaluation("sampled", evaluate(BROKEN), faults.append, may_end=False)
    heed_evaluation("greedy", evaluate(BROKEN), faults.append, may_end=True)
    assert [fault.who for fault in faults] == ["evaluation (sampled)", "evaluation (greedy)"]
