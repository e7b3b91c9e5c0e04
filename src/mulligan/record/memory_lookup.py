"""Memory lookups and key-value entries, through the recorder's store or a temporary one while it is not open."""

from __future__ import annotations

import contextlib
import contextvars
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from mulligan.classify.fingerprint import build_template, compute_fingerprint
from mulligan.contract.store import (
    DEFAULT_TENANT,
    ITEMS_KIND,
    SCHEMA_KIND,
    AuditNote,
    FixQuery,
    KeyValueStore,
    PatternQuery,
    Store,
    hash_arguments,
    list_numbers,
    parse_items,
    update_schema,
)
from mulligan.core import fork_safety
from mulligan.core.calls import has_changes
from mulligan.core.failure import Failure, Kind, StoreError
from mulligan.core.holdout import HoldOutLessons
from mulligan.core.kinds import KINDS
from mulligan.core.records import ANY_FIX, Change, Fix, Lesson, LinkMethod, Precedent, ValueProfile
from mulligan.core.transformations import apply_form
from mulligan.learn import profiles
from mulligan.prompt import Prompt
from mulligan.record.recorder import Recorder
from mulligan.redaction.regex import LazyRegex
from mulligan.store.urls import StoreLocation, is_remote

LOCK_TIMEOUT_SECONDS = 0.05
"""Seconds that a failed call waits for a locked file: once for its own record, once to note the schema of its tool."""
FLUSH_TIMEOUT_SECONDS = 0.25
"""Seconds that a failed call waits until its own record is stored and a store in the network is open."""
LOOKUP_TIMEOUT_SECONDS = 0.1
"""Time limit of a fix query. When it expires, the query returns what it has found so far."""
DATABASE_TIMEOUT_SECONDS = 1.0
"""Seconds that a failed call waits for a database, which may hang without an error."""

T = TypeVar("T")


