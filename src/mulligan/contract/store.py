"""The store interface: four small protocols between the program and its database.

All methods are synchronous. Only the recorder's thread calls `append`; all other methods can be called from any thread.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

import msgspec

from mulligan.contract.audit import AuditEntry as AuditEntry
from mulligan.contract.audit import AuditNote as AuditNote
from mulligan.contract.audit import AuditQuery as AuditQuery
from mulligan.contract.run_facts import RUN_FACTS, RUN_ORDERS, compute_facts
from mulligan.core.argument_rejections import TextVerdict, judge_failure
from mulligan.core.events import AnyEvent
from mulligan.core.failure import Failure, UnsupportedOperationError
from mulligan.core.records import (
    Fix,
    FixState,
    History,
    Lesson,
    LessonSource,
    LessonState,
    LessonVerdict,
    Pattern,
    PatternStatus,
    Precedent,
    Record,
    Run,
    Status,
    ValueProfile,
    decode,
    digest,
    encode,
)

if TYPE_CHECKING:
    from mulligan.contract.counters import Stats, StatsQuery

HASH_KEY = ("key", "export")
"""Entry of a tenant with the key by which redaction at level `shared` hashes values. Only servers and files read it."""
DEFAULT_TENANT = "local"
"""The tenant of a store with a single user."""
IMPORT_PRINCIPAL = "import"
"""Principal of imported logs. Its trials alone never promote a fix."""
IMPORT_PREFIX = "import:"
"""Prefix of journals with imported records, which `prune` skips unless told otherwise.

Also the prefix of the principal that sent such records to a server.
"""
DAY = 24 * 60 * 60 * 1000
"""One day in milliseconds, the unit of all times here."""

MIN_ERASED_CHARS = 4
"""A shorter text occurs by chance in unrelated values, which erasing it would damage."""
REFLECTION_KIND = "reflection"
"""Kind of the entries of a reflector: its usage per day, and the outcomes of its answers per tool."""
ITEMS_KIND = "items"
"""Kind of the key-value entries with the arguments of a tool that name items, by tool key."""


def parse_items(value: bytes | None) -> frozenset[str]:
    """Return the arguments of a tool that name items, from their key-value entry."""
    return frozenset(msgspec.json.decode(value, type=list[str])) if value is not None else frozenset()


def merge_items(value: bytes | None, arguments: Collection[str]) -> bytes | None:
    """Return the entry with these arguments added; None if it has them all."""
    existing = parse_items(value)
    added = [argument for argument in arguments if argument not in existing]
    return msgspec.json.encode(sorted({*existing, *added})[:100]) if added else None


def journals_of(store: Path) -> Path:
    """Return the folder of a store's journals: next to the store, so that every process that opens it finds them."""
    return store.with_name(f"{store.name}.journals")


def now() -> int:
    """Return the current time in milliseconds by the local clock."""
    return time.time_ns() // 1_000_000


