"""Query parameters: one declaration each, used for parsing and for the documentation."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from starlette.requests import Request

from mulligan.report.moments import FORMS, moment
from mulligan.serve.api.errors import Refused, invalid

Sort = Literal["text", "choice", "count", "moment", "cursor", "flag", "clock"]
LONGEST = 1000
LATEST = 253_402_300_799_999


class Parameter(NamedTuple):
    """Declaration of one query parameter."""

    name: str
    sort: Sort
    told: str
    choices: tuple[str, ...] = ()
    default: Any = None
    most: int = 1000

    @property
    def schema(self) -> dict[str, Any]:
        """JSON schema of the parameter for OpenAPI."""
        if self.sort == "choice":
            schema: dict[str, Any] = {"type": "string", "enum": list(self.choices)}
        elif self.sort == "count":
            schema = {"type": "integer", "minimum": 1, "maximum": self.most}
        elif self.sort == "clock":
            schema = {"type": "integer", "minimum": 0, "maximum": LATEST}
        elif self.sort == "flag":
            schema = {"type": "boolean"}
        elif self.sort == "moment":
            schema = {"type": "string", "examples": ["24h", "7d", "2026-01-31"], "maxLength": LONGEST}
        else:
            schema = {"type": "string", "maxLength": LONGEST}
        return schema | ({"default": self.default} if self.default is not None else {})

    def read(self, text: str, now: int) -> Any:
        """Parse the text of a parameter. Raise `ValueError` with the accepted values."""
        match self.sort:
            case "choice":
                if text not in self.choices:
                    raise ValueError(f"one of {', '.join(self.choices)}")
                return text
            case "count":
                if not (text.isascii() and text.isdecimal() and len(text) < 10 and 1 <= int(text) <= self.most):
                    raise ValueError(f"a whole number from 1 to {self.most:,}")
                return int(text)
            case "clock":
                if not (text.isascii() and text.isdecimal() and len(text) < 16 and int(text) <= LATEST):
                    raise ValueError("a moment in UTC milliseconds")
                return int(text)
            case "flag":
                if text not in ("true", "false"):
                    raise ValueError("true or false")
                return text == "true"
            case "moment":
                if text.isascii() and text.isdecimal() and 12 <= len(text) <= 15 and int(text) <= LATEST:
                    return int(text)
                try:
                    return moment(text, now)
                except ValueError:
                    raise ValueError(f"{FORMS}, or UTC milliseconds") from None
            case _:
                return text


def read(request: Request, parameters: Iterable[Parameter], clock: int) -> dict[str, Any]:
    """Parse the query parameters of a request by name. Raise `ApiError` for unknown, repeated or invalid ones."""
    known = {each.name: each for each in parameters}
    given: dict[str, str] = {}
    for name, text in request.query_params.multi_items():
        if name not in known:
            raise invalid(f"there is no parameter {name[:80]!r} here. There are: {', '.join(known)}.", name[:80])
        if name in given:
            raise invalid("it is given twice.", name)
        if len(text) > LONGEST:
            raise invalid(f"it has more than {LONGEST:,} characters.", name)
        given[name] = text
    found: dict[str, Any] = {each.name: each.default for each in known.values()}
    now = clock
    # Parse `now` first, because relative times depend on it.
    for name in sorted(given, key=lambda name: name != "now"):
        try:
            found[name] = known[name].read(given[name], now)
        except ValueError as error:
            raise invalid(f"it takes {error}, got {given[name][:80]!r}.", name) from None
        if name == "now":
            now = found[name]
    for parameter in known.values():
        if parameter.sort == "moment" and isinstance(found[parameter.name], str):
            found[parameter.name] = moment(found[parameter.name], now)
    if "now" in known:
        found["now"] = now
    since, until = found.get("since"), found.get("until")
    if since is not None and until is not None and since >= until:
        raise invalid("it is not before until.", "since")
    return found


def cursor(*parts: object) -> str:
    return base64.urlsafe_b64encode("\n".join(map(str, parts)).encode()).decode().rstrip("=")


def cursor_read(text: str, parts: int) -> list[str]:
    try:
        found = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode().split("\n", parts - 1)
    except (binascii.Error, ValueError):
        found = []
    if len(found) != parts or not (found[0].isascii() and found[0].isdecimal() and len(found[0]) < 17):
        raise invalid("it is none that we gave. Leave it out to begin at the beginning.", "cursor")
    return found


def wants_csv(request: Request, found: Mapping[str, Any]) -> bool:
    """Return whether the response should be CSV: by the `format` parameter, else by the Accept header."""
    if found.get("format"):
        return bool(found["format"] == "csv")
    accepted = request.headers.get("accept", "")
    return "text/csv" in accepted and "json" not in accepted


def check_kind(kind: str | None, after: str) -> str | None:
    """Validate a kind. A type without a code gets the suffix appended."""
    if kind is None or ("/" in kind and not kind.endswith("/")):
        return kind
    if not kind.strip("/"):
        raise Refused(400, "invalid", "it takes a kind, such as tool/timeout, or a type, such as tool.", "kind")
    return kind.rstrip("/") + after
