"""The closing table and the summary, from evaluations as they are stored."""

from actor_cases import make_episode

from segue.actors.evaluation import evaluate
from segue.actors.process_meter import Usage
from segue.actors.summary import build_summary, rows_before_and_after
from segue.actors.totals import Totals
from segue.conf.schema import SegueConfig
from segue.rollout.trajectory import Outcome


def figures(num_solved: int, num_failed: int) -> dict:
    info = {"question_class": "max", "query_correct": True}
    episodes = [make_episode(info=info)] * num_solved + [make_episode(info=info, outcome=Outcome.failure)] * num_failed
    return evaluate(episodes).to_json()


def test_rows_stand_before_and_after_with_gaps_where_a_side_was_not_played() -> None:
    evaluations = {
        "before": {"sampled": figures(1, 3)},
        "after": {"sampled": figures(3, 1), "joins": figures(1, 1)},
    }
    assert rows_before_and_after(evaluations) == [
        ("sampled success", 0.25, 0.75),
        ("sampled query_correct", 1.0, 1.0),
        ("joins success", None, 0.5),
        ("joins query_correct", None, 1.0),
        ("  max", 0.25, 0.75),
    ]
    assert rows_before_and_after({"before": {"sampled": figures(1, 3)}})[0] == ("sampled success", 0.25, None)


def test_restores_are_every_launch_but_the_first() -> None:
    launches = [
        {"command": "train", "restored_step": 0, "started_at": "t0"},
        {"command": "train", "restored_step": 5, "started_at": "t1"},
    ]
    summary = build_summary(SegueConfig(seed=3), launches, {"steps": 9}, status="finished")
    assert summary["restores"] == [{"incarnation": 1, "at_step": 5, "started_at": "t1"}]
    assert (summary["steps"], summary["seed"], summary["status"]) == (9, 3, "finished")


def test_totals_go_through_a_checkpoint_and_add_the_launches_costs() -> None:
    totals = Totals()
    totals.num_groups = 4
    totals.outcomes.update(["success", "failure", "success"])
    usage = Usage(cpu_s=10.0, memory_bytes=5, peak_memory_bytes=7, num_processes=1)
    stored = totals.with_costs(30.0, usage)
    again = Totals.from_json(stored)
    later = again.with_costs(5.0, Usage(cpu_s=1.0, memory_bytes=5, peak_memory_bytes=6, num_processes=1))
    assert (later["wall_s"], later["cpu_s"], later["peak_memory_bytes"]) == (35.0, 11.0, 7)
    assert later["outcomes"] == {"success": 2, "failure": 1} and later["num_groups"] == 4