class RunQuery(Record, frozen=True):
    """Filters for runs, and their order. Times are UTC milliseconds by the caller's clock."""

    agent: str | None = None
    session: str | None = None
    environment: str | None = None
    version: str | None = None
    status: Status | None = None
    tool: str | None = None
    """Only runs with a step of this name."""
    model: str | None = None
    """Only runs with a step that called this model, or that this model requested: `contract.counters.model_of`."""
    kind: str | None = None
    """Only runs with a failure of this kind: `tool/timeout`, or `tool/` for all kinds of a type."""
    pattern: str | None = None
    """Only runs with a failure of the pattern with this id."""
    text: str | None = None
    """Only runs that contain these words and phrases: `contract.search_terms`."""
    since: int | None = None
    until: int | None = None
    min_facts: dict[str, float] = msgspec.field(default_factory=dict)
    """The least values of facts in their units, by name (`RUN_FACTS`). A run that has not ended has no duration."""
    order: str = "started"
    """The name of a fact, or `started`, in descending order."""
    limit: int = 20
    before: tuple[int, str] | None = None
    """The position of the last run of the previous page."""

    def __post_init__(self) -> None:
        if self.order not in RUN_ORDERS:
            raise ValueError(f"Invalid order {self.order!r}. Use one of: {', '.join(RUN_ORDERS)}.")
        if unknown := self.min_facts.keys() - RUN_FACTS.keys():
            raise ValueError(f"Invalid facts {', '.join(unknown)}. Use some of: {', '.join(RUN_FACTS)}.")

    @property
    def minima(self) -> dict[str, int]:
        """The least values of facts, as stored, by name."""
        return {name: math.ceil(minimum * RUN_FACTS[name].scale) for name, minimum in self.min_facts.items()}

    def position_of(self, history: History) -> tuple[int, str]:
        """Return the sort key of a run. It is unique, so pages stay complete while runs are added."""
        key = history.run.started_at if self.order == "started" else compute_facts(history)[self.order]
        return key, history.run.id


class SessionQuery(Record, frozen=True):
    """Filters for sessions, the one with the newest run first. Times are UTC milliseconds by the caller's clock."""

    agent: str | None = None
    text: str | None = None
    """Part of the session's id."""
    since: int | None = None
    """Only sessions with a run that started since then. Their counts cover all runs."""
    until: int | None = None
    limit: int = 20
    before: tuple[int, str] | None = None
    """The position of the last session of the previous page."""

    def position_of(self, session: SessionSummary) -> tuple[int, str]:
        """Return the sort key of a session: the newest first."""
        return session.last_run_at, session.last_run


class SessionSummary(Record, frozen=True):
    """The runs with one session id."""

    id: str
    runs: int
    unrecovered: int
    """Runs that ended partial or failed."""
    first_run_at: int
    last_run_at: int
    last_run: str
    """The id of the newest run."""
    agents: tuple[str, ...] = ()


MIN_NEW_TIME = 2 * DAY
"""A pattern stays new at least so long, so that a person who asks what is new since yesterday hears of it."""
DEFAULT_CHANGE_DAYS = 7
"""Days, with the current one, in which something is new if no period is given."""


def find_new_start(since: int | None, now: int) -> int:
    """Return since when a pattern must have been first seen to be new: in the period, or in the last 48 hours."""
    start = since or now // DAY * DAY - (DEFAULT_CHANGE_DAYS - 1) * DAY
    return min(start, now - MIN_NEW_TIME)


OWN_NAME = "me"
"""Stands for the caller as the owner of a pattern."""


class PatternQuery(Record, frozen=True):
    """Filters for patterns, and the period in which they are counted."""

    state: PatternStatus | None = None
    """If None, all but muted patterns. `new` and `active` include acknowledged and regressed ones."""
    tool: str | None = None
    kind: str | None = None
    agent: str | None = None
    text: str | None = None
    """Part of the tool name, kind, message or template, ignoring case."""
    since: int | None = None
    """Only patterns that occurred since then. Their counts and `days` then start at that day."""
    new_since: int | None = None
    """Only patterns that first occurred since then."""
    owner: str | None = None
    """Only patterns of this owner; `me` for the caller."""
    regressed: bool = False
    """Only patterns that occurred again after they were resolved."""
    order: Literal["occurrences", "unrecovered", "last_seen", "first_seen"] = "occurrences"
    """In descending order."""
    limit: int = 20
    after: tuple[int, str] | None = None
    """The position of the last pattern of the previous page."""

    def position_of(self, pattern: Pattern) -> tuple[int, str]:
        """Return the sort key of a pattern. It is unique, so pages stay complete while other patterns change."""
        field = {"last_seen": "last_seen_at", "first_seen": "first_seen_at"}.get(self.order, self.order)
        return -getattr(pattern, field), pattern.id


