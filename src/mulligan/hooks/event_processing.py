"""Second stage of a hook: store the event in one transaction and build the response.

Hooks are concurrent processes, so the state of a session is read, changed and written under one lock.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

import msgspec

from mulligan import settings as settings_file
from mulligan.classify.classifier import Classifier, classify
from mulligan.core.events import (
    AnyEvent,
    ContextCompacted,
    EventStream,
    RunEnded,
    RunStarted,
    StepEnded,
    redact_event,
)
from mulligan.core.failure import Failure, TookEffect
from mulligan.core.records import Compaction, Run, Step, encode
from mulligan.hooks import session_files
from mulligan.hooks.agent_events import AgentCall, AgentEvent, join_tool_name, split_tool_name
from mulligan.hooks.state import HOOK_STATE_KIND, SESSION_KIND, HookState
from mulligan.learn import tracker
from mulligan.learn.tracker import REPEAT_WINDOW_TURNS, TrackedFailure, Tracker
from mulligan.prompt import Prompt
from mulligan.redaction import Redactor
from mulligan.redaction.plain_data import truncate_text
from mulligan.settings import Settings
from mulligan.store.base import DEFAULT_TENANT
from mulligan.store.sql import StoreTransaction
from mulligan.store.sqlite import SqliteStore
from mulligan.store.urls import sqlite_path

E = TypeVar("E", RunStarted, StepEnded)
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


def _decode_event(data: bytes) -> object:
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:
        from mulligan.transcripts.log_lines import replace_invalid_unicode  # rare: an emoji that was cut in two

        return msgspec.json.decode(replace_invalid_unicode(data))


def process_event(agent: str, data: bytes) -> bytes:
    """Process an event and return the response as JSON, or an empty text."""
    event = _decode_event(data)
    agent_event = agent_module(agent).parse_event(event) if isinstance(event, dict) else None
    if agent_event is None or not agent_event.session:
        return b""
    settings = settings_file.load_settings(of_user=True)
    if not settings.enabled or settings.record == "off":
        session_files.remove_session_files(agent_event.session)  # the first stage does not read settings files
        return b""
    answer = EventProcessor(agent, agent_event, settings).process()
    return encode(answer) if answer else b""


def agent_module(agent: str) -> Any:
    """Import the module of one agent only."""
    return importlib.import_module(f"mulligan.hooks.{agent.replace('-', '_')}")


class EventProcessor:
    """Processing of one event."""

    def __init__(self, agent: str, event: AgentEvent, settings: Settings) -> None:
        self.agent, self.event, self.settings = agent, event, settings
        self.now = int(time.time() * 1000)
        redaction_options: dict[str, Any] = {
            "names": settings.redact_names,
            "patterns": settings.redact_patterns,
            "allowed": settings.redact_ignore,
        }
        self.redactor = Redactor(
            level=settings.level, unredacted_arguments=settings.unredacted_arguments, **redaction_options
        )
        self.prompt = Prompt(Redactor(personal=False, **redaction_options))
        self.classify: Callable[..., Failure] = classify
        if settings.kinds or settings.rules:
            classifier_settings = {"kinds": settings.kinds, "rules": settings.rules}
            self.classify = Classifier.from_settings(classifier_settings).classify
        self.session = EventStream(self.redactor).redact_session_id(event.session)
        self.arguments: dict[str, Any] = {}
        """Unredacted arguments of this event's calls, by id."""

    def process(self) -> dict[str, Any] | None:
        event = self.event
        # Before the transaction: other processes do not wait for this.
        calls = [(call.id, self._build_step(call)) for call in event.calls if not call.is_interrupted]
        self.arguments = {call.id: call.arguments for call in event.calls}
        if self.agent == "codex" and event.type in ("compacted", "ended") and event.log:
            calls += [
                (id, self._redact_step(step))
                for id, step in agent_module("codex").read_failures(event.log, self.classify)
            ]
        store = SqliteStore(_store_path(self.settings), fsync=self.settings.fsync)
        try:
            with store.transaction(DEFAULT_TENANT) as transaction:
                update = _SessionUpdate(self, transaction)
                message = update.apply(calls)
            return self._build_answer(store, update, message)
        finally:
            store.close()

    def _build_answer(self, store: SqliteStore, update: _SessionUpdate, message: str) -> dict[str, Any] | None:
        reader = agent_module(self.agent)
        if update.failed and self.settings.mode != "observe":
            from mulligan.hooks import hints  # only after a failure

            memory_hints = hints.Hints(store, self.prompt, self.settings, self.agent, self.now, update.state)
            if self.agent == "gemini" and (replacement := memory_hints.find_replacement_call(*update.failed[-1])):
                return dict(reader.replace_call(self.event, *replacement))
            last = update.failed[-1][0]
            messages = [message, memory_hints.build_hint(last)]
            if update.identical_failures >= MAX_IDENTICAL_FAILURES and last.failure is not None:
                messages.append(
                    self.prompt.spiral([last.name], str(last.failure.kind), update.identical_failures, is_same=True)
                )
            message = "\n".join(filter(None, messages))
        return dict(reader.build_response(self.event, message)) if message else None

    def _build_step(self, call: AgentCall) -> Step:
        failure = None
        if call.error is not None:
            error = (
                truncate_text(call.error, MAX_ERROR_CHARS * 3 // 4, MAX_ERROR_CHARS // 4)
                if len(call.error) > MAX_ERROR_CHARS
                else call.error
            )
            failure = self.classify(
                text=error,
                tool=call.name,
                source="tool",
                is_error=True,
                arguments=call.arguments if isinstance(call.arguments, dict) else None,
            )
            if call.is_rejected:
                failure = msgspec.structs.replace(failure, took_effect=TookEffect.NO)
        return self._redact_step(
            Step(
                run="",
                seq=0,
                call=0,
                name=call.name,
                server=call.server,
                arguments=call.arguments,
                outcome="success" if failure is None else _outcome(failure),
                started_at=self.now - int(call.duration_seconds * 1000),
                duration_seconds=call.duration_seconds,
                failure=failure,
                key=None if call.server else f"{self.agent}:{call.name}",
                links_decided=failure is not None,
            )
        )

    def _redact_step(self, step: Step) -> Step:
        """Redact a step and apply the record level."""
        if self.settings.record == "shape" and isinstance(step.arguments, dict):
            from mulligan.capture.value_recording import Keeping, shapes  # rarely used

            keeping = Keeping(is_shape=True, is_model=False, closed=tuple)
            failure = keeping.failure(step.failure, step.arguments)
            step = msgspec.structs.replace(step, arguments=shapes(step.arguments), failure=failure)
        return self.redact(StepEnded(step)).step

    def redact(self, event: E) -> E:
        """Redact an event before it is stored."""
        return cast(E, redact_event(event, self.redactor))

    def build_run(self, at: int) -> Run:
        """Build the run record of a session."""
        find_user_prompt = getattr(agent_module(self.agent), "find_user_prompt", None)
        folder = self.event.folder
        metadata = {"project": os.path.basename(folder), "folder": folder} if folder else None
        context = (find_user_prompt(self.event.log) or None) if find_user_prompt is not None else None
        return Run(id="", agent=self.agent, session=self.session, started_at=at, metadata=metadata, context=context)


class _SessionUpdate:
    """Changes to one session within the transaction."""

    def __init__(self, hook: EventProcessor, transaction: StoreTransaction) -> None:
        self.hook, self.transaction = hook, transaction
        self.events: list[AnyEvent] = []
        self.failed: list[tuple[Step, str]] = []
        """New failures of this event, each with the agent's name of the tool."""
        self.identical_failures = 0
        """How often the last failure has occurred in a row."""
        stored_state = transaction.get(HOOK_STATE_KIND, hook.session)
        self.state = _decode_or_none(stored_state, HookState) or HookState(
            agent=hook.agent, folder=hook.event.folder, started_at=hook.now
        )
        self.session_tracker = _decode_or_none(transaction.get(SESSION_KIND, hook.session), Tracker) or Tracker()

    def apply(self, calls: Iterable[tuple[str, Step]]) -> str:
        """Apply the event and return the text for the model."""
        hook, state, session_tracker = self.hook, self.state, self.session_tracker
        state.at = hook.now
        self._count_successes()
        for id, step in calls:
            self._add_step(id, step)
        if hook.event.type == "calls" and hook.event.ends_turn:
            self._end_turn(call.id for call in hook.event.calls)
        message = self._handle_compaction() if hook.event.type in ("compacting", "compacted") else ""
        if hook.event.type != "compacting":
            message = message or session_tracker.take_reminder()
        self._store_session()
        if hook.event.type == "ended":
            session_files.remove_session_files(hook.event.session)
        else:
            session_files.write_open_tools(hook.event.session, self._open_tool_names())
        return message

    def _count_successes(self) -> None:
        """Add the successful calls that the first stage recorded."""
        turns, self.state.read = session_files.read_successful_calls(self.hook.event.session, self.state.read)
        steps_by_tool: dict[str, Step] = {}
        for turn in turns:
            for full_name, id in turn.calls:
                if full_name not in steps_by_tool:
                    name, server = split_tool_name(full_name)
                    key = None if server else f"{self.hook.agent}:{name}"
                    step = Step(run="", seq=0, call=0, name=name, server=server, key=key)
                    steps_by_tool[full_name] = self.hook.redact(StepEnded(step)).step
                self._add_step(id, msgspec.structs.replace(steps_by_tool[full_name], started_at=turn.at))
            self._end_turn(id for _, id in turn.calls)

    def _end_turn(self, ids: Iterable[str]) -> None:
        """Mark the end of a turn, once: hooks in two settings files report the same batch twice."""
        batch = " ".join(ids)[:200]
        if batch.strip(" -"):
            if batch in self.state.batches:
                return
            self.state.batches = [*self.state.batches[-HookState.MAX_BATCHES :], batch]
        self.session_tracker.mark_turn()

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
            run = self.hook.build_run(step.started_at)
            state.run = state.build_run_id(self.hook.session)
            self.events.append(self.hook.redact(RunStarted(msgspec.structs.replace(run, id=state.run))))
            self.session_tracker.begin(state.run)
        state.seq += 1
        step = msgspec.structs.replace(step, run=state.run, seq=state.seq, call=state.seq)
        if step.outcome == "success":
            step = self._add_links(id, step)
        if step.has_failed and step.failure is not None:
            self.failed.append((step, join_tool_name(step.name, step.server)))
            self.identical_failures = self._count_identical_failures(step)
        self.session_tracker.observe_step(step)
        self.events.append(StepEnded(step))

    def _add_links(self, id: str, step: Step) -> Step:
        """Return a success with the failed calls that it recovers."""
        failures = [*self.session_tracker.failures, *self.session_tracker.pending]
        if not any(failure.is_open and failure.step.tool_key == step.tool_key for failure in failures):
            return step
        from mulligan.hooks.session_log import link_success, read_log  # only after a failure

        hook = self.hook
        links = link_success(
            step,
            hook.arguments.get(id),
            failures,
            lambda: read_log(hook.agent, hook.event.log, hook.classify),
            lambda raw: hook.redact(StepEnded(raw)).step,
        )
        return msgspec.structs.replace(step, links=links) if links else step

    def _count_identical_failures(self, step: Step) -> int:
        """Count how often this failure has occurred in a row, without a success in between."""
        new_failure = TrackedFailure(step, self.session_tracker.turns)
        earlier_failure = next(
            (failure for failure in self.session_tracker.failures if failure.identity == new_failure.identity), None
        )
        if (
            earlier_failure is None
            or earlier_failure.successes_since
            or new_failure.turn - earlier_failure.turn > REPEAT_WINDOW_TURNS
        ):
            return 1
        return earlier_failure.count + 1

    def _handle_compaction(self) -> str:
        state, session_tracker, now = self.state, self.session_tracker, self.hook.now
        if now - state.compacted < DUPLICATE_COMPACTION_MS and state.compacted_at == (state.seq, session_tracker.turns):
            return ""
        session_tracker.compact(self.hook.prompt)
        state.compacted, state.compacted_at = now, (state.seq, session_tracker.turns)
        if state.seq:
            compaction = Compaction(
                session=self.hook.session, at=now, reason="agent", known_failures=session_tracker.known_failures
            )
            self.events.append(ContextCompacted(compaction))
        return session_tracker.take_reminder() if self.hook.event.type == "compacted" else ""

    def _store_session(self) -> None:
        state = self.state
        if self.hook.event.type == "ended" and state.seq:
            state.read = 0  # the session files are removed; a resumed session starts new ones
            run = Run(id=state.run, agent=state.agent, session=self.hook.session, started_at=state.started_at,
                      ended_at=self.hook.now, end_reason="finished")  # fmt: skip
            self.events.append(RunEnded(self._merge_run_start(run)))
        if self.events:
            self.transaction.append(self.events)
        if state.seq or self.session_tracker.turns:
            self.transaction.put(SESSION_KIND, self.hook.session, tracker.to_json(self.session_tracker))
            self.transaction.put(HOOK_STATE_KIND, self.hook.session, encode(state))

    def _merge_run_start(self, run: Run) -> Run:
        """Merge the end of a run into the record of its start."""
        started_run = next(
            (event.run for event in self.events if isinstance(event, RunStarted)), None
        ) or self.transaction.run(run.id)
        if started_run is None:
            return run
        return msgspec.structs.replace(started_run, ended_at=run.ended_at, end_reason=run.end_reason)

    def _open_tool_names(self) -> Iterable[str]:
        """Yield the tools whose success may recover an open failure."""
        if not self.session_tracker.is_reminder_delivered:
            yield "*"
        for failure in (*self.session_tracker.pending, *self.session_tracker.failures):
            if failure.is_open and self.session_tracker.turns - failure.turn <= MAX_TURNS_TO_RECOVERY:
                yield join_tool_name(failure.step.name, failure.step.server)
                if failure.step.failure is not None and failure.step.failure.kind.code in REREAD_KIND_CODES:
                    yield from ("Read", "read_file")


def _decode_or_none(data: bytes | None, type: type[Any]) -> Any:
    """Decode stored state, or return None if it is missing or invalid."""
    if data is None:
        return None
    try:
        return tracker.from_json(data) if type is Tracker else msgspec.json.decode(data, type=type)
    except (msgspec.MsgspecError, UnicodeError):
        return None


def _outcome(failure: Failure) -> Any:
    if failure.is_failure:
        return "failure"
    return "cancelled" if failure.kind.code == "cancelled" else "blocked"


def _store_path(settings: Settings) -> Any:
    """Return the path of the embedded store, even if the settings name a server: a hook must not wait for a network."""
    url = settings.store_url
    is_file = ("://" not in url and not url.startswith("memory:")) or url.startswith("sqlite:")
    return sqlite_path(url if is_file else str(settings.folder / "mulligan.db"))