class MemoryLookup:
    """The memory queries of the capture layer. A failing store yields no results and no delay.

    `location` is None where opening the store again would create a different one: in memory and in the test sandbox.
    `agent` returns the name of the querying agent. `max_delay_seconds` limits the delay of a failed call by a store in
    the network that does not answer, for programs that answer others meanwhile. `open_early` then saves the time to
    connect.
    """

    def __init__(
        self,
        recorder: Recorder,
        location: StoreLocation | None,
        *,
        now: Callable[[], int],
        agent: Callable[[], str],
        max_delay_seconds: float | None = None,
        prompt_fixes: dict[str, tuple[str, ...]] | None = None,
        base_url: str = "",
    ) -> None:
        self._recorder, self._location, self._now, self._agent = recorder, location, now, agent
        self._max_delay_seconds, self._base_url = max_delay_seconds, base_url
        self._is_recorder_current = True
        self.prompt_fixes = {} if prompt_fixes is None else prompt_fixes
        """By tool: the fixes of the lessons that were rendered for prompts."""
        self._schemas: dict[str, str] = {}
        """Digests of the tool schemas that are already stored, by tool."""
        self._writes: set[tuple[Store, threading.Thread]] = set()
        """Schemas that are being written, each by its own thread."""
        self._query_thread: threading.Thread | None = None
        """Thread of all queries to a store in the network, so that its connection stays open."""
        self._queries: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.last_overdue: threading.Event | None = None
        """Set at the end of the last query that is overdue, or for which no call waits. Until then, none is made."""

    def open_early(self) -> None:
        """Connect to a store in the network now, in the background."""
        if self._location is not None and self._location.is_networked:
            self._recorder.open_early()

            def connect() -> None:
                # Time for a store in the network to open in advance. Nothing waits for it.
                deadline = time.monotonic() + 10.0
                while self._recorder.store is None and time.monotonic() < deadline:
                    time.sleep(0.01)
                with contextlib.suppress(StoreError):  # the recorder reports the same error
                    if self._recorder.store is not None:
                        self._recorder.store.get(DEFAULT_TENANT, ITEMS_KIND, "")

            self.last_overdue = self._run_on_query_thread(connect)

    def precedents(self, tool: str, key: str, failure: Failure, arguments: Mapping[str, Any]) -> Sequence[Precedent]:
        """Return what recovered the same failure in earlier runs, limited to what the model may see."""
        self._flush_recorder()

        def read() -> Sequence[Fix]:
            with self._open_store() as store:
                return () if store is None else self._find_fixes(store, tool, key, failure, shown_call=arguments)

        precedents: list[Precedent] = []
        changes: set[tuple[str, str]] = set()
        for stored_fix in self._query_in_time(read):
            fix = apply_forms(stored_fix, arguments)
            if fix is None or has_changes(arguments, fix.changes):
                continue  # the call failed with just these values
            fix_changes = {(change.path, repr(change.after)) for change in fix.changes}
            if not fix_changes or fix_changes.isdisjoint(changes):  # each value is counted once
                forms = tuple((change.path, change.form) for change in stored_fix.changes if change.form)
                precedents.append(msgspec.structs.replace(to_precedent(fix), forms=forms))
                changes |= fix_changes
        return precedents

    def fixes(self, tool: str, key: str, failure: Failure, arguments: Mapping[str, Any], schema: str) -> Sequence[Fix]:
        """Return the fixes that helped in other runs, and store the schema of the tool."""

        def read() -> Sequence[Fix]:
            with self._open_store() as store:
                if store is None:
                    return ()
                with contextlib.suppress(StoreError):  # retried at the next failure; the recorder reports the error
                    self._note_schema(store, tool, schema)
                return self._find_fixes(store, tool, key, failure, arguments, schema)

        return self._query_in_time(read)

    def value_profiles(self, tool: str, key: str = "") -> Sequence[ValueProfile]:
        """Return what the arguments of a tool had in common in enough successful calls. A store of a team has none.

        Facts for a model or a reflector, never a source of values for a repair.
        """
        if self._location is not None and self._location.is_networked:
            return ()
        with contextlib.suppress(StoreError), self._open_store() as store:  # the recorder reports the same error
            return () if store is None else find_profiles(store, DEFAULT_TENANT, tool, key)
        return ()

    def facts(self, tool: str, key: str, failure: Failure, arguments: Mapping[str, Any]) -> Sequence[ValueProfile]:
        """Return the facts about successful calls that a failed call contradicts."""
        if not profiles.is_about_values(failure):
            return ()
        return profiles.select_facts(self.value_profiles(tool, key), failure, arguments)

    def item_arguments(self, tool: str) -> Collection[str]:
        """Return the arguments of a tool, by its key, that named items in earlier runs."""

        def read() -> Sequence[str]:
            with self._open_store() as store:
                return tuple(parse_items(store.get(DEFAULT_TENANT, ITEMS_KIND, tool))) if store is not None else ()

        try:
            return self._query_in_time(read)
        except StoreError:  # the recorder reports the same error
            return ()

    def _query_in_time(self, query: Callable[[], Sequence[T]]) -> Sequence[T]:
        """Run a query. For a database in the network, return nothing if it takes too long.

        A file answers fast, and the HTTP store has its own timeout: both are queried directly, unless there is a limit.
        """
        location = self._location
        limit = self._max_delay_seconds
        if location is None or not location.is_networked or (is_remote(location.url) and limit is None):
            return query()
        answers: list[Sequence[T]] = []
        errors: list[BaseException] = []
        is_abandoned = threading.Event()

        def run_query() -> None:
            try:
                if not is_abandoned.is_set():
                    answers.append(query())
            except StoreError:
                pass  # the recorder reports the same error
            except BaseException as error:  # noqa: BLE001 - raised where it was asked
                errors.append(error)

        context = contextvars.copy_context()  # carries the current agent
        is_done = self._run_on_query_thread(lambda: context.run(run_query))
        if is_done is None:
            return ()
        if not is_done.wait(DATABASE_TIMEOUT_SECONDS if limit is None else limit / 2):
            is_abandoned.set()
            self.last_overdue = is_done
            return ()
        for fault in errors:
            raise fault
        return answers[0] if answers else ()

    def _run_on_query_thread(self, query: Callable[[], None]) -> threading.Event | None:
        """Run a query on its thread, after those of other callers. Return the event of its end.

        None while a query is overdue: the database hangs, and each call would wait for it.
        """
        with _start_lock:
            if self._query_thread is None or not self._query_thread.is_alive():  # also after a fork
                self._queries, self.last_overdue = queue.SimpleQueue(), None
                self._query_thread = threading.Thread(
                    target=_run_queries, args=(self._queries,), name="mulligan-memory", daemon=True
                )
                self._query_thread.start()
        if self.last_overdue is not None and not self.last_overdue.is_set():
            return None
        is_done = threading.Event()

        def run() -> None:
            try:
                query()
            finally:
                is_done.set()

        self._queries.put(run)
        return is_done

    def read_fixes(
        self, tool: str, key: str, failure: Failure, arguments: Mapping[str, Any], schema: str
    ) -> Sequence[Fix]:
        """Return fixes without storing the tool schema and without creating a missing store."""
        with self._open_store() as store:
            return self._find_fixes(store, tool, key, failure, arguments, schema) if store is not None else ()

    def match(self, tool: str, failure: Failure, text: str, arguments: Mapping[str, Any]) -> Failure:
        """Return the failure that the store has recorded for the text of an error."""
        with self._open_store() as store:
            if store is None:
                return failure
            return match_recorded_failure(store, DEFAULT_TENANT, tool, failure, text, arguments)

    def render_lessons(
        self,
        prompt: Prompt,
        tools: Sequence[str],
        max_tokens: int,
        hold_out: HoldOutLessons | None = None,
        *,
        include_proposed: bool = False,
    ) -> str:
        """Render the lessons for these tools; if the store is unavailable, only the introduction."""
        with fork_safety.import_lock:
            from mulligan.learn.lesson_rendering import render_within_budget, select_lessons  # rarely needed

        try:
            with self._open_store() as store:
                lessons = select_lessons(store, DEFAULT_TENANT, tools, self._now(), include_proposed=include_proposed)
        except StoreError:  # the recorder reports the same error
            lessons = []
        url = self._location.url if self._location is not None else ""
        server = self._base_url.rstrip("/") or (url if is_remote(url) else "")
        rendered = render_within_budget(prompt, lessons, max_tokens, requested_tools=tools, server=server)
        lessons = [lesson for lesson in lessons if lesson.id in rendered.lesson_ids]
        if hold_out is not None and (held_out := hold_out(lessons)):
            # No other lesson takes the space: the runs differ in what is held out alone.
            lessons = [lesson for lesson in lessons if lesson.id not in held_out]
            rendered = render_within_budget(prompt, lessons, max_tokens, requested_tools=tools, server=server)
        self.note_lessons(lessons)
        return rendered.text

    def note_lessons(self, lessons: Iterable[Lesson]) -> None:
        """Note what a prompt tells about each tool. General advice names no fix."""
        for lesson in lessons:
            if not lesson.is_seed:
                self.note_prompt_fixes(lesson.tool, [lesson.fix_id or ANY_FIX])

    def note_prompt_fixes(self, tool: str, fixes: Sequence[str]) -> None:
        """Note the fixes that a prompt tells about a tool, by id."""
        all_fixes = dict.fromkeys((*self.prompt_fixes.get(tool, ()), *fixes))
        # Fixes of one tool in prompts that are remembered, the latest.
        self.prompt_fixes[tool] = tuple(all_fixes)[-50:]

    def _flush_recorder(self) -> None:
        # After one timeout, do not wait for the recorder again until it has caught up.
        is_networked = self._location is not None and self._location.is_networked
        seconds = FLUSH_TIMEOUT_SECONDS if is_networked else LOCK_TIMEOUT_SECONDS
        if self._location is None:
            # Wait for the recorder of a store in memory. Such a store never hangs: only a busy machine delays it.
            seconds = 2.0
        if self._max_delay_seconds is not None:
            seconds = min(seconds, self._max_delay_seconds / 2)
        self._is_recorder_current = self._recorder.flush(seconds if self._is_recorder_current else 0)

    @contextlib.contextmanager
    def _open_store(self) -> Iterator[Store | None]:
        """Yield the recorder's store, or an existing store opened temporarily; None if there is neither."""
        store, location = self._recorder.store, self._location
        # A file can be read independently of the recorder. A networked store is queried only while the recorder keeps
        # up.
        if store is None and location is not None and location.is_networked:
            self._flush_recorder()
            store = self._recorder.store
        if (
            store is not None
            or location is None
            or not (self._is_recorder_current if location.is_networked else location.exists())
        ):
            yield store
            return
        try:
            temporary_store = location.open()
        except StoreError:  # the recorder reports the same error
            yield None
            return
        try:
            yield temporary_store
        finally:
            if not self._is_writing(temporary_store):  # closing would wait for the write
                temporary_store.close()

    def _note_schema(self, store: Store, tool: str, digest: str) -> None:
        """Store the schema digest of a tool. A changed schema invalidates promotions under the earlier one."""
        if digest and self._schemas.get(tool) != digest:
            entry = update_schema(store.get(DEFAULT_TENANT, SCHEMA_KIND, tool), digest, self._now())
            if entry is not None and not self._write_in_time(
                store, lambda: store.put(DEFAULT_TENANT, SCHEMA_KIND, tool, entry)
            ):
                return  # noted at the next failure
            self._schemas[tool] = digest

    def _write_in_time(self, store: Store, write: Callable[[], object]) -> bool:
        """Write an entry. Return False if the store is locked: the write then continues on its own thread."""
        if self._is_writing(store):
            return False
        errors: list[BaseException] = []

        def run_write() -> None:
            try:
                write()
            except BaseException as error:  # noqa: BLE001 - raised where it was asked
                errors.append(error)
            finally:
                self._writes.discard((store, threading.current_thread()))

        # Several calls may fail at once, so each joins its own thread.
        thread = threading.Thread(target=run_write, name="mulligan-schema", daemon=True)
        self._writes.add((store, thread))
        thread.start()
        thread.join(LOCK_TIMEOUT_SECONDS)
        for error in errors:
            raise error
        return not thread.is_alive()

    def _is_writing(self, store: Store) -> bool:
        """Return whether a write is running. In a forked child, the threads of its parent are not alive."""
        return any(writing is store and thread.is_alive() for writing, thread in tuple(self._writes))

    def _find_fixes(
        self,
        store: Store,
        tool: str,
        key: str,
        failure: Failure,
        arguments: Mapping[str, Any] | None = None,
        schema: str = "",
        *,
        shown_call: Mapping[str, Any] | None = None,
    ) -> Sequence[Fix]:
        """Query fixes. With `shown_call`, the arguments of a call, only those that a model may see for this call."""
        if not failure.fingerprint:
            return ()
        call_arguments = arguments if shown_call is None else shown_call
        query = FixQuery.for_failure(
            tool, failure, arguments, key=key, agent=self._agent(), schema=schema, now=self._now(),
            timeout_seconds=LOOKUP_TIMEOUT_SECONDS, showable=shown_call is not None,
            argument_hashes=hash_arguments(call_arguments), argument_numbers=list_numbers(call_arguments),
            error=build_template(failure.message, call_arguments),
        )  # fmt: skip
        return store.fixes(DEFAULT_TENANT, query)


