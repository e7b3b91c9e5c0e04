"""MCP tool definitions and validation of their arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from mulligan.classify.kinds import TYPES

MAX_ANSWER_ITEMS = 20
"""Maximum patterns, failures or lessons in one answer."""
MAX_ERROR_CHARS = 1_000_000
"""Maximum characters of an error text. Only its ends are used."""


class InvalidToolCallError(Exception):
    """Invalid tool call. The message says what to change."""


class ToolSpec(NamedTuple):
    """An MCP tool definition."""

    name: str
    title: str
    description: str
    properties: Mapping[str, Mapping[str, Any]]
    required: tuple[str, ...] = ()
    is_read_only: bool = True

    @property
    def schema(self) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {name: dict(property_schema) for name, property_schema in self.properties.items()},
            "required": list(self.required),
            "additionalProperties": False,
        }


def _text(description: str, max_chars: int = 200) -> dict[str, Any]:
    return {"type": "string", "minLength": 1, "maxLength": max_chars, "description": description}


_TOOL = _text("Name of the tool, as you call it.")
_LIMIT = {
    "type": "integer",
    "minimum": 1,
    "maximum": MAX_ANSWER_ITEMS,
    "default": 5,
    "description": "Maximum number of results.",
}

TOOLS = {
    spec.name: spec
    for spec in (
        ToolSpec(
            "known_failures",
            "Known failures of a tool",
            "Lists earlier failures of a tool, how often they occurred, and what recovered them. Use it before "
            "calling an unfamiliar tool, or with an error text to check whether the error is known.",
            {
                "tool": _TOOL,
                "kind": {
                    "type": "string",
                    "pattern": f"^(?:{'|'.join(TYPES)})(?:/[a-z_]{{1,40}})?$",
                    "description": "Only failures of this kind, such as tool/timeout.",
                },
                "text": _text("Only failures similar to this text.", MAX_ERROR_CHARS),
                "limit": _LIMIT,
            },
        ),
        ToolSpec(
            "suggest_fix",
            "Suggest a repair for a failed call",
            "Analyzes a failed tool call: its kind, which argument change may repair it, and what recovered it "
            "before. Use it before you retry the call. It executes nothing.",
            {
                "tool": _TOOL,
                "error": _text("Full output of the failed call.", MAX_ERROR_CHARS),
                "arguments": {"type": "object", "description": "Arguments of the failed call."},
                "schema": {"type": "object", "description": "Input schema of the tool, if you have it."},
            },
            ("tool", "error"),
        ),
        ToolSpec(
            "recent_failures",
            "Recent failures",
            "Lists failed calls of the last hours or days by all agents in this store, the latest first, and "
            "whether each recovered.",
            {
                "tool": _TOOL,
                "agent": _text("Only failures of this agent."),
                "since": {
                    "type": "string",
                    "pattern": "^[1-9][0-9]{0,4}[mhdw]$",
                    "default": "24h",
                    "description": "Maximum age: 30m, 24h, 7d, 2w.",
                },
                "limit": _LIMIT,
            },
        ),
        ToolSpec(
            "record_outcome",
            "Report whether a fix worked",
            "Reports whether a suggestion with an id (fix_... or les_...) worked after you followed it. Counts "
            "once per session, and alone promotes nothing.",
            {
                "id": {
                    "type": "string",
                    "pattern": "^(?:fix|les)_[0-9a-f]{4,12}$",
                    "description": "Id of the fix or lesson.",
                },
                "successful": {"type": "boolean", "description": "Whether the call succeeded."},
            },
            ("id", "successful"),
            is_read_only=False,
        ),
    )
}


def check_arguments(spec: ToolSpec, arguments: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the arguments with defaults. Raise `InvalidToolCallError` that names what to change."""
    checked_arguments = dict(arguments or {})
    names = ", ".join(spec.properties)
    for name in checked_arguments:
        if name not in spec.properties:
            raise InvalidToolCallError(f"{spec.name} has no argument {str(name)[:80]!r}. Arguments: {names}.")
    for name in spec.required:
        if checked_arguments.get(name) is None:
            raise InvalidToolCallError(f"{spec.name} requires {name!r}: {_describe_property(spec.properties[name])}")
    for name, value in checked_arguments.items():
        if not _is_valid(spec.properties[name], value):
            raise InvalidToolCallError(
                f"Invalid {name!r} for {spec.name}. Expected: {_describe_property(spec.properties[name])}"
            )
    defaults = {
        name: property_schema["default"]
        for name, property_schema in spec.properties.items()
        if "default" in property_schema
    }
    return defaults | checked_arguments


def _is_valid(schema: Mapping[str, Any], value: Any) -> bool:
    import jsonschema_rs  # lazy: on the first call, not while the client waits for the tool list

    try:
        return bool(jsonschema_rs.validator_for(dict(schema)).is_valid(value))
    except (ValueError, RecursionError):  # too deep, or text that cannot be encoded
        return False


def _describe_property(schema: Mapping[str, Any]) -> str:
    limits = [f"{word} {schema[name]}" for name, word in _LIMITS.items() if name in schema]
    description = f"{schema['description']} ({', '.join([str(schema['type']), *limits])})"
    return f"{description}."


_LIMITS = {"minimum": "at least", "maximum": "at most", "maxLength": "characters at most", "pattern": "as in"}
