"""Audit log: one entry for every change by a person, written in the transaction that makes the change.

The store supplies the change. The entry point (command, page, API) sets the actor once, with `set_actor`. No function
here deletes an entry. Entry texts are redacted; entries about deleted data give counts, never the data.
"""

from __future__ import annotations

import contextvars
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import msgspec

from mulligan.core.records import Lesson, Record, decode, encode, new_id
from mulligan.redaction import sanitize

Via = Literal["command", "page", "api", "library"]
MAX_TEXT_CHARS = 300
"""Maximum length of each text in an entry."""


class Actor(msgspec.Struct, frozen=True):
    """Author of a change and the interface used."""

    by: str
    via: Via = "library"
    token: str = ""
    """Id of the token that authenticated the request."""


class AuditEntry(Record, frozen=True):
    """One change by a person, as stored in the audit log."""

    id: str
    """Sortable: of two entries in one millisecond, the later one has the greater id."""
    at: int
    by: str
    action: str
    """`fix.approve`, `pattern.mute`, `token.revoke`, `forget.text` ..."""
    via: Via = "library"
    token: str = ""
    target: str = ""
    """Id or name of the changed object."""
    detail: str = ""
    """Further details, as short text."""


class AuditQuery(Record, frozen=True):
    """Filter for audit entries. Results are ordered newest first."""

    by: str | None = None
    action: str | None = None
    """Exact action, or a prefix that ends with a dot: `fix.` matches `fix.approve` and `fix.revoke`."""
    since: int | None = None
    until: int | None = None
    before: tuple[int, str] | None = None
    """The position of the last entry of the previous page."""
    limit: int = 50

    def position_of(self, entry: AuditEntry) -> tuple[int, str]:
        """Return the sort key of an entry: the newest first."""
        return entry.at, entry.id


class AuditNote(msgspec.Struct, frozen=True):
    """Audit entry with its tenant, which may differ from the tenant of the changed row."""

    tenant: str
    entry: AuditEntry


_current_actor: contextvars.ContextVar[Actor | None] = contextvars.ContextVar("mulligan_acting", default=None)


def set_actor(actor: Actor) -> None:
    """Set the author of all following changes in the current context."""
    _current_actor.set(actor)


def current_actor() -> Actor:
    """Return the actor set in this context, else the operating system user."""
    return _current_actor.get() or Actor(current_user())


def current_user() -> str:
    """Return the name of the operating system user that runs this process."""
    import getpass  # lazy: only audited changes need it

    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # e.g. a container with a numeric uid that has no name
        return "unknown"


def build_entry(do: str, at: int, target: str = "", detail: str = "") -> AuditEntry:
    """Build the entry for a change by the current actor, with redacted texts."""
    from mulligan.redaction import Redactor  # lazy: processes that only record do not need it

    redactor = Redactor()

    def redact(text: str) -> str:
        return sanitize(redactor.text(text[: 4 * MAX_TEXT_CHARS]), MAX_TEXT_CHARS)

    actor = current_actor()
    return AuditEntry(
        id=f"act_{time.time_ns():016x}{new_id()[-4:]}",
        at=at,
        by=redact(actor.by),
        action=do,
        via=actor.via,
        token=actor.token,
        target=redact(target),
        detail=redact(detail),
    )


def format_counts(**counts: int) -> str:
    """Format counts as `3 runs, 1 step`. Skip zeros."""
    parts = (f"{count:,} {name if count != 1 else name[:-1]}" for name, count in counts.items() if count)
    return ", ".join(parts) or "none"


def format_fields(**fields: object) -> str:
    """Format fields as `tool search, since 5`. Skip None."""
    return ", ".join(f"{name} {value}" for name, value in fields.items() if value is not None)


def describe_saved_lessons(lessons: Sequence[Lesson], are_new: Sequence[bool]) -> tuple[str, str] | None:
    """Return target and detail of the audit entry for saved lessons, or None if none is new.

    One new lesson is named by its id. Several are summarized by their sources and their count.
    """
    new = [lesson for lesson, is_new in zip(lessons, are_new, strict=True) if is_new]
    if len(new) > 1:
        return ", ".join(sorted({lesson.source for lesson in new})), format_counts(lessons=len(new))
    return (new[0].id, "") if new else None


def matches_query(entry: AuditEntry, query: AuditQuery) -> bool:
    """Return whether an entry matches the query, `limit` aside."""
    is_prefix = query.action is not None and query.action.endswith(".")
    return (
        query.by in (None, entry.by)
        and (query.action in (None, entry.action) or (is_prefix and entry.action.startswith(query.action or "")))
        and (query.since is None or entry.at >= query.since)
        and (query.until is None or entry.at < query.until)
        and (query.before is None or (entry.at, entry.id) < tuple(query.before))
    )


# Database access

Read = Callable[[str, Iterable[Any]], list[Any]]
READ_BATCH_ROWS = 500


def insert_entry(writer: Any, tenant: str, entry: AuditEntry) -> None:
    sql = "INSERT INTO audit (tenant, at, id, body) VALUES (?, ?, ?, ?)"
    writer.execute(sql, (tenant, entry.at, entry.id, encode(entry)))


def find_entries(read: Read, tenant: str, query: AuditQuery) -> list[AuditEntry]:
    """Return the entries that match the query, newest first.

    Author and action are filtered in Python: the log holds manual changes only, so it is small.
    """
    entries: list[AuditEntry] = []
    after = query.before or ((2**62, "") if query.until is None else (query.until, ""))
    while len(entries) < query.limit:
        rows = read(
            "SELECT at, id, body FROM audit WHERE tenant = ? AND (at, id) < (?, ?) AND at >= ? "
            "ORDER BY at DESC, id DESC LIMIT ?",
            (tenant, *after, query.since or 0, READ_BATCH_ROWS),
        )
        entries += [entry for *_, body in rows if matches_query(entry := decode(body, AuditEntry), query)]
        if len(rows) < READ_BATCH_ROWS:
            break
        after = (rows[-1][0], rows[-1][1])
    return entries[: max(query.limit, 0)]


def erase_from_entries(writer: Any, tenant: str, erase: Callable[[AuditEntry], AuditEntry]) -> None:
    """Erase a text from all entries of a tenant. The entries themselves stay.

    `erase` returns the entry without the text.
    """
    for at, id, body in writer.execute("SELECT at, id, body FROM audit WHERE tenant = ?", (tenant,)).fetchall():
        entry = decode(body, AuditEntry)
        if (erased_entry := erase(entry)) != entry:
            row = (encode(erased_entry), tenant, at, id)
            writer.execute("UPDATE audit SET body = ? WHERE tenant = ? AND at = ? AND id = ?", row)
