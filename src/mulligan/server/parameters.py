"""Query parameters: one declaration each, used for parsing and for the documentation."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from starlette.requests import Request

from mulligan.report.time_parsing import ACCEPTED_FORMATS, parse_time
from mulligan.server.errors import ApiError, invalid

ParameterType = Literal["text", "choice", "count", "moment", "cursor", "flag", "clock"]
MAX_PARAMETER_CHARS = 1000
MAX_TIMESTAMP_MS = 253_402_300_799_999


class Parameter(NamedTuple):
    """Declaration of one query parameter."""

    name: str
    type: ParameterType
    description: str
    choices: tuple[str, ...] = ()
    default: Any = None
    maximum: int = 1000

    @property
    def schema(self) -> dict[str, Any]:
        """JSON schema of the parameter for OpenAPI."""
        if self.type == "choice":
            schema: dict[str, Any] = {"type": "string", "enum": list(self.choices)}
        elif self.type == "count":
            schema = {"type": "integer", "minimum": 1, "maximum": self.maximum}
        elif self.type == "clock":
            schema = {"type": "integer", "minimum": 0, "maximum": MAX_TIMESTAMP_MS}
        elif self.type == "flag":
            schema = {"type": "boolean"}
        elif self.type == "moment":
            schema = {"type": "string", "examples": ["24h", "7d", "2026-01-31"], "maxLength": MAX_PARAMETER_CHARS}
        else:
            schema = {"type": "string", "maxLength": MAX_PARAMETER_CHARS}
        return schema | ({"default": self.default} if self.default is not None else {})

    def parse(self, text: str, now: int) -> Any:
        """Parse the text of a parameter. Raise `ValueError` with the accepted values."""
        match self.type:
            case "choice":
                if text not in self.choices:
                    raise ValueError(f"one of: {', '.join(self.choices)}")
                return text
            case "count":
                if not (text.isascii() and text.isdecimal() and len(text) < 10 and 1 <= int(text) <= self.maximum):
                    raise ValueError(f"a whole number from 1 to {self.maximum:,}")
                return int(text)
            case "clock":
                if not (text.isascii() and text.isdecimal() and len(text) < 16 and int(text) <= MAX_TIMESTAMP_MS):
                    raise ValueError("a time in UTC milliseconds")
                return int(text)
            case "flag":
                if text not in ("true", "false"):
                    raise ValueError("true or false")
                return text == "true"
            case "moment":
                if text.isascii() and text.isdecimal() and 12 <= len(text) <= 15 and int(text) <= MAX_TIMESTAMP_MS:
                    return int(text)
                try:
                    return parse_time(text, now)
                except ValueError:
                    raise ValueError(f"{ACCEPTED_FORMATS}, or UTC milliseconds") from None
            case _:
                return text


def read_parameters(request: Request, parameters: Iterable[Parameter], clock: int) -> dict[str, Any]:
    """Parse the query parameters of a request by name. Raise `ApiError` for unknown, repeated or invalid ones."""
    parameters_by_name = {parameter.name: parameter for parameter in parameters}
    raw_values: dict[str, str] = {}
    for name, text in request.query_params.multi_items():
        if name not in parameters_by_name:
            raise invalid(f"Unknown parameter {name[:80]!r}. Use: {', '.join(parameters_by_name)}.", name[:80])
        if name in raw_values:
            raise invalid(f"Duplicate parameter {name}. Send it once.", name)
        if len(text) > MAX_PARAMETER_CHARS:
            raise invalid(f"Parameter {name} exceeds {MAX_PARAMETER_CHARS:,} characters.", name)
        raw_values[name] = text
    values: dict[str, Any] = {parameter.name: parameter.default for parameter in parameters_by_name.values()}
    now = clock
    # Parse `now` first, because relative times depend on it.
    for name in sorted(raw_values, key=lambda name: name != "now"):
        try:
            values[name] = parameters_by_name[name].parse(raw_values[name], now)
        except ValueError as error:
            raise invalid(f"Invalid {name} {raw_values[name][:80]!r}. Use {error}.", name) from None
        if name == "now":
            now = values[name]
    for parameter in parameters_by_name.values():
        if parameter.type == "moment" and isinstance(values[parameter.name], str):
            values[parameter.name] = parse_time(values[parameter.name], now)
    if "now" in parameters_by_name:
        values["now"] = now
    since, until = values.get("since"), values.get("until")
    if since is not None and until is not None and since >= until:
        raise invalid("Invalid period: since is not before until.", "since")
    return values


def encode_cursor(*parts: object) -> str:
    return base64.urlsafe_b64encode("\n".join(map(str, parts)).encode()).decode().rstrip("=")


def decode_cursor(text: str, parts: int) -> list[str]:
    try:
        fields = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode().split("\n", parts - 1)
    except (binascii.Error, ValueError):
        fields = []
    if len(fields) != parts or not (fields[0].isascii() and fields[0].isdecimal() and len(fields[0]) < 17):
        raise invalid(
            "Invalid cursor. Use the value of next from the previous response, or omit it to start from the beginning.",
            "cursor",
        )
    return fields


def wants_csv(request: Request, values: Mapping[str, Any]) -> bool:
    """Return whether the response should be CSV: by the `format` parameter, else by the Accept header."""
    if values.get("format"):
        return bool(values["format"] == "csv")
    accepted = request.headers.get("accept", "")
    return "text/csv" in accepted and "json" not in accepted


def check_kind(kind: str | None, suffix: str) -> str | None:
    """Validate a kind. A type without a code gets the suffix appended."""
    if kind is None or ("/" in kind and not kind.endswith("/")):
        return kind
    if not kind.strip("/"):
        raise ApiError(
            400,
            "invalid",
            f"Invalid kind {kind[:80]!r}. Use a kind such as tool/timeout or a type such as tool.",
            "kind",
        )
    return kind.rstrip("/") + suffix
