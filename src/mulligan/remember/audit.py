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

from mulligan.records import Lesson, Record, decode, encode, new_id
from mulligan.redaction import clean

Via = Literal["command", "page", "api", "library"]
LONGEST = 300
"""Maximum length of each text in an entry."""


class Actor(msgspec.Struct, frozen=True):
    """Author of a change and the interface used."""

    by: str
    via: Via = "library"
    token: str = ""
    """Id of the token that authenticated the request."""


class Act(Record, frozen=True):
    """One change by a person, as stored in the audit log."""

    id: str
    """Sortable: of two entries in one millisecond, the later one has the greater id."""
    at: int
    by: str
    do: str
    """`fix.approve`, `pattern.mute`, `token.revoke`, `forget.text` ..."""
    via: Via = "library"
    token: str = ""
    about: str = ""
    """Id or name of the changed object."""
    told: str = ""
    """Further details, as short text."""


class AuditQuery(Record, frozen=True):
    """Filter for audit entries. Results are ordered newest first."""

    by: str | None = None
    do: str | None = None
    """Exact action, or a prefix that ends with a dot: `fix.` matches `fix.approve` and `fix.revoke`."""
    since: int | None = None
    until: int | None = None
    before: tuple[int, str] | None = None
    """Cursor: the (at, id) of the last entry already returned."""
    limit: int = 50


class Noted(msgspec.Struct, frozen=True):
    """Audit entry with its tenant, which may differ from the tenant of the changed row."""

    tenant: str
    act: Act


_acting: contextvars.ContextVar[Actor | None] = contextvars.ContextVar("mulligan_acting", default=None)


def act_as(actor: Actor) -> None:
    """Set the author of all following changes in the current context."""
    _acting.set(actor)


def acting() -> Actor:
    """Return the actor set in this context, else the operating system user."""
    return _acting.get() or Actor(user())


def user() -> str:
    """Return the name of the operating system user that runs this process."""
    import getpass  # lazy: only audited changes need it

    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # e.g. a container with a numeric uid that has no name
        return "somebody"


def entry(do: str, at: int, about: str = "", told: str = "") -> Act:
    """Build the entry for a change by the current actor, with redacted texts."""
    from mulligan.redaction import Redactor  # lazy: processes that only record do not need it

    redactor = Redactor()

    def shown(text: str) -> str:
        return clean(redactor.text(text[: 4 * LONGEST]), LONGEST)

    who = acting()
    return Act(
        id=f"act_{time.time_ns():016x}{new_id()[-4:]}",
        at=at,
        by=shown(who.by),
        do=do,
        via=who.via,
        token=who.token,
        about=shown(about),
        told=shown(told),
    )


def counted(**numbers: int) -> str:
    """Format counts as `3 runs, 1 step`. Skip zeros."""
    return ", ".join(f"{many:,} {name if many != 1 else name[:-1]}" for name, many in numbers.items() if many) or "none"


def named(**words: object) -> str:
    """Format fields as `tool search, since 5`. Skip None."""
    return ", ".join(f"{name} {word}" for name, word in words.items() if word is not None)


def written(lessons: Sequence[Lesson], are_new: Sequence[bool]) -> tuple[str, str] | None:
    """Return target and detail of the audit entry for saved lessons, or None if none is new.

    One new lesson is named by its id. Several are summarized by their sources and their count.
    """
    new = [lesson for lesson, is_new in zip(lessons, are_new, strict=True) if is_new]
    if len(new) > 1:
        return ", ".join(sorted({each.source for each in new})), counted(lessons=len(new))
    return (new[0].id, "") if new else None


def is_asked(act: Act, query: AuditQuery) -> bool:
    """Return whether an entry matches the query, `limit` aside."""
    return (
        (query.by is None or act.by == query.by)
        and (query.do is None or act.do == query.do or (query.do.endswith(".") and act.do.startswith(query.do)))
        and (query.since is None or act.at >= query.since)
        and (query.until is None or act.at < query.until)
        and (query.before is None or (act.at, act.id) < tuple(query.before))
    )


# Database access

_ADDED = "INSERT INTO audit (tenant, at, id, body) VALUES (?, ?, ?, ?)"
Read = Callable[[str, Iterable[Any]], list[Any]]
LAST = (2**62, "")
SOME = 500


def note(writer: Any, tenant: str, act: Act) -> None:
    """Insert an entry in the writer's transaction."""
    writer.execute(_ADDED, (tenant, act.at, act.id, encode(act)))


def found(read: Read, tenant: str, query: AuditQuery) -> list[Act]:
    """Return the entries that match the query, newest first.

    Author and action are filtered in Python: the log holds manual changes only, so it is small.
    """
    acts: list[Act] = []
    after = query.before or (LAST if query.until is None else (query.until, ""))
    while len(acts) < query.limit:
        rows = read(
            "SELECT at, id, body FROM audit WHERE tenant = ? AND (at, id) < (?, ?) AND at >= ? "
            "ORDER BY at DESC, id DESC LIMIT ?",
            (tenant, *after, query.since or 0, SOME),
        )
        acts += [act for *_, body in rows if is_asked(act := decode(body, Act), query)]
        if len(rows) < SOME:
            break
        after = (rows[-1][0], rows[-1][1])
    return acts[: max(query.limit, 0)]


def forget(writer: Any, tenant: str, cut: Callable[[Act], Act]) -> None:
    """Erase a text from all entries of a tenant. The entries themselves stay.

    `erase` returns the entry without the text.
    """
    for at, id, body in writer.execute("SELECT at, id, body FROM audit WHERE tenant = ?", (tenant,)).fetchall():
        act = decode(body, Act)
        if (kept := cut(act)) != act:
            row = (encode(kept), tenant, at, id)
            writer.execute("UPDATE audit SET body = ? WHERE tenant = ? AND at = ? AND id = ?", row)