PatternAction = Literal[
    "merge", "mute", "unmute", "resolve", "reopen", "split", "note", "acknowledge", "assign", "link", "comment"
]
ListedResource = Literal["runs", "patterns", "fixes", "lessons"]


class PatternCommand(Record, frozen=True):
    action: PatternAction
    """`merge` counts `pattern` as part of `into`; `split` undoes that. `note` replaces the note of people."""
    pattern: str
    into: str | None = None
    note: str = ""
    at: int = 0
    """When, by the clock of the caller. A failure that began later reopens a resolved pattern."""
    text: str = ""
    """For `assign` the owner, for `link` the address, for `comment` the comment, for `resolve` the version."""
    until: int | None = None
    max_per_day: int | None = None
    """For `mute`: until this time, or while it occurs at most so often per day."""


PATTERN_HISTORY_KIND = "pattern history"
"""Kind of the key-value entries with what people did with a pattern, by pattern id. Only the store writes them."""


class Retention(Record, frozen=True):
    """Retention policy. Age counts from when a record was stored; None means forever."""

    keep_failures: int | None = 90 * DAY
    """Maximum age of runs with a failure."""
    keep_successes: int | None = 30 * DAY
    """Maximum age of runs without a failure."""
    keep_hourly: int | None = 35 * DAY
    """Maximum age of hourly counters, at least four days. Daily counters are retained."""
    max_size: int | None = None
    """Maximum size of the store in bytes. Beyond it, the oldest runs are deleted, successful ones first."""
    sample: float = 1.0
    """The share of simple successes to retain after `sample_after`. Metrics are not affected."""
    sample_after: int = 7 * DAY
    compress_after: int | None = 7 * DAY
    include_imported: bool = False
    """Whether imported runs are pruned, too."""


class PruneResult(Record, frozen=True):
    """What retention removed, or would remove in a dry run."""

    runs: int = 0
    steps: int = 0
    sampled: int = 0
    """Simple successes that sampling removed."""
    compressed: int = 0
    counters: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    """Size of the store in bytes. Equal in a dry run, which cannot predict it."""


FORGOTTEN_KIND = "forgotten"
"""Key-value kind of erased sessions and runs, by a digest of their id: logs on disk must not bring them back."""


def forgotten_key(id: str) -> str:
    return digest(id.encode("utf-8", "replace"), 16).hex()


class ForgetRequest(Record, frozen=True):
    """What to erase permanently; exactly one field is set."""

    run: str | None = None
    tool: str | None = None
    """All steps of this name."""
    session: str | None = None
    text: str | None = None
    """All occurrences of this text. The records remain without it."""
    learned: int | None = None
    """Everything learned from runs that began before this time, in UTC milliseconds. The runs remain."""

    def validate(self) -> str:
        """Return the name of the field that is set. Raise unless it is exactly one, and its text is long enough."""
        criteria = [name for name in self.__struct_fields__ if getattr(self, name) is not None]
        if len(criteria) != 1:
            raise UnsupportedOperationError(
                "Select exactly one of run, tool, session, text or learned records to delete."
            )
        if self.text is not None and len(self.text) < MIN_ERASED_CHARS:
            raise UnsupportedOperationError(
                f"Text {self.text!r} is too short to delete safely. Use at least {MIN_ERASED_CHARS} characters."
            )
        return criteria[0]


class ForgetResult(Record, frozen=True):
    """How many records were removed or changed by erasing."""

    runs: int = 0
    steps: int = 0
    patterns: int = 0
    key_value_entries: int = 0
    fixes: int = 0
    lessons: int = 0
    messages: int = 0
    """Messages of recorded conversations, counted in each run that has them."""

    def __bool__(self) -> bool:
        return any(getattr(self, name) for name in self.__struct_fields__)


class RecallQuery(Record, frozen=True):
    """Query for precedents of a failure, by tool and fingerprint."""

    tool: str
    fingerprint: str
    run: str = ""
    """The querying run. Its own occurrence of the failure does not count against precedents."""
    limit: int = 5


