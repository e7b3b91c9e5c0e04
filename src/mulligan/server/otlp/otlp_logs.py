"""Conversion of log records to spans, for agents such as Claude Code that report their calls as logs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import msgspec

from mulligan.server.otlp.protobuf import LogRecord
from mulligan.transcripts.log_lines import decode_leniently, decode_line
from mulligan.transcripts.otlp import Span

TOOL_EVENT, ERROR_EVENT, MODEL_EVENT = "tool_result", "api_error", "api_request"
MCP_TOOL_NAME = "mcp_tool"
"""Generic tool name that Claude Code reports for tools of MCP servers."""


class _JsonLogRecord(msgspec.Struct, gc=False):
    name: str = msgspec.field(default="", name="eventName")
    time: Any = msgspec.field(default=0, name="timeUnixNano")
    observed: Any = msgspec.field(default=0, name="observedTimeUnixNano")
    attributes: list[Any] = []
    body: Any = None


class _ScopeLogs(msgspec.Struct, gc=False):
    logs: list[_JsonLogRecord] = msgspec.field(default_factory=list, name="logRecords")


class _ResourceLogs(msgspec.Struct, gc=False):
    resource: Any = None
    scopes: list[_ScopeLogs] = msgspec.field(default_factory=list, name="scopeLogs")


class _LogExport(msgspec.Struct, gc=False):
    groups: list[_ResourceLogs] = msgspec.field(name="resourceLogs")


class _Parameters(msgspec.Struct, gc=False):
    server: str = msgspec.field(default="", name="mcp_server_name")
    tool: str = msgspec.field(default="", name="mcp_tool_name")


_decoder = msgspec.json.Decoder(_LogExport)
_parameters = msgspec.json.Decoder(_Parameters)


def parse_log_records(data: bytes) -> list[LogRecord]:
    """Parse the log records of a JSON export. Raise MsgspecError if it is invalid."""
    log_records = []
    for group in decode_leniently(data, _decoder.decode).groups:
        resource = _read_attributes(group.resource.get("attributes") if isinstance(group.resource, dict) else None)
        for scope in group.scopes:
            for log in scope.logs:
                body = log.body.get("stringValue", "") if isinstance(log.body, dict) else ""
                timestamp = _to_integer(log.time) or _to_integer(log.observed)
                log_records.append(
                    LogRecord(log.name, timestamp, _read_attributes(log.attributes), resource, str(body))
                )
    return log_records


def _read_attributes(attributes: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for attribute in attributes if isinstance(attributes, list) else ():
        if (
            isinstance(attribute, dict)
            and isinstance(attribute.get("key"), str)
            and isinstance(attribute.get("value"), dict)
        ):
            facts[attribute["key"]] = next(iter(attribute["value"].values()), None)
    return facts


def _to_integer(value: Any) -> int:
    try:
        return max(0, min(int(value), 2**63 - 1))
    except (TypeError, ValueError, OverflowError):
        return 0


def to_spans(logs: Iterable[LogRecord]) -> list[Span]:
    """Convert log records of calls to spans. A session becomes a run."""
    return [span for log in logs if (span := _to_span(log)) is not None]


def _to_span(log: LogRecord) -> Span | None:
    facts = log.facts
    event = (str(facts.get("event.name") or "") or log.name or log.body).rpartition(".")[2]
    session = facts.get("session.id") or log.resource.get("session.id")
    if event not in (TOOL_EVENT, ERROR_EVENT, MODEL_EVENT) or not isinstance(session, str) or not session:
        return None
    took = _to_integer(float(str(facts.get("duration_ms") or 0)) * 1e6) if _is_number(facts.get("duration_ms")) else 0
    has_failed = event == ERROR_EVENT or (event == TOOL_EVENT and str(facts.get("success", "true")).lower() == "false")
    attributes: dict[str, Any] = {"session.id": session}
    if event == TOOL_EVENT:
        attributes |= _tool_attributes(facts)
    else:
        attributes |= {"gen_ai.operation.name": "chat", "gen_ai.request.model": str(facts.get("model") or "model")}
        if _is_number(facts.get("status_code")):
            attributes["http.response.status_code"] = int(float(str(facts["status_code"])))
        for name, key in (("input", "input_tokens"), ("output", "output_tokens")):
            if _is_number(facts.get(key)):
                attributes[f"gen_ai.usage.{name}_tokens"] = int(float(str(facts[key])))
    key = f"{session}\n{log.time}\n{event}\n{sorted((name, str(value)) for name, value in facts.items())}"
    id = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    kind = facts.get("error_type") if has_failed else None
    if isinstance(kind, str) and kind:
        attributes["error.type"] = kind
    message = str(facts.get("error") or facts.get("error_message") or "") if has_failed else ""
    resource = {"service.name": "claude-code", **log.resource}
    return Span(
        session, id, "session", event, max(0, log.time - took), log.time, attributes, has_failed, message, [], resource
    )


def _tool_attributes(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the span attributes of a tool call.

    `tool_input` (the arguments) and `tool_parameters` (a description, with the tool's server and name) are present only
    if `OTEL_LOG_TOOL_DETAILS` is set.
    """
    attributes = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": str(facts.get("tool_name") or "tool")}
    parameters = facts.get("tool_parameters")
    tool_input = facts.get("tool_input") or parameters
    if isinstance(tool_input, str):
        attributes["gen_ai.tool.call.arguments"] = tool_input
    if isinstance(facts.get("tool_use_id"), str):
        attributes["gen_ai.tool.call.id"] = facts["tool_use_id"]
    if attributes["gen_ai.tool.name"] == MCP_TOOL_NAME and isinstance(parameters, str):
        decoded_parameters = decode_line(parameters.encode("utf-8", "replace"), _parameters)
        if decoded_parameters is not None and decoded_parameters.tool:
            attributes |= {"gen_ai.tool.name": decoded_parameters.tool} | (
                {"mcp.server.name": decoded_parameters.server} if decoded_parameters.server else {}
            )
    return attributes


def _is_number(value: Any) -> bool:
    try:
        return 0 <= float(str(value)) < 1e15
    except ValueError:
        return False
