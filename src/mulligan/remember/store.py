"""Store: the one interface between what happened and where it is kept, in four small protocols.

Synchronous. `append` is called from the recorder's thread only; everything else from any thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import msgspec

from mulligan.classify.fingerprint import template
from mulligan.events import AnyEvent
from mulligan.failure import Failure
from mulligan.figures import Stats, StatsQuery
from mulligan.records import (
    Fix,
    FixState,
    History,
    Lesson,
    LessonSource,
    LessonState,
    LessonVerdict,
    Pattern,
    PatternState,
    Precedent,
    Record,
    Run,
    Status,
)
from mulligan.remember.audit import Act as Act
from mulligan.remember.audit import AuditQuery as AuditQuery
from mulligan.remember.audit import Noted as Noted

LOCAL = "local"
"""The tenant of a store that has one user."""
IMPORTED = "import:"
"""How the name of a journal begins whose records happened elsewhere: `prune` leaves them alone until asked."""
DAY = 24 * 60 * 60 * 1000
"""In milliseconds, as all times here."""


ITEMS_KIND = "items"
"""Key-value entries: by tool key, the arguments that name items."""
MAX_ITEM_ARGUMENTS = 100


def parse_items(value: bytes | None) -> frozenset[str]:
    """Return the arguments of a tool that name items, from their key-value entry."""
    return frozenset(msgspec.json.decode(value, type=list[str])) if value is not None else frozenset()


def merge_items(value: bytes | None, arguments: Collection[str]) -> bytes | None:
    """Return the entry with these arguments added; None where it has them all."""
    known = parse_items(value)
    added = [argument for argument in arguments if argument not in known]
    return msgspec.json.encode(sorted({*known, *added})[:MAX_ITEM_ARGUMENTS]) if added else None


def journals_of(store: Path) -> Path:
    """The folder of the journals that belong to a store: beside it, so that whoever opens the one finds the others."""
    return store.with_name(f"{store.name}.journals")


def now() -> int:
    """By the clock of this machine."""
    return time.time_ns() // 1_000_000


class RunQuery(Record, frozen=True):
    """Which runs, the newest first. Times are UTC milliseconds; the clock is the asker's."""

    agent: str | None = None
    session: str | None = None
    environment: str | None = None
    version: str | None = None
    status: Status | None = None
    tool: str | None = None
    """With a step of this name."""
    model: str | None = None
    """With a step that called this model, or that it drove: `figures.model_of`."""
    kind: str | None = None
    """With a failure of this kind: `tool/timeout`, or `tool/` for all of a source."""
    pattern: str | None = None
    """With a failure of the pattern of this id."""
    since: int | None = None
    until: int | None = None
    limit: int = 20
    before: tuple[int, str] | None = None
    """The (started, id) of the last run that was seen: those that follow it."""


class PatternQuery(Record, frozen=True):
    """Which patterns, and over which time they are counted."""

    state: PatternState | None = None
    """Without it all but the muted ones."""
    tool: str | None = None
    kind: str | None = None
    agent: str | None = None
    text: str | None = None
    """In the tool's name, the kind, the message or its template, in any case."""
    since: int | None = None
    """Seen since then. `count`, `overcome`, `given_up` and `days` are then those of the days from this one on."""
    new_since: int | None = None
    """Seen for the first time since then."""
    order: Literal["count", "given_up", "last", "first"] = "count"
    """The highest first."""
    limit: int = 20


class Command(Record, frozen=True):
    """What a person decides about a pattern."""

    do: Literal["mute", "unmute", "resolve", "reopen", "merge", "split"]
    """`merge` counts `pattern` as part of `into`; `split` makes it one of its own again."""
    pattern: str
    into: str | None = None
    at: int = 0
    """When, by the clock of who decides: a failure that began later reopens what was resolved."""


