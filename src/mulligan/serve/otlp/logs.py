"""Conversion of log records to spans, for agents such as Claude Code that report their calls as logs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import msgspec

from mulligan.capture.transcripts.lines import decoded, leniently
from mulligan.capture.transcripts.otlp import Span
from mulligan.serve.otlp.protobuf import LogRecord

TOOL, ERROR, MODEL = "tool_result", "api_error", "api_request"
OF_A_SERVER = "mcp_tool"
"""Generic tool name that Claude Code reports for tools of MCP servers."""


class _Log(msgspec.Struct, gc=False):
    name: str = msgspec.field(default="", name="eventName")
    time: Any = msgspec.field(default=0, name="timeUnixNano")
    observed: Any = msgspec.field(default=0, name="observedTimeUnixNano")
    attributes: list[Any] = []
    body: Any = None


class _Scope(msgspec.Struct, gc=False):
    logs: list[_Log] = msgspec.field(default_factory=list, name="logRecords")


class _Group(msgspec.Struct, gc=False):
    resource: Any = None
    scopes: list[_Scope] = msgspec.field(default_factory=list, name="scopeLogs")


class _Export(msgspec.Struct, gc=False):
    groups: list[_Group] = msgspec.field(name="resourceLogs")


class _Parameters(msgspec.Struct, gc=False):
    server: str = msgspec.field(default="", name="mcp_server_name")
    tool: str = msgspec.field(default="", name="mcp_tool_name")


_decoder = msgspec.json.Decoder(_Export)
_parameters = msgspec.json.Decoder(_Parameters)


def records(data: bytes) -> list[LogRecord]:
    """Parse the log records of a JSON export. Raise MsgspecError if it is invalid."""
    found = []
    for group in leniently(data, _decoder.decode).groups:
        resource = _facts(group.resource.get("attributes") if isinstance(group.resource, dict) else None)
        for scope in group.scopes:
            for log in scope.logs:
                body = log.body.get("stringValue", "") if isinstance(log.body, dict) else ""
                moment = _whole(log.time) or _whole(log.observed)
                found.append(LogRecord(log.name, moment, _facts(log.attributes), resource, str(body)))
    return found


def _facts(given: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for each in given if isinstance(given, list) else ():
        if isinstance(each, dict) and isinstance(each.get("key"), str) and isinstance(each.get("value"), dict):
            facts[each["key"]] = next(iter(each["value"].values()), None)
    return facts


def _whole(value: Any) -> int:
    try:
        return max(0, min(int(value), 2**63 - 1))
    except (TypeError, ValueError, OverflowError):
        return 0


def spans(logs: Iterable[LogRecord]) -> list[Span]:
    """Convert log records of calls to spans. A session becomes a run."""
    return [span for each in logs if (span := _span(each)) is not None]


def _span(log: LogRecord) -> Span | None:
    facts = log.facts
    event = (str(facts.get("event.name") or "") or log.name or log.body).rpartition(".")[2]
    session = facts.get("session.id") or log.resource.get("session.id")
    if event not in (TOOL, ERROR, MODEL) or not isinstance(session, str) or not session:
        return None
    took = _whole(float(str(facts.get("duration_ms") or 0)) * 1e6) if _is_number(facts.get("duration_ms")) else 0
    has_failed = event == ERROR or (event == TOOL and str(facts.get("success", "true")).lower() == "false")
    told: dict[str, Any] = {"session.id": session}
    if event == TOOL:
        told |= _tool(facts)
    else:
        told |= {"gen_ai.operation.name": "chat", "gen_ai.request.model": str(facts.get("model") or "model")}
        if _is_number(facts.get("status_code")):
            told["http.response.status_code"] = int(float(str(facts["status_code"])))
        for name, said in (("input", "input_tokens"), ("output", "output_tokens")):
            if _is_number(facts.get(said)):
                told[f"gen_ai.usage.{name}_tokens"] = int(float(str(facts[said])))
    said = f"{session}\n{log.time}\n{event}\n{sorted((name, str(value)) for name, value in facts.items())}"
    id = hashlib.blake2b(said.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    kind = facts.get("error_type") if has_failed else None
    if isinstance(kind, str) and kind:
        told["error.type"] = kind
    message = str(facts.get("error") or facts.get("error_message") or "") if has_failed else ""
    resource = {"service.name": "claude-code", **log.resource}
    return Span(
        session, id, "session", event, max(0, log.time - took), log.time, told, has_failed, message, [], resource
    )


def _tool(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the span attributes of a tool call.

    `tool_input` (the arguments) and `tool_parameters` (a description, with the tool's server and name) are present only
    if `OTEL_LOG_TOOL_DETAILS` is set.
    """
    told = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": str(facts.get("tool_name") or "tool")}
    about = facts.get("tool_parameters")
    given = facts.get("tool_input") or about
    if isinstance(given, str):
        told["gen_ai.tool.call.arguments"] = given
    if isinstance(facts.get("tool_use_id"), str):
        told["gen_ai.tool.call.id"] = facts["tool_use_id"]
    if told["gen_ai.tool.name"] == OF_A_SERVER and isinstance(about, str):
        said = decoded(about.encode("utf-8", "replace"), _parameters)
        if said is not None and said.tool:
            told |= {"gen_ai.tool.name": said.tool} | ({"mcp.server.name": said.server} if said.server else {})
    return told


def _is_number(value: Any) -> bool:
    try:
        return 0 <= float(str(value)) < 1e15
    except ValueError:
        return False
