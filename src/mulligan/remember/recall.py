"""What memory knows of a call at hand, asked of the store that the recorder writes to, also while that is not open."""

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
"""Seconds that a failed call waits for its own record to be kept before it asks what is known."""
WITHIN = 0.1
"""Seconds after which memory answers with what it has found."""
PATIENCE = 1.0
"""Seconds that a failed call waits for a database. One that hangs says nothing, for as long as it likes."""

T = TypeVar("T")


class Recall:
    """The questions that capture asks of memory. A broken disk costs memory, not time.

    `place` is None where two openings would not be the same store: in memory, and in rehearsals. `agent` says who asks.
    """

    def __init__(
        self, recorder: Recorder, place: Place | None, *, now: Callable[[], int], agent: Callable[[], str]
    ) -> None:
        self._recorder, self._place, self._now, self._agent = recorder, place, now, agent
        self._keeps_up = True
        self._schemas: dict[str, str] = {}
        """By tool, those that are noted."""
        self._late: threading.Thread | None = None
        """Who still waits for an answer that nobody waited for any longer."""

    def precedents(self, tool: str, key: str, failure: Failure, arguments: Mapping[str, Any]) -> Sequence[Precedent]:
        """Return what recovered the same failure before, as far as a model may be told."""
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
            if not named or named.isdisjoint(changes):  # one value has one count
                precedents.append(to_precedent(fix))
                changes |= named
        return precedents

    def fixes(self, tool: str, key: str, failure: Failure, arguments: Mapping[str, Any], schema: str) -> Sequence[Fix]:
        """Return what memory knows to have helped in other runs."""
        return self._in_time(lambda: self._fixes(tool, key, failure, arguments, schema))

    def _fixes(self, tool: str, key: str, failure: Failure, arguments: Mapping[str, Any], schema: str) -> Sequence[Fix]:
        with self._opened() as store:
            if store is None:
                return ()
            with contextlib.suppress(StoreError):  # it is noted at the next failure; the recorder says what to do
                self._note_schema(store, tool, schema)
            return self._known(store, tool, key, failure, arguments, schema)

    def item_arguments(self, tool: str) -> Collection[str]:
        """Return the arguments of a tool, by its key, that named items in earlier runs."""

        def read() -> Sequence[str]:
            with self._opened() as store:
                return tuple(parse_items(store.get(LOCAL, ITEMS_KIND, tool))) if store is not None else ()

        try:
            return self._in_time(read)
        except StoreError:  # the recorder meets the same, and says what to do
            return ()

    def _in_time(self, question: Callable[[], Sequence[T]]) -> Sequence[T]:
        """An answer of a file, or of a server (which keeps time itself), at once; of a database, or none, in time."""
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
                pass  # the recorder meets the same, and says what to do
            except BaseException as error:  # noqa: BLE001 - raised where it was asked
                faults.append(error)

        here = contextvars.copy_context()  # which agent asks
        asking = threading.Thread(target=here.run, args=(ask,), name="mulligan-memory", daemon=True)
        asking.start()
        asking.join(PATIENCE)
        if asking.is_alive():
            self._late = asking
        for fault in faults:
            raise fault
        return answers[0] if answers else ()

    def advice(self, tool: str, key: str, failure: Failure, arguments: Mapping[str, Any], schema: str) -> Sequence[Fix]:
        """The same for whoever only asks: nothing is noted, and a store that is not there is not made."""
        with self._opened() as store:
            return self._known(store, tool, key, failure, arguments, schema) if store is not None else ()

    def match(self, tool: str, failure: Failure, text: str, arguments: Mapping[str, Any]) -> Failure:
        """Return the failure that the store has recorded for the text of an error."""
        with self._opened() as store:
            if store is None:
                return failure
            return match_recorded_failure(store, LOCAL, tool, failure, text, arguments)

    def pitfalls(self, words: Prompt, tools: Sequence[str], budget: int, *, proposals: bool = False) -> str:
        """What is known of these tools, in words; where the store cannot be asked, what mulligan is."""
        from mulligan.remember.lessons.pitfalls import gathered, told  # few ask, and all others need not wait for it

        try:
            with self._opened() as store:
                found = gathered(store, LOCAL, tools, self._now(), proposals=proposals)
        except StoreError:  # the recorder meets the same, and says what to do
            found = []
        server = self._place.url if self._place is not None and is_remote(self._place.url) else ""
        return told(words, found, budget, tools=tools, server=server).text

    def _settle(self) -> None:
        # A store that has not kept up once is not waited for until it does.
        self._keeps_up = self._recorder.flush(SETTLE if self._keeps_up else 0)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Store | None]:
        """The recorder's store; where it has opened none yet, one for the moment, if anything was ever kept there."""
        store, place = self._recorder.store, self._place
        # A file is read beside the recorder, which need not be waited for; a server that does not keep up is not asked.
        if store is None and place is not None and place.is_elsewhere:
            self._settle()
            store = self._recorder.store
        if store is not None or place is None or not (self._keeps_up if place.is_elsewhere else place.is_there()):
            yield store
            return
        try:
            own = place.opened()
        except StoreError:  # the recorder meets the same, and says what to do
            yield None
            return
        with contextlib.closing(own):
            yield own

    def _note_schema(self, store: Store, tool: str, digest: str) -> None:
        """What a tool's schema is now: another one than before takes back what was proven under that."""
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

    Whoever asks has the text alone, with or without the class of the exception. The recorder knew the exception too.
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
    """Return a fix as what recovered a failure before, with its one count."""
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
