"""Wire protocol of the HTTP store: its methods, the roles they require, and the JSON encoding of both sides."""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec

from mulligan.failure import Kind
from mulligan.figures import Stats, StatsQuery
from mulligan.figures.histogram import Histogram
from mulligan.records import Fix, History, Lesson, LessonSource, LessonVerdict, Pattern, Precedent, Record, Run
from mulligan.remember.store import (
    Act,
    AuditQuery,
    Command,
    Consolidated,
    Evidence,
    FixQuery,
    Forget,
    Forgotten,
    Health,
    LessonQuery,
    PatternQuery,
    Pruned,
    Question,
    Retention,
    Revocation,
    Revoked,
    RunQuery,
)

T = TypeVar("T")
TYPE = "application/json"
REMOTE = "remote:"
"""Prefix of journals on other machines."""
KEPT_BACK = frozenset({"key", "server"})
"""Kinds of key-value entries that the server never returns: keys and tokens."""


class Method(NamedTuple):
    """A store method: the required role, the types of its arguments after the tenant, and the type of its result."""

    needs: Literal["ingest", "read", "admin"]
    takes: tuple[Any, ...]
    gives: Any


METHODS: dict[str, Method] = {
    "offset": Method("ingest", (str,), int),
    "journals": Method("ingest", (), list[str]),
    "release": Method("ingest", (list[str],), None),
    "ended": Method("ingest", (list[str],), list[str]),
    "get": Method("ingest", (str, str), bytes | None),
    "put": Method("ingest", (str, str, bytes), None),
    "swap": Method("ingest", (str, str, bytes | None, bytes), bool),
    "keys": Method("ingest", (str,), list[str]),
    "runs": Method("read", (RunQuery,), list[History]),
    "run": Method("read", (str,), History | None),
    "find": Method("read", (str, int), list[Run]),
    "known": Method("read", (list[str],), list[str]),
    "health": Method("read", (), Health),
    "evidence": Method("read", (str, int), list[Evidence]),
    "patterns": Method("read", (PatternQuery,), list[Pattern]),
    "pattern": Method("read", (str,), Pattern | None),
    "lessons": Method("read", (LessonQuery,), list[Lesson]),
    "lesson": Method("read", (str, int), Lesson | None),
    "audit": Method("admin", (AuditQuery,), list[Act]),
    "stats": Method("read", (StatsQuery,), Stats),
    "prune": Method("admin", (Retention, int, bool), Pruned),
    "forget": Method("admin", (Forget,), Forgotten),
    "decide": Method("admin", (str, bool, int), bool),
    "revoke": Method("admin", (Revocation,), Revoked),
    "change": Method("admin", (Command,), Pattern | None),
    "keep_lesson": Method("admin", (Lesson,), bool),
    "keep_lessons": Method("admin", (list[Lesson],), list[bool]),
    "remove_lessons": Method("admin", (LessonSource,), int),
    "decide_lesson": Method("admin", (str, LessonVerdict, int), Lesson | None),
    "consolidate": Method("admin", (int, None, int | None), Consolidated),
}


class Asked(Record, frozen=True):
    """Query for precedents of a failure and for fixes."""

    question: Question | None = None
    fixes: FixQuery | None = None


class Known(Record, frozen=True):
    precedents: tuple[Precedent, ...] = ()
    fixes: tuple[Fix, ...] = ()


class Report(Record, frozen=True):
    """The outcome of a fix whose calls are not in this store. The token identifies the author."""

    fix: str
    run: str
    worked: bool
    at: int = 0
    agent: str = ""
    automatic: bool = False


def _out(value: Any) -> Any:
    return b64encode(bytes(value)).decode() if isinstance(value, Histogram) else str(value)


def _in(type: type, value: Any) -> Any:
    if type is Histogram:
        return Histogram.read(b64decode(value))
    if type is Kind and isinstance(value, str):
        return Kind.named(value)
    raise ValueError(f"Expected another value than {value.__class__.__name__}")


packed = msgspec.json.Encoder(enc_hook=_out).encode


def arguments(method: str, data: bytes) -> tuple[Any, ...]:
    """Decode the arguments of a method."""
    takes: Any = METHODS[method].takes
    found: tuple[Any, ...] = unpacked(data, tuple.__class_getitem__(takes or ((),)))
    return found


def unpacked(data: bytes, type: Any) -> Any:
    return msgspec.json.decode(data, type=type, dec_hook=_in)
