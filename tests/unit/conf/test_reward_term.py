"""What `rollout.reward_terms` may say, and how it is given on the command line."""

from typing import Any

import pytest

from segue.conf.errors import ConfigError
from segue.conf.load import load_config
from segue.conf.reward_term import RewardTermSpec, read_reward_terms


def read(*overrides: str) -> tuple[RewardTermSpec, ...]:
    return read_reward_terms(load_config(overrides).rollout.reward_terms)


def test_terms_are_given_key_by_key_or_whole_and_keep_their_order() -> None:
    path = "rollout.reward_terms"
    by_key = read(
        f"{path}.short.term=my:brevity", f"{path}.short.kwargs.max_tokens=40", f"{path}.kind.term=my.judges:Kind"
    )
    whole = read(
        f"{path}={{short: {{term: 'my:brevity', kwargs: {{max_tokens: 40}}}}, kind: {{term: 'my.judges:Kind'}}}}"
    )
    assert (
        by_key
        == whole
        == (
            RewardTermSpec(name="short", term="my:brevity", kwargs={"max_tokens": 40}),
            RewardTermSpec(name="kind", term="my.judges:Kind"),
        )
    )
    assert read(f"{path}.short.term=my:brevity", f"{path}.short.timeout_s=3")[0].timeout_s == 3


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("a", 3, "reward_terms.a must be a dictionary with term, and perhaps kwargs and timeout_s, got 3"),
        ("a", {"term": "m:t", "weight": 2}, "got the keys term, weight"),
        ("a/b", {"term": "m:t"}, "must have a name without a slash other than over_budget, got a/b"),
        ("over_budget", {"term": "m:t"}, "must have a name without a slash other than over_budget, got over_budget"),
        ("a", {"term": "m"}, "a.term must be judge or my_module:my_term, got m"),
        ("a", {"term": "m:"}, "a.term must be judge or my_module:my_term, got m:"),
        ("a", {"term": "m:t u"}, "a.term must be judge or my_module:my_term, got m:t u"),
        ("a", {"term": 7}, "a.term must be judge or my_module:my_term, got 7"),
        ("a", {"term": "m:t", "kwargs": [1]}, r"a.kwargs must be a dictionary, got \[1\]"),
        ("a", {"term": "m:t", "timeout_s": 0}, r"a.timeout_s must be above 0 and at most 1e\+09, got 0"),
        ("a", {"term": "m:t", "timeout_s": True}, r"a.timeout_s must be above 0 and at most 1e\+09, got True"),
        ("a", {"term": "m:t", "timeout_s": "1"}, r"a.timeout_s must be above 0 and at most 1e\+09, got 1"),
    ],
)
def test_what_is_no_term_is_refused(name: str, values: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_reward_terms({name: values})