_start_lock = threading.Lock()
"""Held while a query thread is started."""
fork_safety.hold_locks(lambda: (_start_lock,))


def _run_queries(queries: queue.SimpleQueue[Callable[[], None]]) -> None:
    while True:
        queries.get()()


class RecorderKeyValueStore:
    """Key-value store that uses the recorder's store, or opens one temporarily if there is none yet.

    `open_store` is None where opening the store again would create a different one: in memory and in the test sandbox.
    """

    def __init__(self, recorder: Recorder, open_store: Callable[[], Store] | None) -> None:
        self._recorder = recorder
        self._open_store = open_store

    def get(self, tenant: str, kind: str, key: str) -> bytes | None:
        with self._borrow_store() as store:
            return store.get(tenant, kind, key) if store is not None else None

    def put(self, tenant: str, kind: str, key: str, value: bytes) -> None:
        with self._borrow_store() as store:
            if store is not None:
                store.put(tenant, kind, key, value)

    def compare_and_set(
        self, tenant: str, kind: str, key: str, expected: bytes | None, value: bytes,
        audit_note: AuditNote | None = None,
    ) -> bool:  # fmt: skip
        with self._borrow_store() as store:
            return store is None or store.compare_and_set(tenant, kind, key, expected, value, audit_note)

    def keys(self, tenant: str, kind: str) -> list[str]:
        with self._borrow_store() as store:
            return store.keys(tenant, kind) if store is not None else []

    @contextlib.contextmanager
    def _borrow_store(self) -> Iterator[KeyValueStore | None]:
        if self._recorder.store is None:
            self._recorder.flush(FLUSH_TIMEOUT_SECONDS)
        store = self._recorder.store
        if store is not None or self._open_store is None:
            yield store
            return
        with contextlib.closing(self._open_store()) as temporary_store:
            yield temporary_store