class Retention(Record, frozen=True):
    """How long what is kept. Age counts from when a record came into the store. None is for ever."""

    failures: int | None = 90 * DAY
    """Runs in which something failed."""
    successes: int | None = 30 * DAY
    """Runs in which nothing did."""
    hours: int | None = 35 * DAY
    """Counters by the hour, four days at least; those by the day stay."""
    size: int | None = None
    """Bytes of the file: beyond it the oldest runs go, those that worked first."""
    sample: float = 1.0
    """The share of plain successes that stays once they are older than `sample_after`. Figures were counted before."""
    sample_after: int = 7 * DAY
    compress_after: int | None = 7 * DAY
    imports: bool = False
    """Whether what was imported is pruned too."""


class Pruned(Record, frozen=True):
    """What retention removed, or would remove."""

    runs: int = 0
    steps: int = 0
    sampled: int = 0
    """Steps of plain successes that others now stand for."""
    compressed: int = 0
    counters: int = 0
    before: int = 0
    after: int = 0
    """Bytes of the file. What a rehearsal would free is not known beforehand."""


class Forget(Record, frozen=True):
    """What is to be as if it had never been: one of these."""

    run: str | None = None
    tool: str | None = None
    """Every step of this name."""
    session: str | None = None
    text: str | None = None
    """Wherever it stands: a record stays without it."""
    learned: int | None = None
    """What was learned from runs that began before this time, in UTC milliseconds. The runs themselves stay."""


class Forgotten(Record, frozen=True):
    """How much was removed, or changed because a text was taken out of it."""

    runs: int = 0
    steps: int = 0
    patterns: int = 0
    shelf: int = 0
    fixes: int = 0
    lessons: int = 0

    def __bool__(self) -> bool:
        return bool(self.runs or self.steps or self.patterns or self.shelf or self.fixes or self.lessons)


class Question(Record, frozen=True):
    """What is known about a failure of this tool with this fingerprint?"""

    tool: str
    fingerprint: str
    run: str = ""
    """The run that asks: that it met the failure just now says nothing about what helps."""
    limit: int = 5


Shape = tuple[tuple[str, str], ...]
"""The names of a call's arguments and their JSON types, in the order of the names."""
_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}


def shape_of(arguments: Any) -> Shape:
    """What a call looks like, without any of its values."""
    if not isinstance(arguments, Mapping):
        return ()
    named = ((str(name)[:200], _TYPES.get(type(value), "null")) for name, value in list(arguments.items())[:50])
    return tuple(sorted(named))


class FixQuery(Record, frozen=True):
    """Which fixes: of one failure (tool and fingerprint), of a tool, or all."""

    tool: str | None = None
    key: str = ""
    """Identity of the tool: fixes of another tool of the same name are left out."""
    tellable: bool = False
    """Only those that a model may be told about."""
    fingerprint: str | None = None
    text: str = ""
    """The failure's message with what varies masked: where its own pattern has no fix, those like it are asked."""
    kind: str = ""
    """The failure's: one that is worded alike and of another kind is another failure."""
    shape: Shape = ()
    """What the call looks like: where nothing like its failure was ever overcome, calls that worked are asked."""
    agent: str = ""
    """Who asks: what helped the same agent comes first."""
    schema: str = ""
    """The digest of the tool's schema as who asks knows it: what was proven under another one is not proven."""
    without: str = ""
    """A run that teaches nothing here, because it is the one that is asked about."""
    state: FixState | None = None
    now: int = 0
    """By the clock of who asks: whether a fix is proven depends on it."""
    within: float = 0.0
    """Seconds, after which what has been found so far is the answer; 0 for as long as it takes."""
    limit: int = 5

    @property
    def is_question(self) -> bool:
        """Whether it is about a failure that is waiting for an answer."""
        return bool(self.fingerprint)

    @classmethod
    def about(cls, tool: str, failure: Failure, arguments: Mapping[str, Any] | None = None, **asked: Any) -> FixQuery:
        """What helps against this failure? Without the call's arguments only the very same pattern is asked."""
        text = template(failure.message, arguments) if arguments is not None else ""
        shape = shape_of(arguments)
        return cls(
            tool=tool, fingerprint=failure.fingerprint, text=text, kind=str(failure.kind), shape=shape, **asked
        )  # fmt: skip


