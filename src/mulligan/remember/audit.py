"""Who changed what, and when: an entry for every change by a person, kept in the transaction that makes the change.

The store knows what is changed; by whom is said once, by the door that somebody came through (`act_as`). Nothing here
takes an entry away. What it says has passed redaction; of what was forgotten it says how much, never what.
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
"""Characters of what an entry says."""


class Actor(msgspec.Struct, frozen=True):
    """Who acts, and through which door."""

    by: str
    via: Via = "library"
    token: str = ""
    """The id of the token that was shown."""


class Act(Record, frozen=True):
    """One change by a person."""

    id: str
    """Of two in one millisecond, the later one's is the greater."""
    at: int
    by: str
    do: str
    """`fix.approve`, `pattern.mute`, `token.revoke`, `forget.text` ..."""
    via: Via = "library"
    token: str = ""
    about: str = ""
    """The id or the name of what was changed."""
    told: str = ""
    """The rest, in a few words."""


class AuditQuery(Record, frozen=True):
    """Which changes, the newest first."""

    by: str | None = None
    do: str | None = None
    """One sort of change, or with a dot at its end all that begin so: `fix.`"""
    since: int | None = None
    until: int | None = None
    before: tuple[int, str] | None = None
    """The (at, id) of the last one that was seen: those that follow it."""
    limit: int = 50


class Noted(msgspec.Struct, frozen=True):
    """An entry, and whose it is: not always the tenant's whose row was changed."""

    tenant: str
    act: Act


_acting: contextvars.ContextVar[Actor | None] = contextvars.ContextVar("mulligan_acting", default=None)


def act_as(actor: Actor) -> None:
    """From now on, here, whatever is changed is changed by this one."""
    _acting.set(actor)


def acting() -> Actor:
    return _acting.get() or Actor(user())


def user() -> str:
    """Whose process this is."""
    import getpass  # decisions alone come here

    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container's number without a name
        return "somebody"


def entry(do: str, at: int, about: str = "", told: str = "") -> Act:
    """What is changed now, by whoever acts here."""
    from mulligan.redaction import Redactor  # decisions alone come here; not those who only record

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
    """`3 runs, 1 step`, without what there is none of."""
    return ", ".join(f"{many:,} {name if many != 1 else name[:-1]}" for name, many in numbers.items() if many) or "none"


def named(**words: object) -> str:
    """`tool search, since 5`, without what was not said."""
    return ", ".join(f"{name} {word}" for name, word in words.items() if word is not None)


def written(lessons: Sequence[Lesson], are_new: Sequence[bool]) -> tuple[str, str] | None:
    """Which lessons were written, and the rest in a few words: of many how many, and where they come from."""
    new = [lesson for lesson, is_new in zip(lessons, are_new, strict=True) if is_new]
    if len(new) > 1:
        return ", ".join(sorted({each.source for each in new})), counted(lessons=len(new))
    return (new[0].id, "") if new else None


def is_asked(act: Act, query: AuditQuery) -> bool:
    return (
        (query.by is None or act.by == query.by)
        and (query.do is None or act.do == query.do or (query.do.endswith(".") and act.do.startswith(query.do)))
        and (query.since is None or act.at >= query.since)
        and (query.until is None or act.at < query.until)
        and (query.before is None or (act.at, act.id) < tuple(query.before))
    )


# In a database

_ADDED = "INSERT INTO audit (tenant, at, id, body) VALUES (?, ?, ?, ?)"
Read = Callable[[str, Iterable[Any]], list[Any]]
LAST = (2**62, "")
SOME = 500


def note(writer: Any, tenant: str, act: Act) -> None:
    writer.execute(_ADDED, (tenant, act.at, act.id, encode(act)))


def found(read: Read, tenant: str, query: AuditQuery) -> list[Act]:
    """The entries that are asked for. There are few in all: people decide by hand."""
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
    """Takes a text out of what entries say; that something was changed, when and by whom stays."""
    for at, id, body in writer.execute("SELECT at, id, body FROM audit WHERE tenant = ?", (tenant,)).fetchall():
        act = decode(body, Act)
        if (kept := cut(act)) != act:
            row = (encode(kept), tenant, at, id)
            writer.execute("UPDATE audit SET body = ? WHERE tenant = ? AND at = ? AND id = ?", row)
