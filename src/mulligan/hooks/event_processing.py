"""Processing of an event that must be stored: one transaction, then the response.

Hooks are concurrent processes, so the state of a session is read, changed and written under one lock.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from mulligan import settings as settings_file
from mulligan.classify.classifier import Classifier, classify
from mulligan.core.events import AnyEvent, ContextCompacted, EventStream, RunEnded, RunStarted, StepEnded, redact_event
from mulligan.core.failure import Failure, TookEffect
from mulligan.core.records import Compaction, Outcome, Run, Step, decode, encode
from mulligan.hooks import agents, session_files
from mulligan.hooks.agents import (
    HOOK_STATE_KIND,
    AgentCall,
    AgentEvent,
    HookState,
    join_tool_name,
    run_id_prefix,
    split_tool_name,
)
from mulligan.learn import tracker
from mulligan.learn.tracker import REPEAT_WINDOW_TURNS, SESSION_KIND, TrackedFailure, Tracker
from mulligan.prompt import Prompt
from mulligan.redaction import Redactor
from mulligan.redaction.plain_data import truncate_text
from mulligan.settings import Settings
from mulligan.store.base import DEFAULT_TENANT
from mulligan.store.sql import StoreTransaction
from mulligan.store.sqlite import SqliteStore
from mulligan.store.urls import sqlite_path

MAX_ERROR_CHARS = 8192
"""Longest error text that is classified."""
DUPLICATE_COMPACTION_MS = 5000
"""Two compactions within this time are one: hooks may be installed in two settings files."""
MAX_TURNS_TO_RECOVERY = 10
"""Turns within which a success of the same tool counts as recovery of a failure."""
MAX_IDENTICAL_FAILURES = 3
"""Identical failures in a row before the model is warned."""
REREAD_KIND_CODES = ("edit_mismatch", "stale_file")
"""Kinds of failure that reading the file again may recover."""


def process_event(agent: str, data: bytes) -> bytes:
    """Process an event and return the response as JSON, or an empty text."""
    try:
        raw_event = msgspec.json.decode(data)
    except msgspec.DecodeError:
        from mulligan.transcripts.log_lines import replace_invalid_unicode  # rare: an emoji that was cut in two

        raw_event = msgspec.json.decode(replace_invalid_unicode(data))
    event = agents.parse_event(agent, raw_event) if isinstance(raw_event, dict) else None
    if event is None or not event.session:
        return b""
    settings = settings_file.load_settings(of_user=True)
    if not settings.enabled or settings.record == "off":
        session_files.remove_session_files(event.session)  # the early exit does not read settings files
        return b""
    response = EventProcessor(event, settings).process()
    return encode(response) if response else b""


class EventProcessor:
    """Processing of one event."""

    def __init__(self, event: AgentEvent, settings: Settings) -> None:
        self.event, self.settings = event, settings
        self.now = int(time.time() * 1000)
        options: dict[str, Any] = {
            "names": settings.redact_names,
            "patterns": settings.redact_patterns,
            "allowed": settings.redact_ignore,
        }
        self.redactor = Redactor(level=settings.level, unredacted_arguments=settings.unredacted_arguments, **options)
        self.prompt = Prompt(Redactor(personal=False, **options))
        self.classify: Callable[..., Failure] = classify
        if settings.kinds or settings.rules:
            self.classify = Classifier.from_settings({"kinds": settings.kinds, "rules": settings.rules}).classify
        self.session = EventStream(self.redactor).redact_session_id(event.session)
        self.state = HookState(agent=event.agent, folder=event.folder, started_at=self.now)
        self.tracker = Tracker()
        self.events: list[AnyEvent] = []
        """Records to store."""
        self.failed: list[Step] = []
        """New failures of this event."""
        self.identical_failures = 0
        """How often the last failure has occurred in a row."""

    def process(self) -> dict[str, Any] | None:
        """Store the event and return the response."""
        event = self.event
        # Before the transaction: other processes do not wait for this.
        calls = [(call.id, self._build_step(call)) for call in event.calls if not call.is_interrupted]
        if event.agent == "codex" and event.type in ("compacted", "ended") and event.log:
            from mulligan.hooks.recall import read_log

            failed = read_log(event.agent, event.log, self.classify)[1]
            calls += [(id, self._apply_record_level(step)) for id, step in failed]
        store = SqliteStore(_store_path(self.settings), fsync=self.settings.fsync)
        try:
            with store.transaction(DEFAULT_TENANT) as transaction:
                message = self._update_session(transaction, calls)
            return self._build_response(store, message)
        finally:
            store.close()

    def _build_response(self, store: SqliteStore, message: str) -> dict[str, Any] | None:
        if self.failed and self.settings.mode != "observe":
            from mulligan.hooks.recall import Hints

            hints = Hints(store, self.prompt, self.settings, self.now, self.state)
            last = self.failed[-1]
            if self.event.agent == "gemini" and (replacement := hints.find_replacement_call(last)):
                arguments, note = replacement
                return agents.build_response(self.event, note, (join_tool_name(last), arguments))
            messages = [message, hints.build_hint(last)]
            if self.identical_failures >= MAX_IDENTICAL_FAILURES and last.failure is not None:
                kind = str(last.failure.kind)
                messages.append(self.prompt.spiral([last.name], kind, self.identical_failures, is_same=True))
            message = "\n".join(filter(None, messages))
        return agents.build_response(self.event, message) if message else None

    def _build_step(self, call: AgentCall) -> Step:
        failure, outcome = None, "success"
        if call.error is not None:
            error = call.error
            if len(error) > MAX_ERROR_CHARS:
                error = truncate_text(error, MAX_ERROR_CHARS * 3 // 4, MAX_ERROR_CHARS // 4)
            arguments = call.arguments if isinstance(call.arguments, dict) else None
            failure = self.classify(text=error, tool=call.name, source="tool", is_error=True, arguments=arguments)
            outcome = "cancelled" if failure.kind.code == "cancelled" else "blocked"
            outcome = "failure" if failure.is_failure else outcome
            if call.is_rejected:
                failure = replace(failure, took_effect=TookEffect.NO)
        step = replace(
            self._name_tool(call.name, call.server),
            arguments=call.arguments,
            outcome=cast(Outcome, outcome),
            started_at=self.now - int(call.duration_seconds * 1000),
            duration_seconds=call.duration_seconds,
            failure=failure,
            links_decided=failure is not None,
        )
        return self._apply_record_level(step)

    def _name_tool(self, name: str, server: str | None) -> Step:
        """Return a successful call of a tool. Its position follows when it is added to the run."""
        key = None if server else f"{self.event.agent}:{name}"
        return Step(run="", seq=0, call=0, name=name, server=server, key=key)

    def _apply_record_level(self, step: Step) -> Step:
        """Redact a step and apply the record level."""
        if self.settings.record == "shape" and isinstance(step.arguments, dict):
            from mulligan.capture.value_recording import ValueRecorder, shapes  # rarely used

            value_recorder = ValueRecorder(is_shape=True, is_model=False, shareable_texts=tuple)
            failure = value_recorder.failure(step.failure, step.arguments)
            step = replace(step, arguments=shapes(step.arguments), failure=failure)
        return self._redact(step)

    def _redact(self, step: Step) -> Step:
        return cast(StepEnded, redact_event(StepEnded(step), self.redactor)).step

    # The session, within the transaction

    def _update_session(self, transaction: StoreTransaction, calls: Iterable[tuple[str, Step]]) -> str:
        """Apply the event to the stored session and return the text for the model."""
        event = self.event
        with suppress(msgspec.MsgspecError, UnicodeError):  # invalid state is replaced
            self.state = decode(transaction.get(HOOK_STATE_KIND, self.session) or encode(self.state), HookState)
        with suppress(msgspec.MsgspecError, UnicodeError):
            self.tracker = tracker.from_json(transaction.get(SESSION_KIND, self.session) or b"")
        self.state.at = self.now
        self._count_successes()
        for id, step in calls:
            self._add_step(id, step)
        if event.ends_turn:
            self._end_turn(call.id for call in event.calls)
        message = self._handle_compaction() if event.type in ("compacting", "compacted") else ""
        if event.type != "compacting":
            message = message or self.tracker.take_reminder()
        self._store_session(transaction)
        if event.type == "ended":
            session_files.remove_session_files(event.session)
        else:
            session_files.write_open_tools(event.session, self._open_tool_names())
        return message

    def _count_successes(self) -> None:
        """Add the successful calls of events that exited early."""
        turns, self.state.read = session_files.read_calls(self.event.session, self.state.read)
        steps_by_tool: dict[str, Step] = {}
        for timestamp, calls in turns:
            for name, id in calls:
                if name not in steps_by_tool:
                    steps_by_tool[name] = self._redact(self._name_tool(*split_tool_name(name)))
                self._add_step(id, replace(steps_by_tool[name], started_at=timestamp))
            self._end_turn(id for _, id in calls)

    def _end_turn(self, ids: Iterable[str]) -> None:
        """Mark the end of a turn, once: hooks in two settings files report the same batch twice."""
        batch = " ".join(ids)[:200]
        if batch.strip(" -"):
            if batch in self.state.batches:
                return
            self.state.batches = [*self.state.batches[-HookState.MAX_BATCHES :], batch]
        self.tracker.mark_turn()

    def _add_step(self, id: str, step: Step) -> None:
        state = self.state
        call_key = f"{id} {step.outcome == 'success'}"
        if id and id != "-":
            # A failure is reported when it happens, again as a success with its batch, and twice if hooks are
            # installed in two settings files.
            if call_key in state.ids or f"{id} False" in state.ids:
                return
            state.ids = [*state.ids[-HookState.MAX_CALL_IDS :], call_key]
        if not state.seq:
            state.started_at = step.started_at
            state.run = f"{run_id_prefix(state.agent, self.session)}{state.folder_suffix}"
            self.events.append(redact_event(RunStarted(self._build_run()), self.redactor))
            self.tracker.begin(state.run)
        state.seq += 1
        step = replace(step, run=state.run, seq=state.seq, call=state.seq)
        if step.outcome == "success":
            step = self._add_links(id, step)
        if step.has_failed and step.failure is not None:
            self.failed.append(step)
            self.identical_failures = self._count_identical_failures(step)
        self.tracker.observe_step(step)
        self.events.append(StepEnded(step))

    def _build_run(self) -> Run:
        folder = self.event.folder
        return Run(
            id=self.state.run,
            agent=self.event.agent,
            session=self.session,
            started_at=self.state.started_at,
            metadata={"project": os.path.basename(folder), "folder": folder} if folder else None,
            context=agents.find_user_prompt(self.event.log) or None,
        )

    def _add_links(self, id: str, step: Step) -> Step:
        """Return a success with the failed calls that it recovers."""
        failures = [*self.tracker.failures, *self.tracker.pending]
        if not any(failure.is_open and failure.step.tool_key == step.tool_key for failure in failures):
            return step
        from mulligan.hooks.recall import link_success, read_log

        arguments = next((call.arguments for call in self.event.calls if call.id == id), None)

        def read_steps() -> list[Step]:
            return read_log(self.event.agent, self.event.log, self.classify, for_links=True)[0]

        return replace(step, links=link_success(step, arguments, failures, read_steps, self._redact))

    def _count_identical_failures(self, step: Step) -> int:
        """Count how often this failure has occurred in a row, without a success in between."""
        new_failure = TrackedFailure(step, self.tracker.turns)
        for earlier in self.tracker.failures:
            if earlier.identity == new_failure.identity:
                is_recent = new_failure.turn - earlier.turn <= REPEAT_WINDOW_TURNS
                return earlier.count + 1 if is_recent and not earlier.successes_since else 1
        return 1

    def _handle_compaction(self) -> str:
        state, position = self.state, (self.state.seq, self.tracker.turns)
        if self.now - state.compacted < DUPLICATE_COMPACTION_MS and state.compacted_at == position:
            return ""
        self.tracker.compact(self.prompt)
        state.compacted, state.compacted_at = self.now, position
        if state.seq:
            known_failures = self.tracker.known_failures
            compaction = Compaction(session=self.session, at=self.now, reason="agent", known_failures=known_failures)
            self.events.append(ContextCompacted(compaction))
        return self.tracker.take_reminder() if self.event.type == "compacted" else ""

    def _store_session(self, transaction: StoreTransaction) -> None:
        state = self.state
        if self.event.type == "ended" and state.seq:
            state.read = 0  # the session files are removed; a resumed session starts new ones
            run = next((event.run for event in self.events if isinstance(event, RunStarted)), None)
            run = run or transaction.run(state.run)
            run = run or Run(id=state.run, agent=state.agent, session=self.session, started_at=state.started_at)
            self.events.append(RunEnded(replace(run, ended_at=self.now, end_reason="finished")))
        if self.events:
            transaction.append(self.events)
        if state.seq or self.tracker.turns:
            transaction.put(SESSION_KIND, self.session, tracker.to_json(self.tracker))
            transaction.put(HOOK_STATE_KIND, self.session, encode(state))

    def _open_tool_names(self) -> Iterator[str]:
        """Yield the tools whose success may recover an open failure; `*` stands for any event."""
        if not self.tracker.is_reminder_delivered:
            yield "*"
        for failure in (*self.tracker.pending, *self.tracker.failures):
            if failure.is_open and self.tracker.turns - failure.turn <= MAX_TURNS_TO_RECOVERY:
                yield join_tool_name(failure.step)
                if failure.step.failure is not None and failure.step.failure.kind.code in REREAD_KIND_CODES:
                    yield from ("Read", "read_file")


def _store_path(settings: Settings) -> Any:
    """Return the path of the embedded store, even if the settings name a server: a hook must not wait for a network."""
    url = settings.store_url
    is_file = ("://" not in url and not url.startswith("memory:")) or url.startswith("sqlite:")
    return sqlite_path(url if is_file else str(settings.folder / "mulligan.db"))