class Revocation(Record, frozen=True):
    """Whose and which records memory must not rest on: by who wrote them, by tool, by when their run began."""

    principal: str | None = None
    tool: str | None = None
    since: int | None = None
    until: int | None = None


class Revoked(Record, frozen=True):
    """How much rested on what was revoked."""

    runs: int = 0
    votes: int = 0
    fixes: int = 0


class Evidence(Record, frozen=True):
    """One run's trial of a fix."""

    run: str
    principal: str
    agent: str = ""
    at: int = 0
    worked: bool = True
    automatic: bool = False


class LessonQuery(Record, frozen=True):
    """Which lessons, the best proven first. What is in force comes before what is not."""

    tool: str | None = None
    fingerprint: str | None = None
    """Of one failure of the tool."""
    text: str = ""
    """In its tool, its kind or its words, in any case; or a message that looks like the one it is about."""
    kind: str | None = None
    """`tool/timeout`, or `tool/` for all of a source."""
    agent: str = ""
    """Who asks: what helped the same agent comes first."""
    state: LessonState | None = None
    source: LessonSource | None = None
    now: int = 0
    """By the clock of who asks: whether a lesson is proven depends on it."""
    limit: int = 20


class Consolidated(Record, frozen=True):
    """What became of fixes and recipes that have changed since the last time."""

    patterns: int = 0
    """Looked at."""
    left: int = 0
    """Still to be looked at, where that was bounded."""
    lessons: tuple[Lesson, ...] = ()
    """Those that are new, have other words, or came into force."""


class Health(Record, frozen=True):
    """Whether a store can be used, and how much is in it."""

    where: str
    sound: bool
    runs: int = 0
    steps: int = 0
    note: str = ""


class Batch(NamedTuple):
    """What is appended at once; the fields are those of `append`."""

    tenant: str
    events: Sequence[AnyEvent]
    journal: str
    offset: int
    principal: str = ""


Progress = Callable[[int, int], None]
"""Told how much of how much is done, now and then."""


class Records(Protocol):
    def append(self, tenant: str, batch: Sequence[AnyEvent], journal: str, offset: int, principal: str = "") -> int:
        """Keeps a batch and answers how many of its records were new.

        `principal` is who wrote it, where several do: what is learned from it is that one's vote (SAFETY S3).

        A batch is known by its journal and the offset at its end: one that was kept before changes nothing.
        """

    def append_all(self, batches: Sequence[Batch]) -> list[int]:
        """Keeps several batches, all of them or none; of each how many of its records were new."""

    def offset(self, tenant: str, journal: str) -> int:
        """Up to where this journal is kept; 0 if nothing of it is."""

    def journals(self, tenant: str) -> list[str]:
        """The journals of which anything is kept."""

    def release(self, tenant: str, journals: Sequence[str]) -> None:
        """Forgets up to where these journals are kept: they are gone, and nothing of them will come again."""

    def runs(self, tenant: str, query: RunQuery) -> list[History]: ...

    def run(self, tenant: str, id: str) -> History | None: ...

    def known(self, tenant: str, ids: Sequence[str]) -> set[str]:
        """Which of these runs there are."""

    def ended(self, tenant: str, ids: Sequence[str]) -> set[str]:
        """Which of these runs have ended. Whoever may only write asks it too: nothing of a run is in the answer."""

    def find(self, tenant: str, prefix: str, limit: int = 5) -> list[Run]:
        """The runs whose id starts so, the newest first."""

    def export(self, tenant: str, since: int = 0) -> Iterator[History]:
        """Every run begun since then, the oldest first."""

    def prune(
        self, tenant: str, policy: Retention, now: int, dry_run: bool = False, progress: Progress | None = None
    ) -> Pruned:
        """Removes what is older than it should be; with `dry_run` only says what that is."""

    def forget(self, tenant: str, what: Forget) -> Forgotten:
        """Removes it everywhere: from rows, patterns, links, figures, shelf and the free space of the file."""

    def erase(self, tenant: str) -> int:
        """Removes everything of a tenant, whatever it is, but the audit log; how many rows that were."""

    def audit(self, tenant: str, query: AuditQuery) -> list[Act]:
        """What people changed, the newest first. Every method here that a person decides by adds an entry to it."""

    def backup(self, to: Path, progress: Progress | None = None, replaces: bool = False) -> Health:
        """A copy of everything, of one moment, while others write; and whether the copy is sound."""

    def health(self, tenant: str) -> Health: ...

    def close(self) -> None: ...


