"""Trace context of runs by W3C headers: `traceparent`, and `tracestate` with the id of our run.

Incoming headers are untrusted. An invalid header starts a new trace, as the standard requires, and is no error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import blake2b
from typing import NamedTuple, Protocol

from mulligan.core.failure import SettingsError

_HEADER = re.compile(r"(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_TRACESTATE_ENTRY = re.compile(r"(?:^|,)[ \t]*mulligan=([\w.:/-]{1,200})[ \t]*(?:,|$)", re.ASCII)


class Headers(Protocol):
    """Request headers of any library. Those of the standard library are not a Mapping."""

    def items(self) -> Iterable[tuple[str, str]]: ...


class TraceOrigin(NamedTuple):
    """The parent of a run in another program."""

    traceparent: str | None
    parent: str | None
    """The id of the parent run, if mulligan recorded it."""


def parse_trace_headers(headers: str | Headers) -> TraceOrigin:
    """Parse the header itself, or all headers of a request (HTTP headers, MCP's `_meta`), in any case."""
    if isinstance(headers, str):
        return TraceOrigin(_parse_traceparent(headers), None)
    if not callable(getattr(headers, "items", None)):
        type_name = type(headers).__name__
        raise SettingsError(
            f"Invalid traceparent of type {type_name}. Pass the traceparent header, or all headers of a request."
        )
    header_values = {str(name).lower(): value for name, value in headers.items()}
    header = header_values.get("traceparent")
    traceparent = _parse_traceparent(header) if isinstance(header, str) else None
    state = header_values.get("tracestate")
    # By the standard, a state without its trace is ignored.
    # Characters of a `tracestate` that are read; the standard guarantees 512.
    entry = _TRACESTATE_ENTRY.search(state[:8192]) if traceparent and isinstance(state, str) else None
    return TraceOrigin(traceparent, entry[1] if entry else None)


def _parse_traceparent(header: str) -> str | None:
    match = _HEADER.fullmatch(header.strip()[:200])
    if match is None or (match[1] == "00" and match[5]) or not int(match[2], 16) or not int(match[3], 16):
        return None
    return f"00-{match[2]}-{match[3]}-{match[4]}"


def build_trace_headers(run: str, root: str, incoming: str | None) -> dict[str, str]:
    """Build the headers for outgoing requests, in the incoming trace or in one derived from the outermost run."""
    trace, flags = find_trace_id(root, incoming), incoming[53:] if incoming else "01"
    entry = _TRACESTATE_ENTRY.fullmatch(f"mulligan={run}")
    state = {"tracestate": f"mulligan={run}"} if entry and entry[1] == run else {}
    return {"traceparent": f"00-{trace}-{_hex(f'run {run}', 8)}-{flags}", **state}


def find_trace_id(root: str, incoming: str | None) -> str:
    """Return the id of the incoming trace, or of the one derived from the outermost run."""
    return incoming[3:35] if incoming else _hex(f"trace {root}", 16)


def _hex(text: str, length: int) -> str:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=length).hexdigest()