ArgumentTypes = tuple[tuple[str, str], ...]
"""The argument names of a call with their JSON types, sorted by name."""
ArgumentHashes = tuple[tuple[str, str], ...]
"""The argument names of a call with hashes of their values; empty for values without one."""
_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}


def argument_type(value: Any) -> str:
    return _TYPES.get(type(value), "null")


def argument_types(arguments: Any) -> ArgumentTypes:
    """Return the types of a call's arguments, without values."""
    if not isinstance(arguments, Mapping):
        return ()
    typed_names = ((str(name)[:200], argument_type(value)) for name, value in list(arguments.items())[:50])
    return tuple(sorted(typed_names))


def hash_value(value: Any) -> str:
    """Return a short hash of a stored value. Equal values have equal hashes."""
    try:
        return digest(_sorted_encoder.encode(value), 6).hex()
    except (TypeError, ValueError, RecursionError):  # an in-memory store may hold values that JSON cannot encode
        return digest(repr(value)[:10_000].encode("utf-8", "replace"), 6).hex()


_sorted_encoder = msgspec.json.Encoder(enc_hook=str, order="sorted")


def hash_arguments(arguments: Mapping[str, Any] | None) -> ArgumentHashes:
    """Return a hash of each argument of a call. Without arguments, nothing is known of them."""
    return tuple((str(name)[:200], _hash_scalar(value)) for name, value in list((arguments or {}).items())[:50])


def _hash_scalar(value: Any) -> str:
    """Return the hash of a short text, a number or a similar value. Empty for others: lists may contain each other."""
    # Longer texts are not hashed.
    is_hashed = len(value) <= 10_000 if type(value) is str else type(value) in (bool, float, NoneType)
    if type(value) is int:
        is_hashed = abs(value) < 2**63
    return hash_value(value) if is_hashed else ""


def list_numbers(arguments: Mapping[str, Any] | None) -> tuple[tuple[str, float], ...]:
    """Return the arguments of a call that are finite numbers."""
    numbers = (
        (str(name)[:200], float(value))
        for name, value in list((arguments or {}).items())[:50]
        if type(value) in (int, float) and abs(value) < 2**63
    )
    return tuple((name, value) for name, value in numbers if value == value)


class FixQuery(Record, frozen=True):
    """Filters for fixes: of one failure (tool and fingerprint), of a tool, or all."""

    tool: str | None = None
    key: str = ""
    """Identity of the tool. Fixes of another tool with the same name are excluded."""
    showable: bool = False
    """Only fixes that the model may see."""
    fingerprint: str | None = None
    text: str = ""
    """The message template of the failure. If its own pattern has no fix, similar patterns are searched."""
    kind: str = ""
    """The kind of the failure. Similar texts of another kind are other failures."""
    argument_types: ArgumentTypes = ()
    """The types of the call's arguments, which select exemplars if no similar failure has a fix."""
    agent: str = ""
    """The querying agent. Fixes that helped the same agent come first."""
    schema: str = ""
    """The tool's current schema digest. Promotions under another schema do not count."""
    excluded_run: str = ""
    """A run whose trials are excluded, because the query is about it."""
    state: FixState | None = None
    now: int = 0
    """The time of the query by the caller's clock. The state of a fix depends on it."""
    timeout_seconds: float = 0.0
    """Time limit, after which the fixes found so far are returned; 0 means no limit."""
    limit: int = 5
    after: tuple[float, bool, int, int, str] | None = None
    """The position of the last fix of the previous page."""
    argument_hashes: ArgumentHashes = ()
    """Hashes of the call's values. A fix that replaced other values is left out. Empty if they are unknown."""
    argument_numbers: tuple[tuple[str, float], ...] = ()
    """Those of the call's values that are numbers: a bound that other numbers showed may apply to them."""
    verdict: TextVerdict = "rejection"
    """Whether the error rejects what was asked, describes the state of the world, or does neither."""
    error: str = ""
    """The message template of the failure. It may name a call that must come first, or say "too large"."""

    def position_of(self, fix: Fix) -> tuple[float, bool, int, int, str]:
        """Return the sort key of a fix."""
        return -fix.similarity, self.agent not in fix.agents, -fix.successes, fix.trials, fix.id

    @property
    def is_about_failure(self) -> bool:
        """Whether the query is about one failure that needs a fix."""
        return bool(self.fingerprint)

    @classmethod
    def for_failure(
        cls, tool: str, failure: Failure, arguments: Mapping[str, Any] | None = None, **fields: Any
    ) -> FixQuery:
        """Build the query for a failure. Without the call's arguments, only the failure's own pattern is searched."""
        from mulligan.classify.fingerprint import build_template  # lazy: needed after a failure only

        text = build_template(failure.message, arguments) if arguments is not None else ""
        shape = argument_types(arguments)
        values: dict[str, Any] = {
            "argument_hashes": hash_arguments(arguments),
            "argument_numbers": list_numbers(arguments),
            "verdict": judge_failure(failure),
            "error": text,
        }
        return cls(
            tool=tool, fingerprint=failure.fingerprint, text=text, kind=str(failure.kind), argument_types=shape,
            **values | fields,
        )  # fmt: skip


