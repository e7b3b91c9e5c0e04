"""Wire protocol of the HTTP store: its methods, the roles they require, and the JSON encoding of both sides."""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec

from mulligan.core.failure import Kind
from mulligan.core.records import Fix, History, Lesson, LessonSource, LessonVerdict, Pattern, Precedent, Record, Run
from mulligan.store.base import (
    AuditEntry,
    AuditQuery,
    ConsolidationResult,
    FixQuery,
    ForgetRequest,
    ForgetResult,
    Health,
    LessonQuery,
    PatternCommand,
    PatternQuery,
    PruneResult,
    RecallQuery,
    Retention,
    Revocation,
    RevokeResult,
    RunQuery,
    TrialReport,
)
from mulligan.store.counters import Stats, StatsQuery
from mulligan.store.counters.histogram import Histogram

T = TypeVar("T")
CONTENT_TYPE = "application/json"
REMOTE_JOURNAL_PREFIX = "remote:"
"""Prefix of journals on other machines."""
SERVER_ONLY_KINDS = frozenset({"key", "server"})
"""Kinds of key-value entries that the server never returns: keys and tokens."""


class StoreMethod(NamedTuple):
    """A store method: the required role, the types of its arguments after the tenant, and the type of its result."""

    required_role: Literal["ingest", "read", "admin"]
    argument_types: tuple[Any, ...]
    result_type: Any


METHODS: dict[str, StoreMethod] = {
    "offset": StoreMethod("ingest", (str,), int),
    "journals": StoreMethod("ingest", (), list[str]),
    "release": StoreMethod("ingest", (list[str],), None),
    "ended_runs": StoreMethod("ingest", (list[str],), set[str]),
    "get": StoreMethod("ingest", (str, str), bytes | None),
    "put": StoreMethod("ingest", (str, str, bytes), None),
    "compare_and_set": StoreMethod("ingest", (str, str, bytes | None, bytes), bool),
    "keys": StoreMethod("ingest", (str,), list[str]),
    "runs": StoreMethod("read", (RunQuery,), list[History]),
    "run": StoreMethod("read", (str,), History | None),
    "find": StoreMethod("read", (str, int), list[Run]),
    "existing_runs": StoreMethod("read", (list[str],), set[str]),
    "health": StoreMethod("read", (), Health),
    "evidence": StoreMethod("read", (str, int), list[TrialReport]),
    "patterns": StoreMethod("read", (PatternQuery,), list[Pattern]),
    "pattern": StoreMethod("read", (str,), Pattern | None),
    "lessons": StoreMethod("read", (LessonQuery,), list[Lesson]),
    "lesson": StoreMethod("read", (str, int), Lesson | None),
    "audit": StoreMethod("admin", (AuditQuery,), list[AuditEntry]),
    "stats": StoreMethod("read", (StatsQuery,), Stats),
    "prune": StoreMethod("admin", (Retention, int, bool), PruneResult),
    "forget": StoreMethod("admin", (ForgetRequest,), ForgetResult),
    "decide": StoreMethod("admin", (str, bool, int), bool),
    "revoke": StoreMethod("admin", (Revocation,), RevokeResult),
    "update_pattern": StoreMethod("admin", (PatternCommand,), Pattern | None),
    "save_lesson": StoreMethod("admin", (Lesson,), bool),
    "save_lessons": StoreMethod("admin", (list[Lesson],), list[bool]),
    "remove_lessons": StoreMethod("admin", (LessonSource,), int),
    "decide_lesson": StoreMethod("admin", (str, LessonVerdict, int), Lesson | None),
    "consolidate": StoreMethod("admin", (int, None, int | None), ConsolidationResult),
}


class RecallRequest(Record, frozen=True):
    """Query for precedents of a failure and for fixes."""

    question: RecallQuery | None = None
    fixes: FixQuery | None = None


class RecallResponse(Record, frozen=True):
    precedents: tuple[Precedent, ...] = ()
    fixes: tuple[Fix, ...] = ()


class OutcomeReport(Record, frozen=True):
    """The outcome of a fix whose calls are not in this store. The token identifies the author."""

    fix_id: str
    run: str
    successful: bool
    at: int = 0
    agent: str = ""
    automatic: bool = False


def _out(value: Any) -> Any:
    return b64encode(bytes(value)).decode() if isinstance(value, Histogram) else str(value)


def _in(type: type, value: Any) -> Any:
    if type is Histogram:
        return Histogram.read(b64decode(value))
    if type is Kind and isinstance(value, str):
        return Kind.from_name(value)
    raise ValueError(f"Expected another value than {value.__class__.__name__}")


encode_value = msgspec.json.Encoder(enc_hook=_out).encode


def decode_arguments(method: str, data: bytes) -> tuple[Any, ...]:
    """Decode the arguments of a method."""
    argument_types: Any = METHODS[method].argument_types
    decoded: tuple[Any, ...] = decode_value(data, tuple.__class_getitem__(argument_types or ((),)))
    return decoded


def decode_value(data: bytes, type: Any) -> Any:
    return msgspec.json.decode(data, type=type, dec_hook=_in)
