"""`check_contract`: environments that keep the contract pass, and a fault fails the check that is about it alone."""

import asyncio
import re
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from segue.conf.schema import EnvConfig
from segue.envs.check_report import CHECKS, Finding, Verdict
from segue.envs.checker import check_contract

FOLDER = str(Path(__file__).parent)
ROOT = Path(__file__).parents[3]
CONFIG = EnvConfig(import_folder=FOLDER)
WALK = replace(CONFIG, id="broken_envs:Walk-v0")
COUNTER = replace(CONFIG, id="broken_envs:Counter-v0")


def check(config: EnvConfig, *, num_seeds: int = 2, max_calls: int = 30) -> dict[str, Finding]:
    """Findings by check; nothing is left running."""
    before = set(psutil.Process().children(recursive=True))
    report = asyncio.run(check_contract(config, num_seeds=num_seeds, max_calls=max_calls))
    assert set(psutil.Process().children(recursive=True)) <= before
    findings = {finding.check: finding for finding in report}
    assert list(findings) == list(CHECKS)
    return findings


def with_verdict(findings: dict[str, Finding], verdict: Verdict) -> set[str]:
    return {check for check, finding in findings.items() if finding.verdict is verdict}


def test_tool_environments_that_keep_the_contract_pass_every_check(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (tmp_path / "guess_number.py").write_text(code)
    documented = EnvConfig(id="guess_number:GuessNumber-v0", import_folder=str(tmp_path))
    for config, returns in (
        (EnvConfig(), "from 1.2 to 1.2"),
        (COUNTER, "from 0.9 to 0.9"),
        (documented, "from 1 to 1"),
    ):
        findings = check(config, num_seeds=3, max_calls=100)
        assert with_verdict(findings, Verdict.passed) == set(CHECKS), findings
        # all of it, on every seed
        assert findings["demonstrator"].why == f"the expert succeeds on 3 seeds, with returns {returns}"


@pytest.mark.parametrize(
    "config",
    [
        WALK,
        EnvConfig(id="FrozenLake-v1"),
        EnvConfig(id="CartPole-v1"),
        EnvConfig(id="foreign_envs:Arm-v0", import_folder=FOLDER),
    ],
    ids=lambda config: config.id,
)
def test_foreign_environments_that_keep_the_contract_pass(config: EnvConfig) -> None:
    findings = check(config, max_calls=100)
    notes = {"demonstrator", "spaces"} if "Arm" in config.id else {"demonstrator"}
    assert with_verdict(findings, Verdict.note) == notes
    assert with_verdict(findings, Verdict.passed) == set(CHECKS) - notes


@pytest.mark.parametrize(
    ("config", "fault", "failed", "why"),
    [
        (WALK, "raise in the constructor", "builds", "cannot be built: RuntimeError: no such thing"),
        (replace(WALK, start_timeout_s=2.0), "hang in the constructor", "builds", "did not start within 2 s"),
        (WALK, "unknown action space", "builds", "actions of Walk must be Discrete, .* got OneOf"),
        (WALK, "raise in reset", "begins", "RuntimeError: cannot begin"),
        (WALK, "raise on the second seed", "begins", "RuntimeError: cannot begin with 1"),
        (
            replace(WALK, variants={"hard": {"level": 2}}),
            "options",
            "begins",
            "reset of episode env.variants.hard: .*no opt",
        ),
        (WALK, "lack", "begins", "the judge is down"),
        (WALK, "old reset", "begins", "must return observation and info from reset"),
        (COUNTER, "no task", "begins", "begin must return a Task, got 'go'"),
        (WALK, "raise in step", "runs", "RuntimeError: broken inside"),
        (WALK, "exit in step", "runs", "SystemExit: 3"),
        (WALK, "crash", "runs", r"the env worker died under it \(exit status 7\)"),
        (WALK, "old step", "runs", "must return observation, reward, terminated, truncated and info from step"),
        (COUNTER, "picky", "runs", "ValueError: amount must be positive"),
        (COUNTER, "text result", "runs", "tool add must return a ToolResult, got 'text'"),
        (replace(WALK, call_timeout_s=1.0), "hang in reset", "time", "reset of episode 0 took longer than 1 s"),
        (replace(WALK, call_timeout_s=1.0), "hang in step", "time", "step of episode 0 took longer than 1 s"),
        (COUNTER, "no tools", "tools", "there are none"),
        (COUNTER, "names", "tools", r"tools must have different names, got \['add', 'stop', 'add'\]"),
        (WALK, "outside", "spaces", r"observation\[0\] is 22.0, above 21.0"),
        (WALK, "nan", "spaces", r"observation must be finite, got \[nan"),
        (WALK, "shape", "spaces", r"observation must have shape \(3,\), got \(1,\)"),
        (WALK, "no reward", "rewards", "reward must be a number, got None"),
        (WALK, "nan reward", "rewards", r"reward term reward of tool act must lie in .*, got nan"),
        (WALK, "huge reward", "rewards", r"must lie in \[-1e\+06, 1e\+06\], got 1000000000.0"),
        (WALK, "text flag", "ends", "terminated must be true or false, got 'no'"),
        (WALK, "limit in info", "ends", r'info\["TimeLimit.truncated"\] says that an episode was cut'),
        (WALK, "no rule of success", "success", r'success must be said by the environment, by info\["is_success"\]'),
        (COUNTER, "no verdict", "success", "is_success of tool stop, which ended the episode, must be true or false"),
        (WALK, "no info", "info", "info must be a dictionary, got None"),
        (COUNTER, "set in info", "info", "info.seen must be JSON .*, got set"),
        (COUNTER, "flood of info", "info", "message must have at most 4194304 bytes"),
        (
            WALK,
            "unseeded",
            "seeds",
            r"seed 1, played again with the same calls: reward terms after call 1: {'reward': 0\.",
        ),
        (WALK, "clock", "seeds", "seed 1, played again with the same calls: observation after call"),
        (WALK, "memory", "seeds", "seed 1, .*: reward terms after call 1: {'reward': 2.0}, then {'reward': 1.0}"),
        (WALK, "hash", "seeds", "seed 1, .*: reward terms after call 1: {'reward': "),
        (COUNTER, "raises on bad calls", "bad calls", "AssertionError: no such tool"),
        (COUNTER, "takes all", "bad calls", r"no_such_tool\({}\) was not refused: {'observation': 'fine'"),
        (COUNTER, "moves on bad calls", "bad calls", r"no_such_tool\({}\) changed the episode: "),
        (COUNTER, "snapshot of another type", "restore", "snapshot must return bytes or None, got {'value': "),
        (COUNTER, "snapshot raises", "restore", "RuntimeError: cannot be saved"),
        (COUNTER, "restore raises", "restore", "RuntimeError: cannot be taken up"),
        (COUNTER, "forgets", "restore", "carried to another process after .* calls: observation after"),
        (COUNTER, "fails", "demonstrator", "the expert came to no success on seed 0, in 1 calls"),
        (COUNTER, "moves", "demonstrator", "fallible, asked twice on seed 0, says something else"),
        (COUNTER, "own randomness", "demonstrator", "fallible, asked twice on seed 0, says something else"),
        (COUNTER, "unknown tool", "demonstrator", 'makes a call that cannot be run, on seed 0: no tool "multiply"'),
        (COUNTER, "expert raises", "demonstrator", "RuntimeError: no idea"),
        (COUNTER, "no calls", "demonstrator", "the expert came to no success on seed 0, in 0 calls"),
        (COUNTER, "only expert", "demonstrator", "ValueError: skill must be expert"),
        (COUNTER, "close raises", "close", "RuntimeError: cannot be closed"),
        (COUNTER, "closes once", "close", "RuntimeError: closed already"),
        (replace(COUNTER, call_timeout_s=3.0), "close hangs", "close", "close of episode .* took longer than 3 s"),
        (WALK, "child", "close", r"closed, and still runs: sleep \(\d+\), sleep \(\d+\)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_fault_fails_the_check_that_is_about_it_and_no_other(
    config: EnvConfig, fault: str, failed: str, why: str
) -> None:
    findings = check(replace(config, kwargs={"fault": fault}))
    assert with_verdict(findings, Verdict.failed) == {failed}, findings
    assert re.search(why, findings[failed].why), findings[failed].why
    # where a judge is down nothing of the environment has to be mended
    assert findings[failed].remedy == ("" if fault == "lack" else CHECKS[failed])


@pytest.mark.parametrize(
    ("config", "fault", "noted", "why"),
    [
        (COUNTER, "undescribed", "tools", "without a description: add"),
        (WALK, "doubles", "spaces", "observation is of float64, the space of float32"),
        (WALK, "screen", "spaces", "a policy sees only in short: observation"),
        (COUNTER, "long", "spaces", "observations are cut at 2000 characters"),
        (WALK, "both flags", "ends", "terminated and truncated by one call"),
        (WALK, "endless", "ends", "no episode ended within 30 calls"),
        (WALK, "endless", "success", "unknown: no episode ended within 30 calls"),
        (WALK, "one task", "seeds", "whether other seeds do otherwise these calls do not show"),
        (COUNTER, "slow expert", "demonstrator", "the expert's episode of seed 0 did not end within 30 calls"),
        (COUNTER, "thread", "close", "threads go on: ticker, ticker"),
        (WALK, "none", "demonstrator", "none of its own: a foreign environment's draws actions at random"),
        (
            replace(CONFIG, id="broken_envs:Silent-v0"),
            None,
            "demonstrator",
            "none: segue pretrain has nothing to imitate",
        ),
    ],
)
def test_what_works_but_may_not_be_meant_is_a_note(config: EnvConfig, fault: str | None, noted: str, why: str) -> None:
    findings = check(replace(config, kwargs={} if fault is None else {"fault": fault}))
    assert with_verdict(findings, Verdict.failed) == set()
    assert findings[noted].verdict is Verdict.note
    assert re.search(why, findings[noted].why), findings[noted].why


def test_an_experts_successes_that_are_cut_or_unequal_are_notes() -> None:
    findings = check(replace(COUNTER, kwargs={"fault": "unequal cuts"}))
    assert with_verdict(findings, Verdict.note) == {"demonstrator", "ends"}
    assert findings["demonstrator"].why == "the expert succeeds on 2 seeds, with returns from 0.3 to 0.4"
    assert findings["ends"].why == "the expert's success on seed 0 is truncated"


def test_what_comes_after_a_fault_is_not_reached_and_what_it_does_not_touch_is() -> None:
    in_step = check(replace(WALK, kwargs={"fault": "raise in step"}))
    assert with_verdict(in_step, Verdict.passed) == {"builds", "begins"}
    assert with_verdict(in_step, Verdict.not_reached) == set(CHECKS) - {"builds", "begins", "runs"}
    # both compare with what came before
    unseeded = check(replace(WALK, kwargs={"fault": "unseeded"}))
    assert with_verdict(unseeded, Verdict.not_reached) == {"bad calls", "restore"}
    in_restore = check(replace(COUNTER, kwargs={"fault": "restore raises"}))
    assert with_verdict(in_restore, Verdict.not_reached) == set()


def test_an_episode_is_carried_over_by_a_snapshot_or_by_its_calls() -> None:
    assert re.search(r"by a snapshot of \d+ bytes", check(COUNTER)["restore"].why)
    without = check(replace(COUNTER, kwargs={"fault": "no snapshots"}))
    assert "by running its calls again: it offers no snapshots" in without["restore"].why
