"""Tasks over `store_server.py`: what there is of an item, to be found out and said."""

from dataclasses import replace
from random import Random
from typing import Any

from segue.envs.adapters.mcp_tools import McpTask
from segue.envs.tool import ToolCall
from segue.envs.tool_env import ToolResult


def how_many(seed: int, options: dict[str, Any]) -> McpTask:
    """Asks for the count of mint."""
    unknown = set(options) - {"more"}
    if unknown:
        raise ValueError(f"options must be more, got {sorted(unknown)}")
    truth = Random(seed).randint(1, 9) + options.get("more", 0)

    def judge(call: ToolCall, result: ToolResult) -> ToolResult:
        if call.name == "answer":
            is_right = call.arguments["text"] == str(truth)
            return replace(result, reward_terms={"success": float(is_right)}, is_success=is_right)
        if call.name == "count" and call.arguments["item"] == "mint":
            return replace(result, reward_terms={"process": 0.1})
        return result

    return McpTask(user="how many mint?", judge=judge, info={"truth": truth}, arguments=(f"mint={truth} lily=2",))


def nothing(seed: int, options: dict[str, Any]) -> str:
    """No task at all."""
    return "how many?"
