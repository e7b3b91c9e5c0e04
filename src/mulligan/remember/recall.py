"""Memory lookups for a running call, through the recorder's store or a temporary one while it is not open."""

from __future__ import annotations

import contextlib
import contextvars
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from mulligan.classify.fingerprint import fingerprint
from mulligan.failure import Failure, Kind, StoreError
from mulligan.prompt import Prompt
from mulligan.records import Fix, LinkMethod, Precedent
from mulligan.remember import schemas
from mulligan.remember.place import Place
from mulligan.remember.recording.recorder import Recorder
from mulligan.remember.store import ITEMS_KIND, LOCAL, FixQuery, PatternQuery, Store, parse_items
from mulligan.remember.urls import is_remote

SETTLE = 0.25
"""Seconds that a failed call waits until its own record is stored, before it queries memory."""
WITHIN = 0.1
"""Time limit of a fix query. When it expires, the query returns what it has found so far."""
PATIENCE = 1.0
"""Seconds that a failed call waits for a database, which may hang without an error."""

T = TypeVar("T")


class Recall:
    """The memory queries of the capture layer. A failing store yields no results and no delay.

    `location` is None where opening the store again would create a different one: in memory and in the test sandbox.
    `agent` returns the name of the querying agent.
    """

    def __init__(
        self, recorder: Recorder, place: Place | None, *, now: Callable[[], int], agent: Callable[[], str]
    ) -> None:
        self._recorder, self._place, self._now, self._agent = recorder, place, now, agent
        self._keeps_up = True
        self._schemas: dict[str, str] = {}
        """Digests of the tool schemas that are already stored, by tool."""
        self._late: threading.Thread | None = None
        """A query thread that exceeded its time limit and is still running."""

    def precedents(self, tool: str, key: str, failure: Failure, arguments: Mapping[str, Any]) -> Sequence[Precedent]:
        """Return what recovered the same failure in earlier runs, limited to what the model may see."""
        self._settle()
        store = self._recorder.store
        if not failure.fingerprint:
            return ()
        if store is not None:
            return self._in_time(lambda: self._find_precedents(store, tool, key, failure))
        with self._opened() as opened:
            return () if opened is None else self._find_precedents(opened, tool, key, failure)

    def _find_precedents(self, store: Store, tool: str, key: str, failure: Failure) -> Sequence[Precedent]:
        precedents: list[Precedent] = []
        changes: set[tuple[str, str]] = set()
        for fix in self._known(store, tool, key, failure, tellable=True):
            named = {(change.path, repr(change.after)) for change in fix.changes}
            if not named or named.isdisjoint(changes):  # each value is counted once
                precedents.append(to_precedent(fix))
                changes |= named
        return precedents

    def fixes(self, tool: str, key: str, failure: Failure, arguments: Mapping[str, Any], schema: str) -> Sequence[Fix]:
        """Return the fixes that helped in other runs."""
        return self._in_time(lambda: self._fixes(tool, key, failure, arguments, schema))

    def _fixes(self, tool: str, key: str, failure: Failure, arguments: Mapping[str, Any], schema: str) -> Sequence[Fix]:
        with self._opened() as store:
            if store is None:
                return ()
            with contextlib.suppress(StoreError):  # retried at the next failure; the recorder reports the error
                self._note_schema(store, tool, schema)
            return self._known(store, tool, key, failure, arguments, schema)

    def item_arguments(self, tool: str) -> Collection[str]:
        """Return the arguments of a tool, by its key, that named items in earlier runs."""

        def read() -> Sequence[str]:
            with self._opened() as store:
                return tuple(parse_items(store.get(LOCAL, ITEMS_KIND, tool))) if store is not None else ()

        try:
            return self._in_time(read)
        except StoreError:  # the recorder reports the same error
            return ()

    def _in_time(self, question: Callable[[], Sequence[T]]) -> Sequence[T]:
        """Run a query. For a database in the network, return nothing if it takes too long.

        A file answers fast, and the HTTP store has its own timeout: both are queried directly.
        """
        place = self._place
        if place is None or not place.is_elsewhere or is_remote(place.url):
            return question()
        if self._late is not None and self._late.is_alive():
            return ()
        answers: list[Sequence[T]] = []
        faults: list[BaseException] = []

        def ask() -> None:
            try:
                answers.append(question())
            except StoreError:
                pass  # the recorder reports the same error
            except BaseException as error:  # noqa: BLE001 - raised where it was asked
                faults.append(error)

        here = contextvars.copy_context()  # carries the current agent
        asking = threading.Thread(target=here.run, args=(ask,), name="mulligan-memory", daemon=True)
        asking.start()
        asking.join(PATIENCE)
        if asking.is_alive():
            self._late = asking
        for fault in faults:
            raise fault
        return answers[0] if answers else ()

    def advice(self, tool: str, key: str, failure: Failure, arguments: Mapping[str, Any], schema: str) -> Sequence[Fix]:
        """Return fixes without storing the tool schema and without creating a missing store."""
        with self._opened() as store:
            return self._known(store, tool, key, failure, arguments, schema) if store is not None else ()

    def match(self, tool: str, failure: Failure, text: str, arguments: Mapping[str, Any]) -> Failure:
        """Return the failure that the store has recorded for the text of an error."""
        with self._opened() as store:
            if store is None:
                return failure
            return match_recorded_failure(store, LOCAL, tool, failure, text, arguments)

    def pitfalls(self, words: Prompt, tools: Sequence[str], budget: int, *, proposals: bool = False) -> str:
        """Render the lessons for these tools; if the store is unavailable, only the introduction."""
        from mulligan.remember.lessons.pitfalls import gathered, told  # rarely needed

        try:
            with self._opened() as store:
                found = gathered(store, LOCAL, tools, self._now(), proposals=proposals)
        except StoreError:  # the recorder reports the same error
            found = []
        server = self._place.url if self._place is not None and is_remote(self._place.url) else ""
        return told(words, found, budget, tools=tools, server=server).text

    def _settle(self) -> None:
        # After one timeout, do not wait for the recorder again until it has caught up.
        self._keeps_up = self._recorder.flush(SETTLE if self._keeps_up else 0)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Store | None]:
        """Yield the recorder's store, or an existing store opened temporarily; None if there is neither."""
        store, place = self._recorder.store, self._place
        # A file can be read independently of the recorder. A networked store is queried only while the recorder keeps
        # up.
        if store is None and place is not None and place.is_elsewhere:
            self._settle()
            store = self._recorder.store
        if store is not None or place is None or not (self._keeps_up if place.is_elsewhere else place.is_there()):
            yield store
            return
        try:
            own = place.opened()
        except StoreError:  # the recorder reports the same error
            yield None
            return
        with contextlib.closing(own):
            yield own

    def _note_schema(self, store: Store, tool: str, digest: str) -> None:
        """Store the schema digest of a tool. A changed schema invalidates promotions under the earlier one."""
        if digest and self._schemas.get(tool) != digest:
            changed = schemas.noted(store.get(LOCAL, schemas.KIND, tool), digest, self._now())
            if changed is not None:
                store.put(LOCAL, schemas.KIND, tool, changed)
            self._schemas[tool] = digest

    def _known(
        self,
        store: Store,
        tool: str,
        key: str,
        failure: Failure,
        arguments: Mapping[str, Any] | None = None,
        schema: str = "",
        *,
        tellable: bool = False,
    ) -> Sequence[Fix]:
        if not failure.fingerprint:
            return ()
        query = FixQuery.about(
            tool, failure, arguments, key=key, agent=self._agent(), schema=schema, now=self._now(), within=WITHIN,
            tellable=tellable,
        )  # fmt: skip
        return store.fixes(LOCAL, query)


