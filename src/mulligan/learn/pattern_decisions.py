"""Decisions of people about patterns: owner, state, link and comments, and what reopens a resolved pattern.

Stored apart from the counters, which can be recomputed. The state of a pattern follows from the decision and from
what happened since, each time it is read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit

import msgspec

from mulligan.contract.audit import current_actor
from mulligan.contract.store import DAY, OWN_NAME, PatternAction, PatternCommand
from mulligan.core.failure import UnsupportedOperationError
from mulligan.core.records import Pattern, PatternEvent, PatternState, Record, decode, encode
from mulligan.core.version_order import compute_version_key
from mulligan.redaction import Redactor, sanitize

MAX_NOTE_CHARS = 2000
"""Longest note or comment."""
MAX_NAME_CHARS, MAX_LINK_CHARS = 80, 500
MAX_EVENTS = 100
"""Events of a pattern that are stored, the newest."""


class PatternDecision(Record, frozen=True):
    """The decision of people about a pattern."""

    state: PatternState | None = None
    at: int = 0
    reopened: int = 0
    into: str | None = None
    note: str = ""
    owner: str = ""
    link: str = ""
    acknowledged: bool = False
    version: str = ""
    """The version in which it is resolved."""
    until: int | None = None
    max_per_day: int | None = None
    day_count: int = 0
    """Occurrences on the day of the decision, before it."""


class SeenVersion(NamedTuple):
    """A version in which a pattern occurred again."""

    version: str
    failed_at: int
    """Start of the run."""
    first_run_at: int
    """Start of the first run of this version."""


class Occurrences(Protocol):
    """What happened to patterns since a decision."""

    def find_versions(self, ids: Collection[str], since: int) -> list[SeenVersion]:
        """Return the versions of runs that began after this time and have these patterns, the earliest first."""

    def find_first_run(self, version: str) -> int | None:
        """Return when the first run of a version began."""

    def count_days(self, ids: Collection[str], first_day: int) -> Mapping[int, int]:
        """Return the occurrences of these patterns by day, from this day on."""


def apply_decision(decision: PatternDecision, pattern: Pattern, occurrences: Occurrences, now: int) -> Pattern:
    """Return the pattern with its state, and what people decided about it."""
    is_recent = pattern.last_seen_at - pattern.first_seen_at < DAY
    fields = {name: getattr(decision, name) for name in ("note", "owner", "link", "acknowledged", "reopened")}
    if decision.state == "muted" and _is_muted(decision, pattern, occurrences, now):
        fields |= {"state": "muted", "muted_until": decision.until, "muted_max_per_day": decision.max_per_day}
    elif decision.state == "resolved":
        fields |= {"resolved_version": decision.version, "resolved_at": decision.at}
        if regression := _find_regression(decision, pattern, occurrences):
            fields |= {"state": "active", "reopened": decision.reopened + 1,
                       "regressed_at": regression.failed_at, "regressed_version": regression.version}  # fmt: skip
        else:
            fields |= {"state": "resolved"}
    else:
        fields |= {"state": "new" if is_recent else "active"}
    return msgspec.structs.replace(pattern, **fields)


def _is_muted(decision: PatternDecision, pattern: Pattern, occurrences: Occurrences, now: int) -> bool:
    if decision.until is not None and now >= decision.until:
        return False
    if decision.max_per_day is None:
        return True
    first_day = decision.at // DAY * DAY
    days = occurrences.count_days((pattern.id, *pattern.merged), first_day)
    return all(count - decision.day_count * (day == first_day) <= decision.max_per_day for day, count in days.items())


def _find_regression(decision: PatternDecision, pattern: Pattern, occurrences: Occurrences) -> SeenVersion | None:
    """Return the version in which a resolved pattern occurred again, if that reopens it."""
    if pattern.last_seen_at <= decision.at:
        return None
    versions = occurrences.find_versions((pattern.id, *pattern.merged), decision.at)
    if not decision.version:
        # An occurrence may belong to a run that began before.
        return versions[0] if versions else SeenVersion("", pattern.last_seen_at, 0)
    resolved_at = occurrences.find_first_run(decision.version)
    return next(
        (
            seen_version
            for seen_version in versions
            if not _is_older(seen_version, decision.version, resolved_at, decision.at)
        ),
        None,
    )


def _is_older(seen_version: SeenVersion, version: str, version_seen_at: int | None, decided_at: int) -> bool:
    """Return whether a version is older than another: by their numbers, else by their first runs.

    A version without a run yet is newer than all that had one when it was named. Without a version, it is unknown,
    and an occurrence reopens the pattern.
    """
    if not seen_version.version or seen_version.version == version:
        return False
    keys = compute_version_key(seen_version.version), compute_version_key(version)
    if keys[0] is not None and keys[1] is not None and keys[0][0] == keys[1][0]:
        return keys[0] < keys[1]
    return (
        seen_version.first_run_at <= decided_at
        if version_seen_at is None
        else seen_version.first_run_at < version_seen_at
    )


# Commands


_TEXT_ACTIONS: dict[PatternAction, bool] = {"assign": False, "link": False, "comment": True, "resolve": False}
"""The actions that take a text, and whether they need one. For the others, an empty text removes what it sets."""


def apply_command(command: PatternCommand, before: PatternDecision, current: Pattern) -> PatternDecision:
    """Return the decision after a command. `current` is the pattern before the command."""
    _check_command(command)
    text = command.text.strip()
    replace = msgspec.structs.replace
    undecided = replace(
        before,
        state=None,
        at=0,
        reopened=current.reopened,
        acknowledged=False,
        version="",
        until=None,
        max_per_day=None,
    )
    match command.action:
        case "mute":
            day_count = current.days.get(command.at // DAY * DAY, 0)
            muted = replace(undecided, state="muted", at=command.at, acknowledged=before.acknowledged)
            return replace(muted, until=command.until, max_per_day=command.max_per_day, day_count=day_count)
        case "resolve":
            return replace(undecided, state="resolved", at=command.at, version=_check_name(text, "version"))
        case "unmute" | "reopen":
            return undecided
        case "acknowledge":
            return replace(undecided, acknowledged=True)
        case "assign":
            return replace(before, owner=_check_name(resolve_owner(text), "owner"))
        case "link":
            return replace(before, link=_check_link(text))
        case "comment":
            return before
        case "note":
            return replace(before, note=_clean(command.note))
        case "merge" | "split":
            return replace(before, into=command.into if command.action == "merge" else None)


def _check_command(command: PatternCommand) -> None:
    """Raise an error for fields that the action does not take, or lacks."""
    if command.text and command.action not in _TEXT_ACTIONS:
        raise UnsupportedOperationError(f"The action {command.action} takes no text.")
    if not command.text.strip() and _TEXT_ACTIONS.get(command.action):
        raise UnsupportedOperationError(f"The {command.action} is empty. Add a text.")
    if (command.until is not None or command.max_per_day is not None) and command.action != "mute":
        raise UnsupportedOperationError("Only mute takes a time or a rate.")


def resolve_owner(name: str) -> str:
    """Return the name of an owner: of the caller for `me`."""
    return current_actor().by if name == OWN_NAME else name


def _check_name(name: str, noun: str) -> str:
    if len(name) > MAX_NAME_CHARS or name != _clean(name) or "\n" in name:
        raise UnsupportedOperationError(
            f"Invalid {noun}. Use at most {MAX_NAME_CHARS} characters in one line, without secrets and personal data: "
            "a name or team, not an e-mail address."
        )
    return name


def _check_link(link: str) -> str:
    """Return the address of an issue. Raise an error unless browsers can open it and it holds no secret."""
    try:
        parts = urlsplit(link)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc
    except ValueError:
        is_address = False
    is_printable = link.isascii() and link.isprintable() and not set(link) & set(" <>\"'`\\|")
    if link and not (is_address and is_printable and len(link) <= MAX_LINK_CHARS and Redactor().text(link) == link):
        raise UnsupportedOperationError(
            f"Invalid link. Use an http or https address of at most {MAX_LINK_CHARS} characters without credentials."
        )
    return link


def _clean(text: str) -> str:
    return sanitize(Redactor().text(text), MAX_NOTE_CHARS)


# History


def add_event(stored: bytes | None, command: PatternCommand) -> bytes:
    """Return the stored history of a pattern with the event of a command."""
    details = {"merge": command.into or "", "note": command.note}
    text = details.get(command.action, resolve_owner(command.text.strip()) if command.text else "")
    limits = (("until", command.until), ("max_per_day", command.max_per_day))
    text = text or " ".join(f"{name} {limit}" for name, limit in limits if limit is not None)
    event = PatternEvent(command.at, _clean(current_actor().by), command.action, _clean(text))
    return encode((event, *read_history(stored))[:MAX_EVENTS])


def read_history(stored: bytes | None) -> tuple[PatternEvent, ...]:
    return decode(stored, tuple[PatternEvent, ...]) if stored else ()
