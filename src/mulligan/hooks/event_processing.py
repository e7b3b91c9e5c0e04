"""Processing of an event that must be stored: one transaction, then the response.

Hooks are concurrent processes, so the state of a session is read, changed and written under one lock.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from mulligan import settings as settings_file
from mulligan.classify.classifier import Classifier, classify
from mulligan.classify.tool_category import find_category_of_name
from mulligan.contract.store import DEFAULT_TENANT, FORGOTTEN_KIND, forgotten_key
from mulligan.core.events import AnyEvent, ContextCompacted, EventStream, RunEnded, RunStarted, StepEnded, redact_event
from mulligan.core.failure import Failure, StoreError, StoreLockedError, TookEffect, strip_own_blocks
from mulligan.core.holdout import REMINDER, is_held_out
from mulligan.core.records import (
    ANY_FIX,
    MAX_ADVISED_FIX_RECORDS,
    QUERY_TOOLS,
    AdvisedFix,
    Compaction,
    Link,
    Outcome,
    Run,
    Step,
    decode,
    digest,
    encode,
    new_id,
)
from mulligan.core.run_links import link_recoveries
from mulligan.hooks import agents, session_files
from mulligan.hooks.agents import (
    HOOK_STATE_KIND,
    AgentCall,
    AgentEvent,
    HookState,
    SpooledEvent,
    join_tool_name,
    run_id_prefix,
    split_tool_name,
)
from mulligan.hooks.success_spool import build_redactor, build_success, redact_call
from mulligan.journal import EVENT_FRAME, encode_frame, read_frames
from mulligan.learn import tracker
from mulligan.learn.tracker import REPEAT_WINDOW_TURNS, SESSION_KIND, TrackedFailure, Tracker, find_subject
from mulligan.prompt import Prompt
from mulligan.redaction import Redactor
from mulligan.redaction.plain_data import truncate_text
from mulligan.settings import Settings
from mulligan.store.sql import StoreTransaction
from mulligan.store.sqlite import SqliteStore
from mulligan.store.urls import sqlite_path

MAX_LOCK_WAIT_MS = 80
"""Wait for a locked store. The agent waits for its hook, so the event is then spooled."""
MAX_ERROR_CHARS = 8192
"""Longest error text that is classified."""
DUPLICATE_COMPACTION_MS = 5000
"""Two compactions within this time are one: hooks may be installed in two settings files."""
MAX_TURNS_TO_RECOVERY = 10
"""Turns within which a success of the same tool counts as recovery of a failure."""
MAX_IDENTICAL_FAILURES = 3
"""Identical failures in a row before the model is warned."""


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
    def __init__(self, event: AgentEvent, settings: Settings) -> None:
        self.event, self.settings = event, settings
        self.now = self.event_time = int(time.time() * 1000)
        self.redactor = build_redactor(settings)
        names, patterns, allowed = settings.redact_names, settings.redact_patterns, settings.redact_ignore
        self.prompt = Prompt(Redactor(personal=False, names=names, patterns=patterns, allowed=allowed))
        self.classify: Callable[..., Failure] = classify
        if settings.kinds or settings.rules:
            self.classify = Classifier.from_settings({"kinds": settings.kinds, "rules": settings.rules}).classify
        self.session = EventStream(self.redactor).redact_session_id(event.session)
        self.state = HookState(agent=event.agent, folder=event.folder, started_at=self.now)
        self.tracker = Tracker()
        self.events: list[AnyEvent] = []
        """Records to store."""
        self.failed: dict[str, Step] = {}
        """New failures of this event by the id of their call."""
        self.proxied_ids: set[str] = set()
        """Calls whose answer shows that our proxy has recorded them."""
        self.proxied_tools = session_files.read_proxied_tools(event.session)
        self.spool_bytes = 0
        """Size of the spooled events when they were read."""
        self.has_ended = False
        """Whether the last event is the end of the session, or nothing of it may be stored."""
        self.is_first_failure = False
        """Whether the last failure has not occurred before in the session."""
        self.identical_failures = 0
        """How often the last failure has occurred in a row."""
        self.logged_calls: list[tuple[str, Step]] = []
        """Calls of the session log in order, each with its id. Empty without a log."""
        self.merged_digests: dict[str, str] = {}
        """Digests of the calls of the log that this event adds, by id."""

    def process(self) -> dict[str, Any] | None:
        """Store the event and return the response."""
        event = self.event
        # Before the transaction: other processes do not wait for this.
        calls = [(call.id, self._build_step(call)) for call in event.calls if not call.is_interrupted]
        self.logged_calls, models = self._read_logged_calls()
        latest_model = event.model or next(reversed(models.values()), "")
        calls = [(id, self._add_model(step, models.get(id, latest_model))) for id, step in calls]
        spooled = SpooledEvent(
            id=new_id("event"), at=self.now, event=replace(event, calls=()), calls=calls, proxied=[*self.proxied_ids]
        )
        try:
            store = SqliteStore(store_path(self.settings), fsync=self.settings.fsync, busy_ms=MAX_LOCK_WAIT_MS)
            try:
                with store.transaction(DEFAULT_TENANT) as transaction:
                    message = self._update_session(transaction, spooled)
                self._update_session_files()
                return self._build_response(store, message)
            finally:
                store.close()
        except StoreError as error:
            with suppress(OSError):
                session_files.append_frame(event.session, encode_frame(EVENT_FRAME, encode(spooled)))
                if isinstance(error, StoreLockedError):
                    return None
            raise

    def import_spool(self) -> None:
        """Store the spooled events of the session."""
        store = SqliteStore(store_path(self.settings), fsync=self.settings.fsync)
        try:
            with store.transaction(DEFAULT_TENANT) as transaction:
                self._update_session(transaction, None)
            self._update_session_files()
        finally:
            store.close()

    def _add_model(self, step: Step, model: str) -> Step:
        """Return a failed step with the model that requested it."""
        return replace(step, metadata={"model": self.redactor.text(model)}) if model and step.has_failed else step

    def _read_logged_calls(self) -> tuple[list[tuple[str, Step]], dict[str, str]]:
        """Return the calls of the session log, and the models that requested them by id.

        The reader is that of `mulligan scan`, so both see the same calls.
        """
        if not self.event.log:
            return [], {}
        from mulligan.hooks.recall import read_log

        return read_log(self.event.agent, self.event.log, self.event.session, self.classify)

    def _build_response(self, store: SqliteStore, message: str) -> dict[str, Any] | None:
        if self.failed and self.settings.mode != "observe":
            from mulligan.hooks.recall import Hints

            hints = Hints(store, self.prompt, self.settings, self.now, self.state)
            last = list(self.failed.values())[-1]
            if self.event.agent == "gemini" and (replacement := hints.find_replacement_call(last)):
                arguments, note = replacement
                return agents.build_response(self.event, note, (join_tool_name(last), arguments))
            hint = hints.build_hint(last, is_first=self.is_first_failure)
            messages = [message, hint if self._store_advice(store, last, hints.fixes, hints.held_out_fixes) else ""]
            if self.identical_failures >= MAX_IDENTICAL_FAILURES and last.failure is not None:
                kind = str(last.failure.kind)
                messages.append(self.prompt.spiral([last.name], kind, self.identical_failures, is_same=True))
            message = "\n".join(filter(None, messages))
        if message and not self.event.can_return_text:
            self._postpone(store, message)
            return None
        return agents.build_response(self.event, message) if message else None

    def _postpone(self, store: SqliteStore, message: str) -> None:
        """Store a message that the agent reads with the next event that can return text."""
        with store.transaction(DEFAULT_TENANT) as transaction:
            stored_state = transaction.get(HOOK_STATE_KIND, self.session)
            self.state = decode(stored_state, HookState) if stored_state else self.state  # it has the fixes of the hint
            self.state.postponed = message
            transaction.put(HOOK_STATE_KIND, self.session, encode(self.state))
        self._update_session_files()

    def _store_advice(
        self, store: SqliteStore, failed: Step, fixes: Iterable[str], held_out_fixes: Iterable[str]
    ) -> bool:
        """Store the fixes of a hint: a later success is no evidence for them. Return whether it may be shown."""
        advice = [(failed.name, failed.call, fix) for fix in fixes]
        held_out = [(failed.call, fix) for fix in held_out_fixes]
        if not advice and not held_out:
            return True
        try:
            with store.transaction(DEFAULT_TENANT) as transaction:
                # Another process may have changed the state since.
                stored_state = transaction.get(HOOK_STATE_KIND, self.session) or encode(self.state)
                state = decode(stored_state, HookState)
                state.advice = list(dict.fromkeys([*state.advice, *advice]))[-MAX_ADVISED_FIX_RECORDS:]
                state.held_out = list(dict.fromkeys([*state.held_out, *held_out]))[-MAX_ADVISED_FIX_RECORDS:]
                transaction.put(HOOK_STATE_KIND, self.session, encode(state))
        except (StoreError, msgspec.MsgspecError):
            return False  # what was told and is not known would count as evidence for itself
        return True

    def _build_step(self, call: AgentCall) -> Step:
        failure, outcome = None, "success"
        if call.error is not None:
            error = strip_own_blocks(call.error)
            if error != call.error:
                self.proxied_ids.add(call.id)
            if len(error) > MAX_ERROR_CHARS:
                error = truncate_text(error, MAX_ERROR_CHARS * 3 // 4, MAX_ERROR_CHARS // 4)
            arguments = call.arguments if isinstance(call.arguments, dict) else None
            failure = self.classify(
                text=error,
                tool=call.name,
                source="tool",
                is_error=True,
                arguments=arguments,
                category=find_category_of_name(call.name),
            )
            outcome = "cancelled" if failure.kind.is_cancelled else "blocked"
            outcome = "failure" if failure.is_failure else outcome
            if call.is_rejected:
                failure = replace(failure, took_effect=TookEffect.NO)
        step = replace(
            build_success(self.event.agent, call, self.now),
            outcome=cast(Outcome, outcome),
            failure=failure,
            links_decided=failure is not None,
        )
        return self._apply_record_level(step)

    def _apply_record_level(self, step: Step) -> Step:
        """Return a step as it may be stored: without its result, at the record level, redacted."""
        if self.settings.record == "shape":
            from mulligan.capture.value_recording import to_shape  # rarely used

            step = to_shape(replace(step, result=None))
        return redact_call(step, self.redactor)

    # The session, within the transaction

    def _update_session(self, transaction: StoreTransaction, current: SpooledEvent | None) -> str:
        """Apply spooled events and this one to the stored session. Return the text for the model."""
        stored_state = transaction.get(HOOK_STATE_KIND, self.session)
        if stored_state is None and transaction.get(FORGOTTEN_KIND, forgotten_key(self.session)) is not None:
            self.has_ended = True
            return ""  # the log still has what was erased
        with suppress(msgspec.MsgspecError, UnicodeError):  # invalid state is replaced
            self.state = decode(stored_state or encode(self.state), HookState)
        with suppress(msgspec.MsgspecError, UnicodeError):
            self.tracker = tracker.from_json(transaction.get(SESSION_KIND, self.session) or b"")
        self.state.at = self.now
        turns, self.state.read = session_files.read_calls(self.event.session, self.state.read)
        spooled_events = self._read_spool()
        if turns or spooled_events:
            self.tracker.commit_pending()  # turns ended before the calls that the log has gained
        self._add_logged_calls()
        for spooled in spooled_events:
            self._count_successes(turn for turn in turns if turn[0] < spooled.at)
            turns = [turn for turn in turns if turn[0] >= spooled.at]
            self._apply_event(transaction, spooled)
            self.state.spooled = spooled.id
        self._count_successes(turns)
        # The model has read the answers to earlier calls. The log may already have the calls of this event.
        reported_calls = current.calls if current is not None else ()
        reported_ids = {id.strip("-") or self._find_logged_id(step) for id, step in reported_calls}
        self.failed = {id: step for id, step in self.failed.items() if id in reported_ids}
        message = ""
        if current is not None:
            self._apply_event(transaction, current)
            message = self._take_messages() if current.event.can_return_text else ""
        self._store_session(transaction)
        return message

    def _take_messages(self) -> str:
        """Return the hint that an earlier event could not return, and the reminder."""
        hint, self.state.postponed = self.state.postponed, ""
        return "\n".join(filter(None, (hint, self._take_reminder())))

    def _take_reminder(self) -> str:
        """Return the reminder once per compaction, unless it is held out from this session."""
        reminder = self.tracker.take_reminder()
        if not reminder:
            return ""
        self.state.reminder = "shown"
        if is_held_out(self.settings.holdout_reminders, self.session, REMINDER):
            self.state.reminder = "held out"
            return ""
        return reminder

    def _apply_event(self, transaction: StoreTransaction, spooled: SpooledEvent) -> None:
        event, self.event_time = spooled.event, spooled.at
        self.proxied_ids.update(spooled.proxied)
        for id, step in spooled.calls:
            self._add_reported_call(id, step)
        if event.ends_turn:
            self._end_turn(id for id, _ in spooled.calls)
        if event.type in ("compacting", "compacted"):
            self._handle_compaction()
        self.has_ended = event.type == "ended"
        if self.has_ended:
            self._end_run(transaction)

    def _read_spool(self) -> list[SpooledEvent]:
        """Return the spooled events that are not stored yet."""
        path = Path(session_files.session_file_path(self.event.session.encode("utf-8", "replace"), ".spool"))
        spooled_events: list[SpooledEvent] = []
        if path.exists():
            self.spool_bytes = path.stat().st_size
            for frame in read_frames(path):
                with suppress(msgspec.MsgspecError, UnicodeError):  # written by another version
                    spooled_events.append(decode(frame.payload, SpooledEvent))
        ids = [spooled.id for spooled in spooled_events]
        return spooled_events[ids.index(self.state.spooled) + 1 :] if self.state.spooled in ids else spooled_events

    def _update_session_files(self) -> None:
        """Update the files after the commit: until then they hold what is not stored."""
        if self.has_ended:
            session_files.remove_session_files(self.event.session)
        else:
            session_files.remove_spool(self.event.session, self.spool_bytes)
            session_files.write_open_tools(self.event.session, self._open_tool_names())

    def _add_logged_calls(self) -> None:
        """Add the calls that the log has gained, with the failures that they recover."""
        state, calls = self.state, self.logged_calls
        new_calls = calls[state.logged :]
        state.logged = max(state.logged, len(calls))
        if not new_calls:
            return
        links = self._link_recoveries(())
        for id, logged_step in new_calls:
            key = None if logged_step.server else f"{state.agent}:{logged_step.name}"
            step = self._apply_record_level(replace(logged_step, key=key, links_decided=logged_step.has_failed))
            call_digest = _digest_call(step)
            reported_call = next((call for call in state.unlogged if call[0] == call_digest), None)
            if reported_call is not None:
                state.unlogged.remove(reported_call)
                if step.has_failed:
                    state.failed_calls[id] = reported_call[1]
                continue
            self._add_step(id, step, links.get(logged_step.call, ()))
            self.merged_digests[id] = call_digest

    def _link_recoveries(self, later_steps: Iterable[Step]) -> dict[int, list[tuple[str, Link]]]:
        """Return the links that `scan` finds, by recovering call, each with the id of the failed call."""
        ids = {step.call: id for id, step in self.logged_calls}
        steps = sorted((step for _, step in self.logged_calls), key=lambda step: step.seq)
        recovery_links: Iterable[Link] = link_recoveries([*steps, *later_steps])
        if self.settings.record == "shape":
            from mulligan.capture.value_recording import links_to_shape  # rarely used

            recovery_links = links_to_shape(recovery_links)
        links: dict[int, list[tuple[str, Link]]] = {}
        for link in recovery_links:
            links.setdefault(link.recovering_call, []).append((ids.get(link.failed_call, ""), link))
        return links

    def _add_reported_call(self, id: str, step: Step) -> None:
        """Add a call of this event, unless the log had it."""
        has_id = bool(id.strip("-"))
        if not has_id and self._find_logged_id(step):
            return
        seq, recoveries = self.state.seq, None
        if self.logged_calls and step.outcome == "success":
            arguments = next((call.arguments for call in self.event.calls if call.id == id), step.arguments)
            last = max(self.logged_calls, key=lambda call: call[1].seq)[1]
            number = last.seq + 1
            unredacted = replace(
                step, run=last.run, seq=number, call=number, arguments=arguments, key=None, started_at=0
            )
            recoveries = self._link_recoveries([unredacted]).get(number, ())
        self._add_step(id, step, recoveries)
        if not has_id and self.state.seq > seq:
            self.state.unlogged.append((_digest_call(step), self.state.seq))

    def _find_logged_id(self, step: Step) -> str:
        """Return the id of a call whose event has none, if this event has read it as the last call of the log."""
        last_id = self.logged_calls[-1][0] if self.logged_calls else ""
        return last_id if self.merged_digests.get(last_id) == _digest_call(step) else ""

    def _count_successes(self, turns: Iterable[tuple[int, list[tuple[str, str]]]]) -> None:
        """Add the successful calls of events that exited early, by turn with its time."""
        steps_by_tool: dict[str, Step] = {}
        for timestamp, calls in turns:
            for name, id in calls:
                if name not in steps_by_tool:
                    tool, server = split_tool_name(name)
                    success = build_success(self.event.agent, AgentCall(id=id, name=tool, server=server), timestamp)
                    steps_by_tool[name] = redact_call(success, self.redactor)
                if not self.logged_calls:  # the log has them with their arguments
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

    def _add_step(self, id: str, step: Step, recoveries: Iterable[tuple[str, Link]] | None = None) -> None:
        """Add a step, once. `recoveries` are its links if the log has decided them."""
        state = self.state
        call_key = f"{id} {step.outcome == 'success'}"
        if id and id != "-":
            # A failure is reported when it happens, again as a success with its batch, and twice if hooks are
            # installed in two settings files.
            if call_key in state.ids or f"{id} False" in state.ids:
                return
            state.ids = [*state.ids[-max(HookState.MAX_CALL_IDS, len(self.logged_calls)) :], call_key]
        is_proxied = id in self.proxied_ids or session_files.tool_key(join_tool_name(step)) in self.proxied_tools
        if not state.seq:
            state.run = f"{run_id_prefix(state.agent, self.session)}{state.folder_suffix}"
            self.tracker.begin(state.run)
        if not is_proxied and not state.is_stored:
            state.is_stored, state.started_at = True, step.started_at
            self.events.append(redact_event(RunStarted(self._build_run()), self.redactor))
        state.seq += 1
        step = replace(step, run=state.run, seq=state.seq, call=state.seq)
        if step.name in QUERY_TOOLS and (ANY_FIX, 0, ANY_FIX) not in state.advice:
            state.advice.append((ANY_FIX, 0, ANY_FIX))
        if step.outcome == "success" and recoveries is None:
            step = self._add_links(step)
        elif step.outcome == "success":
            links = tuple(
                replace(link, run=state.run, failed_call=number, recovering_call=state.seq, provisional=False)
                for failed_id, link in recoveries or ()
                if (number := state.failed_calls.get(failed_id)) is not None
            )
            step = redact_call(replace(step, links=links), self.redactor)
        elif id and id != "-":
            state.failed_calls[id] = state.seq
        if step.links and (advice := state.list_advice(step.name)):
            step = replace(step, links=tuple(replace(link, advice=advice) for link in step.links))
        if step.has_failed and step.failure is not None and not is_proxied:
            self.failed[id] = step
            self.identical_failures = self._count_identical_failures(step)
            fingerprint = step.failure.fingerprint
            self.is_first_failure = fingerprint not in state.fingerprints
            if self.is_first_failure:
                state.fingerprints = [*state.fingerprints[-HookState.MAX_BATCHES :], fingerprint]
        self.tracker.observe_step(step)
        if not is_proxied:  # the proxy has stored the call and answered the model; a reminder still needs it
            self.events.append(StepEnded(step))

    def _build_run(self) -> Run:
        folder = self.event.folder
        return Run(
            id=self.state.run,
            agent=self.event.agent,
            session=self.session,
            started_at=self.state.started_at,
            metadata={"project": os.path.basename(folder), "folder": folder} if folder else None,
            context=(agents.find_user_prompt(self.event.log) if self.settings.record == "full" else "") or None,
        )

    def _add_links(self, step: Step) -> Step:
        """Return a success with the failed calls that it recovers, as far as they are known without a log."""
        failures = [*self.tracker.failures, *self.tracker.pending]
        if not any(failure.is_open and failure.step.tool_key == step.tool_key for failure in failures):
            return step
        from mulligan.hooks.recall import link_success

        return replace(step, links=link_success(step, failures))

    def _count_identical_failures(self, step: Step) -> int:
        """Count how often this failure has occurred in a row, without a success in between."""
        new_failure = TrackedFailure(step, self.tracker.turns, subject=find_subject(step))
        for earlier in self.tracker.failures:
            if earlier.identity == new_failure.identity:
                is_recent = new_failure.turn - earlier.turn <= REPEAT_WINDOW_TURNS
                return earlier.count + 1 if is_recent and not earlier.successes_since else 1
        return 1

    def _handle_compaction(self) -> None:
        state, position = self.state, (self.state.seq, self.tracker.turns)
        if self.event_time - state.compacted < DUPLICATE_COMPACTION_MS and state.compacted_at == position:
            return
        self.tracker.compact(self.prompt)
        state.compacted, state.compacted_at = self.event_time, position
        if state.is_stored:
            known_failures = self.tracker.known_failures
            compaction = Compaction(
                session=self.session, at=self.event_time, reason="agent", known_failures=known_failures
            )
            self.events.append(ContextCompacted(compaction))

    def _end_run(self, transaction: StoreTransaction) -> None:
        state = self.state
        state.read = 0  # the session files are removed; a resumed session starts new ones
        if state.is_stored:
            run = next((event.run for event in self.events if isinstance(event, RunStarted)), None)
            run = run or transaction.run(state.run)
            run = run or Run(id=state.run, agent=state.agent, session=self.session, started_at=state.started_at)
            advice = [AdvisedFix(0, REMINDER, state.reminder == "held out")] if state.reminder else []
            advice += [AdvisedFix(call, fix) for _, call, fix in state.advice if call]
            advice += [AdvisedFix(call, fix, held_out=True) for call, fix in state.held_out]
            ended_run = replace(run, ended_at=self.event_time, end_reason="finished", advice=tuple(advice))
            self.events.append(RunEnded(ended_run))

    def _store_session(self, transaction: StoreTransaction) -> None:
        state = self.state
        if self.events:
            transaction.append(self.events)
        if state.seq or self.tracker.turns:
            transaction.put(SESSION_KIND, self.session, tracker.to_json(self.tracker))
            state.ids = state.ids[-HookState.MAX_CALL_IDS :]
            state.unlogged = state.unlogged[-HookState.MAX_BATCHES :]
            state.failed_calls = dict(list(state.failed_calls.items())[-HookState.MAX_CALL_IDS :])
            transaction.put(HOOK_STATE_KIND, self.session, encode(state))

    def _open_tool_names(self) -> Iterator[str]:
        """Yield the tools whose success may recover an open failure, `*` for any event, and the ids of failed calls."""
        mark = session_files.FAILED_MARK.decode()
        yield from (mark + id for id in list(self.state.failed_calls)[-HookState.MAX_BATCHES :])
        if self.state.postponed or not self.tracker.is_reminder_delivered:
            yield "*"
        for failure in (*self.tracker.pending, *self.tracker.failures):
            if failure.is_open and self.tracker.turns - failure.turn <= MAX_TURNS_TO_RECOVERY:
                yield join_tool_name(failure.step)
                if self.event.agent == "codex" and failure.step.server is None:
                    yield from ("Bash", "apply_patch")  # its events name every command so
                if failure.step.failure is not None and failure.step.failure.kind.needs_reread:
                    yield from ("Read", "read_file")


def _digest_call(step: Step) -> str:
    """Return what identifies a call whose event has no id."""
    return digest(encode((step.tool_key, step.arguments, step.outcome)), 8).hex()


def store_path(settings: Settings) -> Any:
    """Return the path of the embedded store, even if the settings name a server: a hook must not wait for a network."""
    url = settings.store_url
    is_file = ("://" not in url and not url.startswith("memory:")) or url.startswith("sqlite:")
    return sqlite_path(url if is_file else str(settings.folder / "mulligan.db"))


def import_spools(settings: Settings) -> None:
    """Store the spooled events of all sessions, for commands that read the store of the hooks."""
    for path in sorted(Path(session_files.hooks_folder()).glob("*.spool")):
        for frame in islice(read_frames(path), 1):
            with suppress(msgspec.MsgspecError, UnicodeError):  # written by another version
                EventProcessor(decode(frame.payload, SpooledEvent).event, settings).import_spool()
