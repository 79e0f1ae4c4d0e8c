"""Gymnasium spaces of a `ToolEnv`: any text out, a tool call in."""

import math
from typing import Any

import gymnasium

from segue.envs.tool import ToolCall, ToolSpec, find_problem

# of a number whose schema sets none: one or the other, since tasks are most often about small ones
_SAMPLE_BOUNDS = (10, 100)
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
        return isinstance(x, ToolCall) and self.find_problem(x) is None

    def find_problem(self, call: ToolCall) -> str | None:
        """Says why a call cannot be run, in words for the model; None when it can."""
        return find_problem(self._tools, call)

    def _value(self, schema: dict[str, Any]) -> Any:
        if "enum" in schema:
            return schema["enum"][int(self.np_random.integers(len(schema["enum"])))]
        match schema.get("type", "string"):
            case "object":
                return {name: self._value(inner) for name, inner in schema.get("properties", {}).items()}
            case "array":
                return self._items(schema)
            case "integer":
                return self._integer(schema)
            case "number":
                low, high = self._range(schema)
                share = self.np_random.random()
                return min(max(low, low * (1.0 - share) + high * share), high)
            case "boolean":
                return bool(self.np_random.integers(2))
            case "null":
                return None
        return self._text(schema)

    def _integer(self, schema: dict[str, Any]) -> int:
        low, high = self._range(schema)
        # wider than the generator takes: an arbitrary part of it
        low, high = math.ceil(low), math.floor(high)
        return low + int(self.np_random.integers(min(high - low, 2**62), endpoint=True))

    def _text(self, schema: dict[str, Any]) -> str:
        word = str(self.np_random.choice(_SAMPLE_WORDS))
        return word[: schema.get("maxLength")].ljust(schema.get("minLength", 0), "x")

    def _items(self, schema: dict[str, Any]) -> list[Any]:
        by_place = schema.get("prefixItems", [])
        least = schema.get("minItems", 0)
        most = schema.get("maxItems", max(least, len(by_place)) + 2)
        num_items = int(self.np_random.integers(least, most, endpoint=True))
        schemas = by_place[:num_items] + [schema.get("items", {})] * (num_items - len(by_place))
        return [self._value(inner) for inner in schemas]

    def _range(self, schema: dict[str, Any]) -> tuple[float, float]:
        bound = _SAMPLE_BOUNDS[int(self.np_random.integers(len(_SAMPLE_BOUNDS)))]
        low = schema.get("minimum", min(-bound, schema.get("maximum", bound)))
        return low, schema.get("maximum", max(bound, low))
