"""What the tools of a real coding agent answer, called by a scripted model; `scripts/agents` installs them."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2] / "tests" / "support"))

from agent_api import Api, Reply, asks  # type: ignore[import-not-found]
from coding_agents import PROGRAMS, Claude, Place, codex, gemini  # type: ignore[import-not-found]


def answer(agent: str, calls: list[list[Any]]) -> str | None:
    """What the last of these calls is answered with; None where the agent is not installed."""
    if not (PROGRAMS / agent).exists():
        return None
    with Api() as api, tempfile.TemporaryDirectory(prefix="seeds-") as name:
        place = Place(Path(name), api)
        (place.project / "twice.txt").write_text("x = 1\nx = 1\n")
        (place.project / "large.txt").write_text("word and word\n" * 60_000)
        given = json.loads(json.dumps(calls).replace("@/", f"{place.project}/").replace('"@"', f'"{place.project}"'))
        api.script = [*(asks(tool, **arguments) for tool, arguments in given), Reply()]
        if agent == "claude":
            with Claude(place) as claude:
                claude.says("please work")
            said = _claude(api.requests[-1])
        elif agent == "codex":
            codex(place)
            said = _codex(api.requests[-1])
        else:
            gemini(place)
            said = _gemini(api.requests[-1])
        return said[-1].partition("\n\n<system-reminder>")[0].replace(str(place.project), "/work/project")


def _claude(body: dict[str, Any]) -> list[str]:
    blocks = [block for each in body["messages"] if isinstance(each["content"], list) for block in each["content"]]
    return [str(block["content"]) for block in blocks if block["type"] == "tool_result"]


def _codex(body: dict[str, Any]) -> list[str]:
    return [str(each["output"]) for each in body["input"] if each["type"] == "function_call_output"]


def _gemini(body: dict[str, Any]) -> list[str]:
    parts = [part for each in body["contents"] for part in each["parts"]]
    return [str(part["functionResponse"]["response"]["error"]) for part in parts if "functionResponse" in part]
