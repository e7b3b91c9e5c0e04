"""What a tool reads is content: 200 files and pages about errors are no failures, through every door.

None is reported to a model as a failure, none is read again, none is blocked, and none costs the run its success.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from error_texts import build_error_texts
from hook_events import handle_event
from mcp_client import proxied

import mulligan
from mulligan.integrations.framework_agent import FrameworkAgent
from mulligan.integrations.framework_tools import ToolDefinition
from mulligan.testing import Sandbox

TEXTS = build_error_texts(200)
READERS = ("read_file", "fetch_page", "get_document", "web_search", "query")


class Library:
    """Files and pages by number. It counts how often each is read."""

    def __init__(self) -> None:
        self.reads: Counter[int] = Counter()

    def read(self, number: int) -> str:
        self.reads[number] += 1
        return TEXTS[number]

    def check_reads(self) -> None:
        assert self.reads == Counter(range(len(TEXTS)))


def check_run(played: Sandbox) -> None:
    (history,) = played.runs
    assert {step.outcome for step in history.steps} == {"success"}
    assert not history.links


@pytest.mark.parametrize("effects", ["none", "once"])
def test_reads_in_a_loop_reach_the_model_as_they_are(played: Sandbox, effects: Any) -> None:
    library = Library()
    tools = {name: mulligan.tool(effects=effects, name=name)(library.read) for name in READERS}
    with mulligan.run("reader") as run:
        for number, turn in zip(range(len(TEXTS)), mulligan.turns(limit=len(TEXTS) + 1), strict=False):
            outcome = turn.call(tools, READERS[number % len(READERS)], {"number": number})
            assert outcome.ok
            assert outcome.to_message() == TEXTS[number]
    library.check_reads()
    assert run.status == "success"
    check_run(played)


def test_reads_through_an_adapter_reach_the_model_as_they_are(played: Sandbox) -> None:
    library = Library()
    tools = {name: ToolDefinition(name, {"properties": {"number": {"type": "integer"}}}) for name in READERS}
    run = FrameworkAgent(tools={"*": {"effects": "none"}}).start_run("reader")
    for number in range(len(TEXTS)):
        name = READERS[number % len(READERS)]
        outcome = run.call(tools, name, {"number": number}, lambda _, arguments: library.read(**arguments))
        assert outcome.ok
        assert outcome.to_message() == TEXTS[number]
    run.end()
    library.check_reads()
    check_run(played)


SERVER = """
import json, sys
texts, reads = json.load(open(sys.argv[1])), 0
tools = [{"name": name, "inputSchema": {"type": "object", "properties": {"number": {"type": "integer"}}},
          "annotations": {"readOnlyHint": True}} for name in ("read_file", "fetch_page")]
for line in sys.stdin:
    message = json.loads(line)
    result = {}
    if message["method"] == "initialize":
        result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                  "serverInfo": {"name": "library", "version": "1"}}
    elif message["method"] == "tools/list":
        result = {"tools": tools}
    elif message["method"] == "tools/call":
        reads += 1
        text = texts[message["params"]["arguments"]["number"]] + f"\\n#{reads}"
        result = {"content": [{"type": "text", "text": text}]}
    if "id" in message:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--trust-annotations"]], ids=["untrusted", "trusted"])
def test_reads_through_the_proxy_reach_the_client_as_they_are(tmp_path: Path, options: list[str]) -> None:
    texts_file, server_file = tmp_path / "texts.json", tmp_path / "server.py"
    texts_file.write_text(json.dumps(TEXTS))
    server_file.write_text(SERVER)
    with proxied(str(texts_file), options=options, server=server_file) as client:
        client.open()
        client.tools()
        for number, text in enumerate(TEXTS):
            answer = client.call(("read_file", "fetch_page")[number % 2], number=number)
            assert answer["result"] == {"content": [{"type": "text", "text": f"{text}\n#{number + 1}"}]}


@pytest.mark.parametrize(
    ("agent", "build"),
    [
        (
            "claude-code",
            lambda number, text: {
                "hook_event_name": "PostToolBatch",
                "tool_calls": [{"tool_name": "WebFetch", "tool_use_id": f"toolu_{number}", "tool_response": text}],
            },
        ),
        (
            "gemini",
            lambda number, text: {
                "hook_event_name": "AfterTool",
                "tool_name": "read_file",
                "tool_use_id": f"call_{number}",
                "tool_response": {"llmContent": text},
            },
        ),
    ],
)
def test_reads_of_a_coding_agent_get_no_answer_from_its_hook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, agent: str, build: Callable[[int, str], dict[str, Any]]
) -> None:
    monkeypatch.setenv("MULLIGAN_HOME", str(tmp_path))
    for number, text in enumerate(TEXTS):
        if agent == "claude-code" and text.startswith("<tool_use_error>"):
            continue  # the flag of Claude Code itself
        event = {"session_id": "reads", "cwd": "/src/shop", "transcript_path": "", **build(number, text)}
        assert handle_event(agent, json.dumps(event).encode()) == b""
