"""Gymnasium spaces of a `ToolEnv`: any text out, a tool call in."""

from typing import Any

import gymnasium

from segue.envs.tool import ToolCall, ToolSpec, find_problem

_SAMPLE_WORDS = ("clio", "57", "", "total of x", "é")


class AnyText(gymnasium.Space[str]):
    """Every string. (`gymnasium.spaces.Text` holds a fixed alphabet without a space.)"""

    def __init__(self) -> None:
        super().__init__(shape=None, dtype=None)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """One of a few fixed strings."""
        return str(self.np_random.choice(_SAMPLE_WORDS))

    def contains(self, x: Any) -> bool:
        """True for every string."""
        return isinstance(x, str)


class ToolCalls(gymnasium.Space[ToolCall]):
    """Calls that the tools accept; `sample` draws one of them with arbitrary arguments of the right types."""

    def __init__(self, tools: tuple[ToolSpec, ...]) -> None:
        super().__init__(shape=None, dtype=None)
        self._tools = tools

    def sample(self, mask: Any = None, probability: Any = None) -> ToolCall:
        """A valid call: every property given, values arbitrary within their schema."""
        spec = self._tools[int(self.np_random.integers(len(self._tools)))]
        return ToolCall(name=spec.name, arguments=self._value(spec.parameters))

    def contains(self, x: Any) -> bool:
        """True for a call that can be run."""
        return isinstance(x, ToolCall) and find_problem(self._tools, x) is None

    def _value(self, schema: dict[str, Any]) -> Any:
        if "enum" in schema:
            return schema["enum"][int(self.np_random.integers(len(schema["enum"])))]
        kind = schema.get("type", "string")
        if kind == "object":
            return {name: self._value(inner) for name, inner in schema.get("properties", {}).items()}
        if kind == "array":
            return [self._value(schema.get("items", {})) for _ in range(int(self.np_random.integers(3)))]
        if kind in ("integer", "number"):
            low = schema.get("minimum", -100)
            number = self.np_random.integers(low, schema.get("maximum", max(low, 100)), endpoint=True)
            return int(number) if kind == "integer" else float(number)
        if kind == "boolean":
            return bool(self.np_random.integers(2))
        return None if kind == "null" else str(self.np_random.choice(_SAMPLE_WORDS))
