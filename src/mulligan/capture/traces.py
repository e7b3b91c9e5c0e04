"""Trace context of runs by W3C headers: `traceparent`, and `tracestate` with the id of our run.

Incoming headers are untrusted. An invalid header starts a new trace, as the standard requires, and is no error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import blake2b
from typing import NamedTuple, Protocol

from mulligan.failure import SettingsError

_HEADER = re.compile(r"(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_OURS = re.compile(r"(?:^|,)[ \t]*mulligan=([\w.:/-]{1,200})[ \t]*(?:,|$)", re.ASCII)
STATE = 8192
"""Characters of a `tracestate` that are read; the standard guarantees 512."""


class Headers(Protocol):
    """Request headers of any library. Those of the standard library are not a Mapping."""

    def items(self) -> Iterable[tuple[str, str]]: ...


class Above(NamedTuple):
    """The parent of a run in another program."""

    traceparent: str | None
    parent: str | None
    """The id of the parent run, if mulligan recorded it."""


def above(given: str | Headers) -> Above:
    """Parse the header itself, or all headers of a request (HTTP headers, MCP's `_meta`), in any case."""
    if isinstance(given, str):
        return Above(_read(given), None)
    if not callable(getattr(given, "items", None)):
        sort = type(given).__name__
        raise SettingsError(f"traceparent is the header of that name, or all headers of a request, got a {sort}.")
    said = {str(name).lower(): value for name, value in given.items()}
    header = said.get("traceparent")
    traceparent = _read(header) if isinstance(header, str) else None
    state = said.get("tracestate")
    # By the standard, a state without its trace is ignored.
    ours = _OURS.search(state[:STATE]) if traceparent and isinstance(state, str) else None
    return Above(traceparent, ours[1] if ours else None)


def _read(header: str) -> str | None:
    found = _HEADER.fullmatch(header.strip()[:200])
    if found is None or (found[1] == "00" and found[5]) or not int(found[2], 16) or not int(found[3], 16):
        return None
    return f"00-{found[2]}-{found[3]}-{found[4]}"


def below(run: str, root: str, came_in: str | None) -> dict[str, str]:
    """Build the headers for outgoing requests, in the incoming trace or in one derived from the outermost run."""
    trace, flags = (came_in[3:35], came_in[53:]) if came_in else (_hex(f"trace {root}", 16), "01")
    ours = _OURS.fullmatch(f"mulligan={run}")
    state = {"tracestate": f"mulligan={run}"} if ours and ours[1] == run else {}
    return {"traceparent": f"00-{trace}-{_hex(f'run {run}', 8)}-{flags}", **state}


def _hex(text: str, length: int) -> str:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=length).hexdigest()