class Revocation(Record, frozen=True):
    """Records to exclude from learning: by author, by tool, by the start of their run."""

    principal: str | None = None
    tool: str | None = None
    since: int | None = None
    until: int | None = None

    @classmethod
    def before(cls, now: int, principal: str | None, tool: str | None, since: int | None) -> Revocation:
        """Build the revocation of everything up to now. A principal alone is ignored from then on, too."""
        until = None if principal is not None and tool is None and since is None else now + 1
        return cls(principal=principal, tool=tool, since=since, until=until)


class RevokeResult(Record, frozen=True):
    """How much was learned from the revoked records."""

    runs: int = 0
    votes: int = 0
    fixes: int = 0


class TrialReport(Record, frozen=True):
    """One run's trial of a fix."""

    run: str
    principal: str
    agent: str = ""
    at: int = 0
    successful: bool = True
    automatic: bool = False


class LessonQuery(Record, frozen=True):
    """Filters for lessons, active ones first, then by evidence."""

    tool: str | None = None
    fingerprint: str | None = None
    """Only lessons for one failure of the tool."""
    text: str = ""
    """Part of the tool name, kind or text, ignoring case; or a message similar to the one of the lesson."""
    kind: str | None = None
    """`tool/timeout`, or `tool/` for all kinds of a type."""
    agent: str = ""
    """The querying agent. Lessons that helped the same agent come first."""
    state: LessonState | None = None
    source: LessonSource | None = None
    now: int = 0
    """The time of the query by the caller's clock. The state of a lesson depends on it."""
    limit: int = 20
    after: tuple[int, bool, float, int, bool, str] | None = None
    """The position of the last lesson of the previous page."""

    def position_of(self, lesson: Lesson) -> tuple[int, bool, float, int, bool, str]:
        """Return the sort key of a lesson: active first, then by confidence."""
        state_rank = ("active", "proposed", "expired", "disabled").index(lesson.state)
        is_unproven = not lesson.agents.get(self.agent)
        return state_rank, is_unproven, -lesson.confidence, -lesson.successes, lesson.source == "seed", lesson.id


class ConsolidationResult(Record, frozen=True):
    """The result of a consolidation of changed fixes and prerequisites."""

    patterns: int = 0
    """Patterns that were consolidated."""
    remaining: int = 0
    """Patterns that still need consolidation, if their number was limited."""
    lessons: tuple[Lesson, ...] = ()
    """Lessons that are new, have a new text, or became active."""