MAX_MATCHED_PATTERNS = 200
_CLASS_NAME = re.compile(r"^\s*(?:[A-Za-z_]\w{0,80}\.){0,8}[A-Z]\w{0,80}:\s+")


def match_recorded_failure(
    store: Store, tenant: str, tool: str, failure: Failure, text: str, arguments: Mapping[str, Any]
) -> Failure:
    """Return the failure under the kind that the store has recorded for the same text of the same tool.

    The caller has only the text, with or without the exception class. The recorder had the exception, too.
    """
    patterns = store.patterns(tenant, PatternQuery(tool=tool, limit=MAX_MATCHED_PATTERNS))
    known = {pattern.fingerprint for pattern in patterns}
    if failure.fingerprint in known:
        return failure
    messages = dict.fromkeys((failure.message, text, _CLASS_NAME.sub("", text, count=1)))
    for kind in dict.fromkeys(pattern.kind for pattern in patterns):
        for message in messages:
            candidate = fingerprint(kind, tool, message, arguments)
            if message and candidate in known:
                return Failure.of(Kind.named(kind), failure.message, ran=failure.ran, fingerprint=candidate)
    return failure


def to_precedent(fix: Fix) -> Precedent:
    """Return a fix as a precedent, with its counts."""
    methods: dict[str, LinkMethod] = {"recipe": "recipe", "retry": "retry"}
    return Precedent(
        how=methods.get(fix.sort, "agent"),
        changes=fix.changes,
        between=tuple(call.tool for call in fix.first),
        first=fix.first,
        worked=fix.worked,
        seen=fix.tried,
        likeness=0.0 if fix.sort == "exemplar" else fix.likeness,
        tellable=fix.tellable,
    )