def find_profiles(store: Store, tenant: str, tool: str, key: str) -> list[ValueProfile]:
    """Return what the arguments of a tool had in common in enough successful calls of a store."""
    return list(filter(profiles.has_enough_calls, store.value_profiles(tenant, tool, key)))


def find_facts(
    store: Store, tenant: str, tool: str, key: str, failure: Failure, arguments: Mapping[str, Any]
) -> list[ValueProfile]:
    """Return the facts about successful calls of a store that a failed call contradicts."""
    if not profiles.is_about_values(failure):
        return []
    return profiles.select_facts(find_profiles(store, tenant, tool, key), failure, arguments)


_CLASS_NAME = LazyRegex(r"^\s*(?:[A-Za-z_]\w{0,80}\.){0,8}[A-Z]\w{0,80}:\s+")


def match_recorded_failure(
    store: Store, tenant: str, tool: str, failure: Failure, text: str, arguments: Mapping[str, Any]
) -> Failure:
    """Return the failure under the kind that the store has recorded for the same text of the same tool.

    The caller has only the text, with or without the exception class. The recorder had the exception, too.
    """
    patterns = store.patterns(tenant, PatternQuery(tool=tool, limit=200))
    fingerprints = {pattern.fingerprint for pattern in patterns}
    if failure.fingerprint in fingerprints:
        return failure
    messages = dict.fromkeys((failure.message, text, _CLASS_NAME.sub("", text, count=1)))
    for kind in dict.fromkeys(pattern.kind for pattern in patterns):
        for message in messages:
            candidate = compute_fingerprint(kind, tool, message, arguments)
            if message and candidate in fingerprints:
                return Failure.of(
                    KINDS.get(kind, Kind.from_name(kind)),
                    failure.message,
                    took_effect=failure.took_effect,
                    fingerprint=candidate,
                )
    return failure


def apply_forms(fix: Fix, arguments: Mapping[str, Any]) -> Fix | None:
    """Return a fix with the values that its transformations give in this call; None if one does not apply to it."""
    changes: list[Change] = []
    for change in fix.changes:
        if change.form:
            after = apply_form(change, arguments.get(change.path))
            if after is None:
                return None
            change = msgspec.structs.replace(change, before=arguments.get(change.path), after=after)
        changes.append(change)
    return msgspec.structs.replace(fix, changes=tuple(changes))


def to_precedent(fix: Fix) -> Precedent:
    methods: dict[str, LinkMethod] = {"prerequisite": "prerequisite", "retry": "retry"}
    return Precedent(
        method=methods.get(fix.type, "agent"),
        changes=fix.changes,
        intermediate_tools=tuple(call.tool for call in fix.prerequisites),
        prerequisites=fix.prerequisites,
        successes=fix.successes,
        occurrences=fix.trials,
        similarity=0.0 if fix.type == "exemplar" else fix.similarity,
        shareable=fix.showable,
        fix=fix.id,
        followed=fix.followed,
    )