class Worker(Record, frozen=True, omit_defaults=False):
    """A server of a distributed database that stores the rows of some tenants."""

    name: str
    """Host and port."""
    reachable: bool
    shards: int
    """A shard holds the rows of some tenants in all tables. It moves to another worker as a whole."""
    bytes: int | None = None
    """Size of its part of the database; None if it is not reachable."""
    shard_bytes: int | None = None
    """Size of its shards, with their indexes."""
    largest_shard_bytes: int | None = None
    detail: str = ""
    """Why it is not reachable."""


class Health(Record, frozen=True):
    """Whether a store is usable, and how much it contains."""

    where: str
    healthy: bool
    runs: int = 0
    steps: int = 0
    detail: str = ""


class FileRewrite(Record, frozen=True, omit_defaults=False):
    """Which files of a database no longer have the bytes of deleted rows."""

    tables: int
    """Tables that were rewritten."""
    statistics: bool
    log: bool
    """Whether the write-ahead log was overwritten."""
    remaining: tuple[str, ...] = ()
    """What was not rewritten, with what to do."""


class FileSearch(Record, frozen=True, omit_defaults=False):
    """The result of a search in the files of a store, whatever rows they have."""

    files: int = 0
    bytes: int = 0
    matches: tuple[str, ...] = ()
    """Files that contain the text."""
    unsearched: tuple[str, ...] = ()
    """Places that could not be searched."""


def is_import_principal(principal: str) -> bool:
    """Return whether the records of a principal are imported logs, perhaps sent to a server by another principal."""
    return principal == IMPORT_PRINCIPAL or principal.startswith(IMPORT_PREFIX)


def import_principal(sender: str) -> str:
    """Return the principal of logs that this one imported."""
    return f"{IMPORT_PREFIX}{sender}" if sender else IMPORT_PRINCIPAL


class Batch(NamedTuple):
    """The arguments of one `append`. Without a journal, ids and numbers alone tell whether a record is stored."""

    tenant: str
    events: Sequence[AnyEvent]
    journal: str = ""
    offset: int = 0
    principal: str = ""
    numbered_events: list[AnyEvent] | None = None
    """For records that another program sends piece by piece: a list that the store fills with the stored events.

    The store gives steps without a number (`seq` 0) the next numbers of their run. It refuses a step that contradicts
    the stored one with its number (`RecordConflictError`). None for records of mulligan, which are numbered.
    """

    @property
    def is_imported(self) -> bool:
        return self.journal.startswith(IMPORT_PREFIX) or is_import_principal(self.principal)

    @property
    def stored_events(self) -> Sequence[AnyEvent]:
        """The events, with the numbers of their steps once they are stored."""
        return self.numbered_events or self.events


Progress = Callable[[int, int], None]
"""Called now and then with the completed and the total amount of work."""


