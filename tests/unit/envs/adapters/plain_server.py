"""An MCP server of the standard library alone, which knows the protocol of 2025 and fails as it is told to."""

import json
import os
import sys
import time
from typing import Any

SCHEMA = {"type": "object", "properties": {"how": {"type": "string"}}, "required": ["how"]}
TOOL = {"name": "fail", "inputSchema": SCHEMA}


def answer(method: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """What stands in the response beside its id."""
    if method == "initialize":
        server = {"name": "plain", "version": "1"}
        return {"result": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": server}}
    if method == "tools/list":
        # two pages
        if "cursor" in (parameters or {}):
            return {"result": {"tools": [{**TOOL, "name": "other"}]}}
        return {"result": {"tools": [TOOL], "nextCursor": "1"}}
    if method != "tools/call":
        return {"error": {"code": -32601, "message": f"no such method: {method}"}}
    match parameters["arguments"]["how"]:
        case "exit":
            os._exit(3)
        case "hang":
            time.sleep(3600)
        case "refuse":
            return {"error": {"code": -32602, "message": "not so"}}
        case "picture":
            return {"result": {"content": [{"type": "image", "data": "", "mimeType": "image/png"}]}}
    return {"result": {"content": [], "structuredContent": {"left": 2}}}


for line in sys.stdin:
    request = json.loads(line)
    if "id" in request:
        response = {"jsonrpc": "2.0", "id": request["id"], **answer(request["method"], request.get("params"))}
        print(json.dumps(response), flush=True)
