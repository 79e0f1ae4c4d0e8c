"""What is made of episodes that were played. Over real environments: test_checker.py."""

from dataclasses import replace

from segue.conf.schema import EnvConfig
from segue.envs.check_judge import judge
from segue.envs.check_play import Played, find_difference
from segue.envs.check_report import Finding, Report, Verdict
from segue.envs.reply import Inspection, ResetReply, StepReply
from segue.envs.tool import ToolCall, ToolSpec, object_schema

INSPECTION = Inspection(is_foreign=False, has_demonstrator=False)


def make_played(*, slowest_s: float = 0.1, description: str = "Go.", num_calls: int = 1, **changes: object) -> Played:
    """An episode of one tool, whose last call ends it."""
    schema = object_schema({f"argument_{number}": {"type": "string"} for number in range(num_calls)})
    tools = (ToolSpec(name="go", description=description, parameters=schema),)
    end = {"terminated": True, "truncated": False, "info": {"is_success": True}, "reward_terms": {"pay": 1.0}}
    return Played(
        seed=0,
        begin=ResetReply(observation="begin", system="", tools=tools, info={}),
        calls=[ToolCall(name="go")],
        replies=[StepReply(**{"observation": "end", **end, **changes})],  # type: ignore[arg-type]
        inspections=[INSPECTION, INSPECTION],
        slowest_s=slowest_s,
    )


def findings(*episodes: Played, config: EnvConfig | None = None) -> dict[str, Finding]:
    report = Report()
    judge(report, config or EnvConfig(call_timeout_s=1.0), list(episodes), max_calls=5)
    return {finding.check: finding for finding in report}


def test_a_call_near_its_deadline_is_noted() -> None:
    assert findings(make_played(slowest_s=0.5), make_played())["time"].verdict is Verdict.passed
    noted = findings(make_played(), make_played(slowest_s=0.51))["time"]
    assert (noted.verdict, noted.why) == (Verdict.note, "the slowest call took 0.51 s of 1 s")


def test_the_note_on_observations_that_are_cut_says_what_of_them() -> None:
    played = make_played(observation="x" * 3000)
    played.inspections = [Inspection(is_foreign=True, has_demonstrator=False, cut=["observation.map"])] * 2
    noted = findings(played)["spaces"]
    why = "observations are cut at 2000 characters, so that a policy does not see all of observation.map"
    assert (noted.verdict, noted.why) == (Verdict.note, why)


def test_a_long_declaration_of_tools_is_noted() -> None:
    # an argument takes at least 40 characters
    assert findings(make_played(num_calls=50))["tools"].verdict is Verdict.passed
    noted = findings(make_played(num_calls=100))["tools"]
    assert noted.verdict is Verdict.note and "characters of every episode" in noted.why


def test_rewards_are_named_with_their_range() -> None:
    low, high = make_played(reward_terms={"pay": -0.5, "step": 0.25}), make_played(reward_terms={"pay": 2.0})
    assert findings(low, high)["rewards"].why == "pay, step; from -0.5 to 2 in a call"
    assert findings(make_played(reward_terms={}))["rewards"].why == "arbitrary calls earned no term"


def test_ends_and_successes_are_counted() -> None:
    cut = make_played(terminated=False, truncated=True, info={"is_success": False})
    going_on = make_played(terminated=False, info={})
    found = findings(make_played(), make_played(), cut, going_on)
    assert found["ends"].why == "2 terminated, 1 truncated, of 4 episodes"
    assert found["success"].why == "said at every end; 2 of 3 arbitrary episodes succeeded"
    assert findings(make_played(info={}))["success"].verdict is Verdict.failed


def test_an_end_that_is_both_fails_a_tool_environment_and_is_a_note_of_a_foreign_one() -> None:
    for is_foreign, verdict in ((False, Verdict.failed), (True, Verdict.note)):
        played = make_played(truncated=True)
        played.inspections = [Inspection(is_foreign=is_foreign, has_demonstrator=False)] * 2
        found = findings(played)["ends"]
        assert (found.verdict, found.why) == (verdict, "an episode was terminated and truncated by one call")


def test_flags_that_may_have_been_taken_for_one_another_are_a_note() -> None:
    cut = {"terminated": False, "truncated": True, "info": {"is_success": False}}
    goes_on = {"terminated": False, "info": {}}

    def ends(*episodes: Played, max_calls: int | None = None) -> str | None:
        episodes[0].inspections = [replace(INSPECTION, max_calls=max_calls)] * 2
        found = findings(*episodes)["ends"]
        return found.why if found.verdict is Verdict.note else None

    def longer(num_calls: int, **changes: object) -> Played:
        played = make_played(**changes)
        played.calls *= num_calls
        played.replies = [*make_played(**goes_on).replies * (num_calls - 1), *played.replies]
        return played

    unbounded = "all 2 ends are truncated, and no max_episode_steps says after how many calls"
    assert ends(make_played(**cut), make_played(**cut), make_played(**goes_on)) == unbounded
    assert ends(make_played(**cut), make_played(**cut), max_calls=1) is None
    assert ends(make_played(**cut), make_played()) is None
    fixed = "each of 3 episodes was terminated after 4 calls, whatever these were"
    assert ends(longer(4), longer(4), longer(4), make_played(**goes_on)) == fixed
    # by chance; of different lengths; one that was cut; tasks of one call
    assert ends(longer(4), longer(4)) is None
    assert ends(longer(4), longer(4), longer(5)) is None
    assert ends(longer(4), longer(4), longer(4), longer(4, **cut)) is None
    assert ends(make_played(), make_played(), make_played()) is None


def test_where_nothing_ended_and_nothing_counts_as_success_the_ways_to_say_it_are_named() -> None:
    for needed_return, is_foreign, starts in (
        (None, True, "put is_success"),
        (1.0, True, "play"),
        (None, False, "play"),
    ):
        played = make_played(terminated=False, info={})
        played.inspections = [
            Inspection(is_foreign=is_foreign, has_demonstrator=False, needed_return=needed_return)
        ] * 2
        found = findings(played)["success"]
        assert (found.verdict, found.why) == (Verdict.note, "unknown: no episode ended within 5 calls")
        assert found.remedy.startswith(starts)


def test_a_difference_is_told_with_its_place() -> None:
    first = make_played().shown()
    assert find_difference(first, make_played().shown()) is None
    found = find_difference(first, make_played(observation="END").shown())
    assert found == "observation after call 1: 'end', then 'END'"
    found = find_difference(first, make_played(info={"is_success": False}).shown())
    assert found == "is_success after call 1: True, then False"
    assert find_difference(first, first[:1]) == "the episode showed 1 calls, then 0"
