"""What `rollout.reward_terms` says of a reward term, read from its dictionary."""

from dataclasses import dataclass, field, fields
from typing import Any

from segue.conf.errors import ConfigError

SECTION = "rollout.reward_terms"
JUDGE_TERM = "judge"
OVER_BUDGET_TERM = "over_budget"
"""Name of the term that budgets of effort add."""
_MAX_SECONDS = 1e9


@dataclass(frozen=True, kw_only=True, slots=True)
class RewardTermSpec:
    """One term: what computes it, with what, and for how long at most."""

    name: str
    """What it is recorded as."""
    term: str
    """`judge`, or `my_module:my_term`."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the term."""
    timeout_s: float = 60.0
    """Deadline in seconds, its waits for a place in the engine not counted."""

    @property
    def path(self) -> str:
        """Key of its section."""
        return f"{SECTION}.{self.name}"


def read_reward_terms(terms: dict[str, Any]) -> tuple[RewardTermSpec, ...]:
    """The terms of `rollout.reward_terms`, in order.

    Args:
        terms: by name, each a dictionary of `term`, `kwargs` and `timeout_s`.
    Raises:
        ConfigError: one of them says something else.
    """
    return tuple(_read(name, values) for name, values in terms.items())


def _read(name: str, values: Any) -> RewardTermSpec:
    path = f"{SECTION}.{name}"
    keys = [f.name for f in fields(RewardTermSpec) if f.name != "name"]
    # its values may be secrets
    given = f"the keys {', '.join(values)}" if isinstance(values, dict) else values
    if not isinstance(values, dict) or not values.keys() <= set(keys) or "term" not in values:
        raise ConfigError(f"{path} must be a dictionary with term, and perhaps kwargs and timeout_s, got {given}")
    if "/" in name or name == OVER_BUDGET_TERM:
        raise ConfigError(f"{path} must have a name without a slash other than {OVER_BUDGET_TERM}, got {name}")
    spec = RewardTermSpec(name=name, **values)
    module, _, attribute = str(spec.term).partition(":")
    is_dotted = all(part.isidentifier() for part in (*module.split("."), *attribute.split(".")))
    if spec.term != JUDGE_TERM and not (isinstance(spec.term, str) and is_dotted):
        raise ConfigError(f"{path}.term must be {JUDGE_TERM} or my_module:my_term, got {spec.term}")
    if not isinstance(spec.kwargs, dict):
        raise ConfigError(f"{path}.kwargs must be a dictionary, got {spec.kwargs}")
    is_number = isinstance(spec.timeout_s, int | float) and not isinstance(spec.timeout_s, bool)
    if not (is_number and 0 < spec.timeout_s <= _MAX_SECONDS):
        raise ConfigError(f"{path}.timeout_s must be above 0 and at most {_MAX_SECONDS:.0e}, got {spec.timeout_s}")
    return spec
