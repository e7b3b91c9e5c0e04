"""Session logs in the forms that real agents write, for tests."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mulligan.core.records import History
from mulligan.redaction import Redactor
from mulligan.report.scan_report import Findings, LogScan
from mulligan.transcripts.formats import detect_log_format
from mulligan.transcripts.log_lines import LogLines
from mulligan.transcripts.run_builder import ReaderState


def read(path: Path, reading: ReaderState | None = None) -> list[History]:
    """The runs of a file, whose format is told by its content."""
    with LogLines(path) as lines:
        format = detect_log_format(lines)
        assert format is not None, "nobody knows this file"
        return list(format.read(lines, reading or ReaderState()))


def find_failures(histories: Iterable[History]) -> Findings:
    """Return the findings of a scan of these runs."""
    scan = LogScan()
    for history in histories:
        scan.add(history)
    return scan.build_findings(Redactor())


def write(path: Path, *entries: Any) -> Path:
    """A line each; bytes and texts as they are."""
    with path.open("wb") as file:
        for entry in entries:
            data = (
                entry if isinstance(entry, bytes) else (entry if isinstance(entry, str) else json.dumps(entry)).encode()
            )
            file.write(data + b"\n")
    return path


def at(second: float) -> str:
    whole = int(second)
    return f"2026-03-01T10:{whole // 60:02}:{whole % 60:02}.{round((second - whole) * 1000):03}Z"


class ClaudeCode:
    """A session of Claude Code, entry by entry."""

    def __init__(self, session: str = "5e55-10", **about: Any) -> None:
        self.about = {
            "parentUuid": None,
            "isSidechain": False,
            "userType": "external",
            "cwd": "/home/ada/shop",
            "sessionId": session,
            "version": "2.1.325",
            "gitBranch": "main",
            **about,
        }

    def _entry(self, type: str, second: float, **fields: Any) -> dict[str, Any]:
        return {**self.about, "type": type, "uuid": f"u{second}", "timestamp": at(second), **fields}

    def user(self, text: str, second: float = 0) -> dict[str, Any]:
        return self._entry("user", second, message={"role": "user", "content": text})

    def call(self, id: str, name: str, second: float, /, **input: Any) -> dict[str, Any]:
        block = {"type": "tool_use", "id": id, "name": name, "input": input}
        message = {"id": "msg_1", "role": "assistant", "model": "claude-opus-4-5", "content": [block]}
        return self._entry("assistant", second, message=message)

    def result(self, id: str, text: Any, second: float, is_error: bool = False) -> dict[str, Any]:
        block: dict[str, Any] = {"tool_use_id": id, "type": "tool_result", "content": text}
        if is_error:
            block["is_error"] = True
        return self._entry("user", second, message={"role": "user", "content": [block]}, toolUseResult="Error: ...")

    def compaction(self, second: float) -> dict[str, Any]:
        about = {"trigger": "auto", "preTokens": 155_000}
        return self._entry("system", second, subtype="compact_boundary", content="Compacted", compactMetadata=about)

    def api_error(self, text: str, second: float) -> dict[str, Any]:
        content = [{"type": "text", "text": text}]
        message = {"role": "assistant", "model": "<synthetic>", "content": content}
        return self._entry("assistant", second, message=message, isApiErrorMessage=True)

    def says(self, text: str, second: float) -> dict[str, Any]:
        message = {"role": "assistant", "model": "claude-opus-4-5", "content": [{"type": "text", "text": text}]}
        return self._entry("assistant", second, message=message)


class Codex:
    """A rollout of Codex, line by line."""

    def line(self, type: str, second: float, /, **payload: Any) -> dict[str, Any]:
        return {"timestamp": at(second), "type": type, "payload": payload}

    def meta(self, id: str = "019c-77") -> dict[str, Any]:
        return self.line(
            "session_meta", 0, id=id, cwd="/home/ada/shop", cli_version="0.166.0", originator="codex_cli_rs"
        )

    def user(self, text: str, second: float = 0) -> dict[str, Any]:
        return self.line("event_msg", second, type="user_message", message=text)

    def call(self, id: str, name: str, second: float, /, **arguments: Any) -> dict[str, Any]:
        said = json.dumps(arguments)
        return self.line("response_item", second, type="function_call", name=name, arguments=said, call_id=id)

    def output(self, id: str, text: Any, second: float) -> dict[str, Any]:
        return self.line("response_item", second, type="function_call_output", call_id=id, output=text)

    def ended(self, id: str, code: int, output: str, second: float, command: Any = None) -> dict[str, Any]:
        item = {
            "type": "CommandExecution",
            "id": id,
            "command": command or ["bash", "-lc", "make"],
            "status": "failed" if code else "completed",
            "aggregated_output": output,
            "exit_code": code,
        }
        return self.line("event_msg", second, type="item_completed", item=item)


def span(
    trace: str, id: str, parent: str | None, name: str, start: float, end: float, error: str = "", **facts: Any
) -> dict[str, Any]:
    """A span in OTLP's JSON. A fact's name is written with __ for a point."""

    def value(given: Any) -> dict[str, Any]:
        return {"intValue": str(given)} if isinstance(given, int) else {"stringValue": given}

    made: dict[str, Any] = {
        "traceId": trace,
        "spanId": id,
        "name": name,
        "startTimeUnixNano": str(int((1_772_000_000 + start) * 1e9)),
        "endTimeUnixNano": str(int((1_772_000_000 + end) * 1e9)),
        "attributes": [{"key": key.replace("__", "."), "value": value(given)} for key, given in facts.items()],
        "status": {"code": 2, "message": error} if error else {"code": 1},
    }
    if parent:
        made["parentSpanId"] = parent
    return made


def otlp(*spans: dict[str, Any], service: str = "shop-agent") -> dict[str, Any]:
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": service}}]}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": {"name": "x"}, "spans": list(spans)}]}]}
