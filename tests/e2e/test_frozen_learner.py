"""At learning rate 0 with a frozen balance nothing moves: the gap between rollout and learner does not grow.

Real learner and engine in one process, weights published and taken up between steps, the same task every time. The
gap itself, with route flips told apart: tests/reference/test_logprob_gap.py.
"""

import json
from pathlib import Path

import pytest
from rank_processes import run_ranks
from tolerances import LOGPROB_GAP_NATS

SCRIPT = Path(__file__).with_name("frozen_rank.py")


@pytest.fixture(scope="module")
def steps(tmp_path_factory) -> list[dict]:
    folder = tmp_path_factory.mktemp("frozen")
    run_ranks(SCRIPT, 1, folder)
    return json.loads((folder / "facts.json").read_text())


def test_every_step_had_something_to_train(steps):
    assert len(steps) == 4
    for step in steps:
        assert step["metrics"]["update/applied/count"] == 1.0
        assert step["metrics"]["update/gradient/norm"] > 1e-3
        assert step["metrics"]["update/learning_rate/value"] == 0.0


def test_the_gap_does_not_grow(steps):
    for name in ("policy/logprob_gap/max_nats", "policy/logprob_gap/mean_nats"):
        gaps = [step["metrics"][name] for step in steps]
        # the same tokens by the same arithmetic: the first step's rounding, to the bit
        assert gaps == [gaps[0]] * len(gaps)
        assert 0.0 < gaps[0] <= LOGPROB_GAP_NATS


def test_weights_and_router_biases_stay_to_the_bit(steps):
    names = [name for name in steps[0]["weights"] if name.endswith("e_score_correction_bias")]
    assert len(names) == 3
    for step in steps:
        assert step["weights"] == steps[0]["weights"]
        assert step["metrics"]["router/bias_kl/mean_nats"] is None


def test_the_engine_samples_the_same_tokens_from_every_published_version(steps):
    for step in steps:
        assert step["tokens"] == steps[0]["tokens"]