class Memory(Protocol):
    def recall(self, tenant: str, question: Question) -> list[Precedent]:
        """What overcame the same failure before, the most often first. Nothing is a good answer."""

    def fixes(self, tenant: str, query: FixQuery) -> list[Fix]:
        """What turned failures into successes, with its record; the likeliest first."""

    def evidence(self, tenant: str, fix: str, limit: int = 100) -> list[Evidence]:
        """What a fix rests on, the newest first."""

    def outcome(self, tenant: str, fix: str, report: Evidence) -> bool:
        """Whether a fix worked for somebody whose calls are not kept here; False where there is no such fix."""

    def decide(self, tenant: str, fix: str, approved: bool, at: int) -> bool:
        """Approves a fix, or takes it back; False where there is none of this id."""

    def revoke(self, tenant: str, what: Revocation) -> Revoked:
        """From now on `recall` and `fixes` answer as if these records had never been seen."""

    def lessons(self, tenant: str, query: LessonQuery) -> list[Lesson]:
        """What overcomes patterns, in words, with its evidence; the best proven first."""

    def lesson(self, tenant: str, id: str, now: int = 0) -> Lesson | None:
        """One, by its id or any unambiguous beginning of it; as it is by this clock, else by the store's."""

    def keep_lesson(self, tenant: str, lesson: Lesson) -> bool:
        """Takes the words of a lesson that a person wrote; whether anything changed.

        Of one that is known its words alone are taken, and from then on they are a person's. One that is not known is
        a proposal. Figures, state and verdicts are never taken: a file proves nothing.
        """

    def keep_lessons(self, tenant: str, lessons: Sequence[Lesson]) -> list[bool]:
        """The same of several at once, with one entry in the audit log for all of them."""

    def remove_lessons(self, tenant: str, source: LessonSource) -> int:
        """Takes out all lessons that came from there, and what was said of them; how many those were."""

    def decide_lesson(self, tenant: str, id: str, verdict: LessonVerdict, at: int) -> Lesson | None:
        """The lesson after what a person said of it; None where there is none of this id."""

    def consolidate(
        self, tenant: str, now: int, progress: Progress | None = None, most: int | None = None
    ) -> Consolidated:
        """Makes lessons of the fixes and recipes that have changed since the last time; of so many patterns at most."""

    def patterns(self, tenant: str, query: PatternQuery) -> list[Pattern]:
        """In the order asked for, without examples."""

    def pattern(self, tenant: str, id: str) -> Pattern | None:
        """One with everything known about it, by its id, any unambiguous beginning of it, or one merged into it."""

    def change(self, tenant: str, command: Command) -> Pattern | None:
        """The pattern as it is after the decision; None where there is none of this id."""


class Figures(Protocol):
    def stats(self, tenant: str, query: StatsQuery) -> Stats:
        """What `figures.stats` would answer of everything that was ever kept, and not forgotten."""


class Shelf(Protocol):
    def get(self, tenant: str, kind: str, key: str) -> bytes | None: ...

    def put(self, tenant: str, kind: str, key: str, value: bytes) -> None: ...

    def swap(
        self, tenant: str, kind: str, key: str, known: bytes | None, value: bytes, noted: Noted | None = None
    ) -> bool:
        """Puts it if what is there is still what the caller knows, None for nothing; whether it was.

        With `noted` the audit log has an entry together with it, or neither is there.
        """

    def keys(self, tenant: str, kind: str) -> list[str]:
        """What is there of this kind, in order."""


@runtime_checkable
class Store(Records, Memory, Figures, Shelf, Protocol):
    """Everything a place to keep failures must do; `tests/contract/test_store.py` says it in tests."""