class RecordStore(Protocol):
    def append(self, tenant: str, batch: Sequence[AnyEvent], journal: str, offset: int, principal: str = "") -> int:
        """Store a batch. Return how many of its records were new.

        `principal` is the author of the batch, if a store has several: what the records teach counts as the author's
        vote (SAFETY S3).

        Journal and end offset identify a batch; storing it again has no effect.
        """

    def append_all(self, batches: Sequence[Batch]) -> list[int]:
        """Store several batches in one transaction. Return the number of new records of each."""

    def offset(self, tenant: str, journal: str) -> int:
        """Return the offset up to which a journal is stored; 0 if nothing is."""

    def journals(self, tenant: str) -> list[str]:
        """Return the names of the journals with stored records."""

    def release(self, tenant: str, journals: Sequence[str]) -> None:
        """Delete the offsets of journals that no longer exist."""

    def runs(self, tenant: str, query: RunQuery) -> list[History]: ...

    def run(self, tenant: str, id: str) -> History | None: ...

    def sessions(self, tenant: str, query: SessionQuery) -> list[SessionSummary]: ...

    def runs_by_id(self, tenant: str, ids: Sequence[str]) -> dict[str, Run]:
        """Return those of these runs that exist, without their steps."""

    def ended_runs(self, tenant: str, ids: Sequence[str]) -> set[str]:
        """Return which of these runs have ended. The answer contains no run data, so write-only callers may use it."""

    def find(self, tenant: str, prefix: str, limit: int = 5) -> list[Run]:
        """Return the runs whose id starts with the prefix, the newest first."""

    def find_ids(self, tenant: str, resource: ListedResource, prefix: str, limit: int = 5) -> list[str]:
        """Return the ids of a resource that start with the prefix, in order."""

    def export(self, tenant: str, since: int = 0) -> Iterator[History]:
        """Yield every run that began since then, the oldest first."""

    def prune(
        self, tenant: str, policy: Retention, now: int, dry_run: bool = False, progress: Progress | None = None
    ) -> PruneResult:
        """Delete records beyond the retention limits. With `dry_run`, only report them."""

    def forget(self, tenant: str, request: ForgetRequest) -> ForgetResult:
        """Erase records from rows, patterns, links, metrics, key-value entries and the free space of the file."""

    def preview_forget(self, tenant: str, request: ForgetRequest) -> ForgetResult:
        """Return what `forget` would erase, and erase nothing."""

    def erase(self, tenant: str) -> int:
        """Delete all data of a tenant except the audit log. Return the number of rows."""

    def audit(self, tenant: str, query: AuditQuery) -> list[AuditEntry]:
        """Return audit entries, the newest first. Every method that applies a person's decision adds one."""

    def backup(self, to: Path, progress: Progress | None = None, replaces: bool = False) -> Health:
        """Copy the store consistently while others write. Return the health of the copy."""

    def health(self, tenant: str) -> Health: ...

    def close(self) -> None: ...


class LearningStore(Protocol):
    def recall(self, tenant: str, query: RecallQuery) -> list[Precedent]:
        """Return what recovered the same failure in earlier runs, the most frequent first; possibly nothing."""

    def fixes(self, tenant: str, query: FixQuery) -> list[Fix]:
        """Return fixes with their counts, the most likely first."""

    def value_profiles(self, tenant: str, tool: str, key: str = "") -> list[ValueProfile]:
        """Return what the arguments of a tool had in common in its latest successful calls.

        `key` identifies the tool among others with the same name. Privileged arguments, arguments that name items and
        redacted values have no profile.
        """

    def evidence(self, tenant: str, fix: str, limit: int = 100) -> list[TrialReport]:
        """Return the trials of a fix, the newest first."""

    def record_outcome(self, tenant: str, fix: str, report: TrialReport) -> bool:
        """Record a trial whose calls are not in this store. Return False if the fix does not exist."""

    def decide(self, tenant: str, fix: str, approved: bool, at: int) -> bool:
        """Approve or revoke a fix. Return False if the fix does not exist."""

    def revoke(self, tenant: str, revocation: Revocation) -> RevokeResult:
        """Exclude records from learning: `recall` and `fixes` then answer as if they did not exist."""

    def lessons(self, tenant: str, query: LessonQuery) -> list[Lesson]:
        """Return lessons with their evidence, the best first."""

    def lesson(self, tenant: str, id: str, now: int = 0) -> Lesson | None:
        """Return the lesson with this id or unique id prefix, with its state at `now`, or at the store's time if 0."""

    def save_lesson(self, tenant: str, lesson: Lesson) -> bool:
        """Save the text of a lesson that a person wrote. Return whether anything changed.

        For an existing lesson, only the text is taken, and it counts as edited from then on. A new lesson becomes a
        proposal. Counts, state and decisions are ignored, because a file is no evidence.
        """

    def save_lessons(self, tenant: str, lessons: Sequence[Lesson]) -> list[bool]:
        """Save several lessons, with one audit entry for all."""

    def remove_lessons(self, tenant: str, source: LessonSource) -> int:
        """Delete all lessons of a source with the decisions about them. Return their number."""

    def decide_lesson(self, tenant: str, id: str, verdict: LessonVerdict, at: int) -> Lesson | None:
        """Apply a decision to a lesson. Return the lesson, or None if it does not exist."""

    def consolidate(
        self, tenant: str, now: int, progress: Progress | None = None, max_patterns: int | None = None
    ) -> ConsolidationResult:
        """Turn changed fixes and prerequisites into lessons, for at most `max_patterns` patterns."""

    def patterns(self, tenant: str, query: PatternQuery) -> list[Pattern]:
        """Return patterns in the requested order, without examples."""

    def pattern(self, tenant: str, id: str) -> Pattern | None:
        """Return a pattern with all details, by id, unique id prefix, or the id of a pattern merged into it."""

    def update_pattern(self, tenant: str, command: PatternCommand) -> Pattern | None:
        """Apply a command to a pattern. Return the pattern, or None if it does not exist."""


