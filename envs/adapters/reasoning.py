"""Procedural questions of `reasoning-gym` as an environment: one question, one `answer`.

seed -> create_dataset(name, seed=seed, size=1)[0] -> question -> answer(text) -> score_answer -> `score`
"""

import difflib
import random
from types import ModuleType
from typing import Any

import gymnasium

from segue.envs.adapters.extra import needs_extra
from segue.envs.tool import tool
from segue.envs.tool_env import Task, ToolEnv, ToolResult

_SLIP_RATE = 0.5


class ReasoningGymEnv(ToolEnv):
    """Each seed is one question of a data set; the data set's own scorer pays for the answer."""

    def __init__(
        self, *, name: str, config: dict[str, Any] | None = None, success_score: float = 1.0, system: str = ""
    ) -> None:
        """Prepares to ask.

        Args:
            name: of the data set, such as `basic_arithmetic`.
            config: of the data set, such as `{max_digits: 2}`; its `seed` and `size` are set here.
            success_score: least score that counts as success; in (0, 1].
            system: message of the system; empty for none.
        Raises:
            EnvironmentSetupError: reasoning-gym is not installed.
            ValueError: it has no such data set, or the configuration is none of that's.
        """
        if not 0.0 < success_score <= 1.0:
            raise ValueError(f"success_score must lie in (0, 1], got {success_score}")
        self._package = _load()
        self._name, self._config, self._system = name, dict(config or {}), system
        self._success_score = success_score
        self._ask(0, {})

    def begin(self, seed: int, options: dict[str, Any]) -> Task:
        """Asks the question of a seed; `options` may name another data set (`name`) and change `config`."""
        self._ask(seed, options)
        return Task(
            user=self._entry["question"],
            system=self._system,
            info={"question_class": self._entry["metadata"].get("source_dataset", self._name)},
        )

    @tool("Answer the question.")
    def answer(self, text: str) -> ToolResult:
        """Scores the answer and ends the episode."""
        fault = ""
        try:
            score = float(self._dataset.score_answer(text, entry=self._entry))
        except Exception as error:
            # some scorers parse without care: the model wrote what raised, and earns nothing by it
            score, fault = 0.0, f"{type(error).__name__}: {error}"
        is_success = score >= self._success_score
        return ToolResult(
            observation="right" if is_success else "wrong",
            reward_terms={"score": score},
            terminated=True,
            is_success=is_success,
            info={"scorer_fault": fault[:200]} if fault else {},
        )

    def expert(self, skill: str, rng: random.Random) -> dict[str, Any]:
        """The data set's own answer; `fallible` gives that of another question half of the time."""
        answer = self._entry["answer"]
        if skill == "fallible" and rng.random() < _SLIP_RATE:
            answer = self._draw(rng.getrandbits(31))[1]["answer"]
        if not isinstance(answer, str):
            raise NotImplementedError(f"data set {self._entry_name} scores answers and knows none itself")
        return {"response": "", "calls": [{"name": "answer", "arguments": {"text": answer}}]}

    def _ask(self, seed: int, options: dict[str, Any]) -> None:
        unknown = set(options) - {"name", "config"}
        if unknown:
            raise ValueError(f"options must be name and config, got {sorted(unknown)}")
        self._entry_name = options.get("name", self._name)
        # settings of one data set say nothing to another
        own = self._config if self._entry_name == self._name else {}
        self._entry_config = {**own, **options.get("config", {})}
        if self._entry_name not in self._package.factory.DATASETS:
            nearest = difflib.get_close_matches(self._entry_name, self._package.factory.DATASETS, n=1)
            hint = f"; nearest: {nearest[0]}" if nearest else ""
            raise ValueError(f"name must be a data set of reasoning-gym, got {self._entry_name!r}{hint}")
        self._dataset, self._entry = self._draw(seed)

    def _draw(self, seed: int) -> tuple[Any, dict[str, Any]]:
        """The data set of a seed, which scores, and its one entry."""
        dataset = self._package.create_dataset(self._entry_name, **self._entry_config, seed=seed, size=1)
        return dataset, dataset[0]


def _load() -> ModuleType:
    with needs_extra("reasoning-gym"):
        import reasoning_gym
    return reasoning_gym


gymnasium.register(id="ReasoningGym-v0", entry_point=ReasoningGymEnv)
