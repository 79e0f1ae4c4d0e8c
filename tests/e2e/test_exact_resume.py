"""A training run that was killed and goes on equals the one that nobody disturbed, to the last bit.

Covered: the command killed behind its first step. Not covered: other points of a run
(`benchmarks/bench_resume.py`), episodes that go on from journals or whose states were evicted (equal to rounding).
"""

import signal
from pathlib import Path

import psutil
import pytest
from run_bits import OF_A_LAUNCH, differing_metrics, differing_weights, values_of
from run_cases import SMALL, TIMEOUT_S, has_steps, run, start, step_lines, wait_until

from segue.actors.metrics import METRICS

# from weights that speak the grammar, so that episodes have turns and their environments a say in what runs together
CHATTY = (*SMALL, "run.init_from=warm_start", "train.group_size=4", "rollout.max_turn_tokens=96", "train.steps=2")
# a term beside the environment's
RATED = ("rollout.reward_terms.short.term=resume_terms:short",)
TERM = """
async def short(episode):
    return 1.0 / (1 + episode.num_sampled_tokens)
"""


def test_a_killed_and_resumed_run_equals_the_undisturbed_one(tmp_path: Path) -> None:
    undisturbed, resumed = tmp_path / "undisturbed", tmp_path / "resumed"
    (tmp_path / "resume_terms.py").write_text(TERM)
    overrides = (*CHATTY, *RATED, f"env.import_folder={tmp_path}")
    run("train", *overrides, f"run.dir={undisturbed}")
    process = start("train", *overrides, f"run.dir={resumed}")
    wait_until(lambda: has_steps(resumed, 1))
    # with all that it started, so that nobody is left who could still write into the folder
    tree = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    for each in tree:
        each.send_signal(signal.SIGKILL)
    process.communicate(timeout=TIMEOUT_S)
    _, alive = psutil.wait_procs(tree[1:], timeout=20)
    assert alive == []
    run("train", f"run.dir={resumed}", f"env.import_folder={tmp_path}")
    differing, num_compared = differing_metrics(undisturbed, resumed)
    assert differing == [] and num_compared > 100
    differing, num_compared = differing_weights(undisturbed, resumed)
    assert differing == [] and num_compared > 50
    # step 1 is taken again where the kill came before its checkpoint
    incarnations = [line["incarnation"] for line in step_lines(resumed)]
    assert incarnations in ([0, 1], [1, 1])
    turns = [value for (_, _, name), value in values_of(resumed).items() if name == "batch/turns/mean"]
    assert min(turns) > 1.5
    rated = [value for (_, _, name), value in values_of(resumed).items() if name == "batch/reward_term/short"]
    assert len(rated) == 2 and min(rated) > 0


@pytest.mark.parametrize("name", OF_A_LAUNCH)
def test_what_is_not_compared_is_a_metric(name: str) -> None:
    assert name in {metric.name for metric in METRICS}