class MetricStore(Protocol):
    def stats(self, tenant: str, query: StatsQuery) -> Stats:
        """Return the counters of everything that was ever stored and not erased."""


class KeyValueStore(Protocol):
    def get(self, tenant: str, kind: str, key: str) -> bytes | None: ...

    def put(self, tenant: str, kind: str, key: str, value: bytes) -> None: ...

    def compare_and_set(
        self, tenant: str, kind: str, key: str, expected: bytes | None, value: bytes,
        audit_note: AuditNote | None = None,
    ) -> bool:  # fmt: skip
        """Write the value if the current value equals `expected`, None for no value. Return whether it was written.

        With `audit_note`, the audit entry is written in the same transaction.
        """

    def keys(self, tenant: str, kind: str) -> list[str]:
        """Return the keys of a kind in order."""


@runtime_checkable
class Store(RecordStore, LearningStore, MetricStore, KeyValueStore, Protocol):
    """The complete store interface. `tests/contract/test_store.py` tests every implementation."""


# Schemas of tools. The recording process stores their digests as key-value entries, with the time of the last change:
# promotions under another schema do not hold (SAFETY S3). The first schema of a tool is not a change.

SCHEMA_KIND = "schema digest"
"""Kind of the key-value entries; the key is the tool."""


class SeenSchema(Record, frozen=True):
    """The last schema of a tool."""

    digest: str
    since: int = 0
    """When the schema replaced another one; 0 if it is the first."""


def update_schema(stored: bytes | None, digest: str, now: int) -> bytes | None:
    """Return the new entry of a tool whose schema changed, or None if it did not."""
    before = _parse_schema(stored)
    if before is not None and before.digest == digest:
        return None
    return encode(SeenSchema(digest=digest, since=0 if before is None else now))


def schema_change_times(rows: Iterable[tuple[str, bytes]], query: FixQuery) -> dict[str, int]:
    """Return, by tool, when its schema changed. Tools with an unchanged schema are omitted.

    If the query names another schema than the last one seen, the schema counts as changed now.
    """
    changed_at: dict[str, int] = {}
    for tool, stored in rows:
        seen_schema = _parse_schema(stored)
        if seen_schema is not None:
            is_another = tool == query.tool and query.schema not in ("", seen_schema.digest)
            changed_at[tool] = query.now if is_another else seen_schema.since
    return {tool: at for tool, at in changed_at.items() if at}


def schema_changed_at(stored: bytes | None) -> int:
    """Return when the schema of a tool last changed, by its entry; 0 if it never did."""
    seen_schema = _parse_schema(stored)
    return 0 if seen_schema is None else seen_schema.since


def _parse_schema(stored: bytes | None) -> SeenSchema | None:
    try:
        return None if stored is None else decode(stored, SeenSchema)
    except msgspec.DecodeError:  # written by another version: treat it as missing
        return None
