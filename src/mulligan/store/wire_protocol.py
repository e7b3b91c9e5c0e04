"""Wire protocol of the HTTP store: its methods, the roles they require, and the JSON encoding of both sides."""

from __future__ import annotations

import inspect
from base64 import b64decode, b64encode
from functools import cache
from typing import Any, Literal, NamedTuple, TypeVar, get_type_hints

import msgspec

from mulligan.contract.counters import Histogram, Stats, StatsQuery
from mulligan.contract.store import AuditNote, FixQuery, Progress, RecallQuery, Store
from mulligan.core.failure import Kind
from mulligan.core.records import Fix, Precedent, Record, build_decoder

T = TypeVar("T")
CONTENT_TYPE = "application/json"
EXPORT_CONTENT_TYPE = "application/x-ndjson"
REMOTE_JOURNAL_PREFIX = "remote:"
"""Prefix of journals on other machines."""
SERVER_ONLY_KINDS = frozenset({"key", "server"})
"""Kinds of key-value entries that the server never returns: keys and tokens."""


RequiredRole = Literal["lookup", "ingest", "read", "admin"]
"""What a caller must be permitted. Every role may look up entries and what recovered a failure."""


class StoreMethod(NamedTuple):
    """A store method: the required role, the types of its arguments after the tenant, and the type of its result."""

    required_role: RequiredRole
    argument_types: tuple[Any, ...]
    result_type: Any


_METHOD_NAMES: dict[RequiredRole, str] = {
    "lookup": "get keys recall fixes",
    "ingest": "offset journals release ended_runs put compare_and_set",
    "read": "runs run sessions find find_ids runs_by_id health evidence value_profiles patterns pattern lessons "
    "lesson stats",
    "admin": "audit prune forget preview_forget decide revoke update_pattern save_lesson save_lessons remove_lessons "
    "decide_lesson consolidate",
}
_LOCAL_TYPES = (Progress | None, AuditNote | None)
"""Types of arguments that are not sent."""


def _describe_method(role: RequiredRole, name: str) -> StoreMethod:
    """Read the types of a method from the `Store` protocol. The tenant is not sent: the token identifies it."""
    method = getattr(Store, name)
    hints = get_type_hints(method, localns={"Stats": Stats, "StatsQuery": StatsQuery})
    types = [hints[parameter] for parameter in list(inspect.signature(method).parameters)[2:]]
    while types and types[-1] in _LOCAL_TYPES:
        types.pop()
    result_type = None if hints["return"] is type(None) else hints["return"]
    return StoreMethod(role, tuple(None if type in _LOCAL_TYPES else type for type in types), result_type)


METHODS = {name: _describe_method(role, name) for role, names in _METHOD_NAMES.items() for name in names.split()}
"""The methods of `Store` that a server offers."""


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
    argument_types: Any = METHODS[method].argument_types
    decoded: tuple[Any, ...] = decode_value(data, tuple.__class_getitem__(argument_types or ((),)))
    return decoded


def decode_value(data: bytes, type: Any) -> Any:
    return _decoder_of(type).decode(data)


@cache
def _decoder_of(type: Any) -> msgspec.json.Decoder[Any]:
    return build_decoder(type, _in)
