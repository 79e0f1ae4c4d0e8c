"""The closing table and the summary, from evaluations as they are stored."""

from actor_cases import make_episode

from segue.actors.episode import Episode
from segue.actors.evaluation import evaluate
from segue.actors.group_record import GroupRecord
from segue.actors.process_meter import Usage
from segue.actors.summary import build_summary, rows_before_and_after
from segue.actors.totals import Totals
from segue.conf.schema import SegueConfig
from segue.rollout.trajectory import Outcome


def figures(num_solved: int, num_failed: int) -> dict:
    info = {"question_class": "max", "query_correct": True}
    episodes = [make_episode(info=info)] * num_solved + [make_episode(info=info, outcome=Outcome.failure)] * num_failed
    return evaluate(episodes).to_json()


def make_record(episodes: tuple[Episode, ...]) -> GroupRecord:
    return GroupRecord(
        number=0,
        task_id="train-0000000",
        group_id="train-0000000.0",
        file="",
        digest="",
        tokens_by_version=(),
        made_by="rollout-0",
        episodes=episodes,
        rollout_s=0.0,
        num_text_tokens=7,
    )


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


def test_restores_are_every_beginning_but_the_first() -> None:
    launches = [
        {"command": "train", "restored_steps": [0, 2], "started_at": "t0"},
        {"command": "train", "restored_steps": [5], "started_at": "t1"},
    ]
    summary = build_summary(SegueConfig(seed=3), launches, {"steps": 9}, status="finished")
    assert summary["restores"] == [
        {"incarnation": 1, "at_step": 2, "launched_at": "t0"},
        {"incarnation": 2, "at_step": 5, "launched_at": "t1"},
    ]
    assert (summary["steps"], summary["seed"], summary["status"]) == (9, 3, "finished")


def test_totals_go_through_a_checkpoint_and_add_the_launches_costs() -> None:
    totals = Totals()
    info = {"query_correct": True, "is_success": True, "level": 1}
    episodes = (make_episode(info=info), make_episode(info={"query_correct": False}, outcome=Outcome.failure))
    totals.add_batch([make_record(episodes), make_record(episodes)])
    usage = Usage(cpu_s=10.0, memory_bytes=5, peak_memory_bytes=7, num_processes=1)
    stored = totals.with_costs(30.0, usage)
    again = Totals.from_json(stored)
    later = again.with_costs(5.0, Usage(cpu_s=1.0, memory_bytes=5, peak_memory_bytes=6, num_processes=1))
    assert (later["wall_s"], later["cpu_s"], later["peak_memory_bytes"]) == (35.0, 11.0, 7)
    assert later["outcomes"] == {"success": 2, "failure": 2} and later["checks"] == {"query_correct": 2}
    assert (later["num_groups"], later["num_episodes"]) == (2, 4)
    assert (later["num_tokens"], later["num_sampled_tokens"], later["num_text_tokens"]) == (400, 160, 14)
