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
from mulligan.events import AnyEvent, ContextCompacted, RunEnded, RunStarted, StepEnded, Stream, redacted
from mulligan.failure import Failure, Ran
from mulligan.prompt import Prompt
from mulligan.records import Compaction, Run, Step, encode
from mulligan.redaction import Redactor
from mulligan.redaction.values import shortened
from mulligan.remember import tracker
from mulligan.remember.database import Desk
from mulligan.remember.sqlite import SqliteStore
from mulligan.remember.store import LOCAL
from mulligan.remember.tracker import RECENT, Remembered, Tracker
from mulligan.remember.urls import sqlite_path
from mulligan.serve.hooks import lines
from mulligan.serve.hooks.heard import Call, Heard, named, written
from mulligan.serve.hooks.state import KIND, SESSION, State
from mulligan.settings import Settings

E = TypeVar("E", RunStarted, StepEnded)
CHARS = 8192
"""Longest error text that is classified."""
AGAIN = 5000
"""Two compactions within this time are one: hooks may be installed in two settings files."""
WINDOW = 10
"""Turns within which a success of the same tool counts as recovery of a failure."""
IN_VAIN = 3
"""Identical failures in a row before the model is warned."""
REREAD = ("edit_mismatch", "stale_file")
"""Kinds of failure that reading the file again may recover."""


def _read(data: bytes) -> object:
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:
        from mulligan.capture.transcripts.lines import mended  # rare: an emoji that was cut in two

        return msgspec.json.decode(mended(data))


def heard(agent: str, data: bytes) -> bytes:
    """Process an event and return the response as JSON, or an empty text."""
    event = _read(data)
    told = _reader(agent).read(event) if isinstance(event, dict) else None
    if told is None or not told.session:
        return b""
    settings = settings_file.read(of_user=True)
    if settings.off or settings.record == "off":
        lines.remove(told.session)  # the first stage does not read settings files
        return b""
    answer = Hook(agent, told, settings).perform()
    return encode(answer) if answer else b""


def _reader(agent: str) -> Any:
    """Import the module of one agent only."""
    return importlib.import_module(f"mulligan.serve.hooks.{agent.replace('-', '_')}")


class Hook:
    """Processing of one event."""

    def __init__(self, agent: str, told: Heard, settings: Settings) -> None:
        self.agent, self.told, self.settings = agent, told, settings
        self.now = int(time.time() * 1000)
        hides: dict[str, Any] = {
            "names": settings.secret,
            "patterns": settings.patterns,
            "allowed": settings.allowed,
        }
        self.redactor = Redactor(level=settings.level, listed=settings.listed, **hides)
        self.words = Prompt(Redactor(personal=False, **hides))
        self.classify: Callable[..., Failure] = classify
        if settings.kinds or settings.rules:
            given = {"kinds": settings.kinds, "rules": settings.rules}
            self.classify = Classifier.from_settings(given).classify
        self.session = Stream(self.redactor).nameable(told.session)
        self.arguments: dict[str, Any] = {}
        """Unredacted arguments of this event's calls, by id."""

    def perform(self) -> dict[str, Any] | None:
        told = self.told
        # Before the transaction: other processes do not wait for this.
        calls = [(call.id, self._step(call)) for call in told.calls if not call.is_interrupted]
        self.arguments = {call.id: call.arguments for call in told.calls}
        if self.agent == "codex" and told.what in ("compacted", "ended") and told.log:
            calls += [(id, self._kept(step)) for id, step in _reader("codex").failures(told.log, self.classify)]
        store = SqliteStore(_path(self.settings), fsync=self.settings.fsync)
        try:
            with store.transaction(LOCAL) as desk:
                work = _Work(self, desk)
                said = work.perform(calls)
            return self._answer(store, work, said)
        finally:
            store.close()

    def _answer(self, store: SqliteStore, work: _Work, said: str) -> dict[str, Any] | None:
        reader = _reader(self.agent)
        if work.failed and self.settings.mode != "observe":
            from mulligan.serve.hooks import hints  # only after a failure

            known = hints.Hints(store, self.words, self.settings, self.agent, self.now, work.state)
            if self.agent == "gemini" and (better := known.instead(*work.failed[-1])):
                return dict(reader.instead(self.told, *better))
            last = work.failed[-1][0]
            told = [said, known.hint(last)]
            if work.in_vain >= IN_VAIN and last.failure is not None:
                told.append(self.words.spiral([last.name], str(last.failure.kind), work.in_vain, is_same=True))
            said = "\n".join(filter(None, told))
        return dict(reader.answer(self.told, said)) if said else None

    def _step(self, call: Call) -> Step:
        failure = None
        if call.error is not None:
            error = shortened(call.error, CHARS * 3 // 4, CHARS // 4) if len(call.error) > CHARS else call.error
            failure = self.classify(
                text=error,
                tool=call.name,
                source="tool",
                is_error=True,
                arguments=call.arguments if isinstance(call.arguments, dict) else None,
            )
            if call.is_unmade:
                failure = msgspec.structs.replace(failure, ran=Ran.NO)
        return self._kept(
            Step(
                run="",
                seq=0,
                call=0,
                name=call.name,
                server=call.server,
                arguments=call.arguments,
                outcome="success" if failure is None else _outcome(failure),
                started=self.now - int(call.seconds * 1000),
                seconds=call.seconds,
                failure=failure,
                key=None if call.server else f"{self.agent}:{call.name}",
                judged=failure is not None,
            )
        )

    def _kept(self, step: Step) -> Step:
        """Redact a step and apply the record level."""
        if self.settings.record == "shape" and isinstance(step.arguments, dict):
            from mulligan.capture.keeping import Keeping, shapes  # rarely used

            keeping = Keeping(is_shape=True, is_model=False, closed=tuple)
            failure = keeping.failure(step.failure, step.arguments)
            step = msgspec.structs.replace(step, arguments=shapes(step.arguments), failure=failure)
        return self.through(StepEnded(step)).step

    def through(self, event: E) -> E:
        """Redact an event before it is stored."""
        return cast(E, redacted(event, self.redactor))

    def started(self, at: int) -> Run:
        """Build the run record of a session."""
        asked = getattr(_reader(self.agent), "asked", None)
        folder = self.told.folder
        about = {"project": os.path.basename(folder), "folder": folder} if folder else None
        return Run(id="", agent=self.agent, session=self.session, started=at, metadata=about,
                   context=(asked(self.told.log) or None) if asked is not None else None)  # fmt: skip


class _Work:
    """Changes to one session within the transaction."""

    def __init__(self, hook: Hook, desk: Desk) -> None:
        self.hook, self.desk = hook, desk
        self.events: list[AnyEvent] = []
        self.failed: list[tuple[Step, str]] = []
        """New failures of this event, each with the agent's name of the tool."""
        self.in_vain = 0
        """How often the last failure has occurred in a row."""
        kept = desk.get(KIND, hook.session)
        self.state = _restored(kept, State) or State(agent=hook.agent, folder=hook.told.folder, started=hook.now)
        self.known = _restored(desk.get(SESSION, hook.session), Tracker) or Tracker()

    def perform(self, calls: Iterable[tuple[str, Step]]) -> str:
        """Apply the event and return the text for the model."""
        hook, state, known = self.hook, self.state, self.known
        state.at = hook.now
        self._count_worked()
        for id, step in calls:
            self._hear(id, step)
        if hook.told.what == "calls" and hook.told.ends_turn:
            self._end_turn(call.id for call in hook.told.calls)
        said = self._compacted() if hook.told.what in ("compacting", "compacted") else ""
        if hook.told.what != "compacting":
            said = said or known.injection()
        self._keep()
        if hook.told.what == "ended":
            lines.remove(hook.told.session)
        else:
            lines.leave_open(hook.told.session, self._wanted())
        return said

    def _count_worked(self) -> None:
        """Add the successful calls that the first stage recorded."""
        found, self.state.read = lines.worked(self.hook.told.session, self.state.read)
        known: dict[str, Step] = {}
        for turn in found:
            for called, id in turn.calls:
                if called not in known:
                    name, server = named(called)
                    key = None if server else f"{self.hook.agent}:{name}"
                    step = Step(run="", seq=0, call=0, name=name, server=server, key=key)
                    known[called] = self.hook.through(StepEnded(step)).step
                self._hear(id, msgspec.structs.replace(known[called], started=turn.at))
            self._end_turn(id for _, id in turn.calls)

    def _end_turn(self, ids: Iterable[str]) -> None:
        """Mark the end of a turn, once: hooks in two settings files report the same batch twice."""
        batch = " ".join(ids)[:200]
        if batch.strip(" -"):
            if batch in self.state.batches:
                return
            self.state.batches = [*self.state.batches[-State.BATCHES :], batch]
        self.known.turn()

    def _hear(self, id: str, step: Step) -> None:
        state = self.state
        known_by = f"{id} {step.outcome == 'success'}"
        if id and id != "-":
            # A failure is reported when it happens, again as a success with its batch, and twice if hooks are
            # installed in two settings files.
            if known_by in state.ids or f"{id} False" in state.ids:
                return
            state.ids = [*state.ids[-State.IDS :], known_by]
        if not state.seq:
            state.started = step.started
            run = self.hook.started(step.started)
            state.run = state.run_of(self.hook.session)
            self.events.append(self.hook.through(RunStarted(msgspec.structs.replace(run, id=state.run))))
            self.known.begin(state.run)
        state.seq += 1
        step = msgspec.structs.replace(step, run=state.run, seq=state.seq, call=state.seq)
        if step.outcome == "success":
            step = self._link(id, step)
        if step.has_failed and step.failure is not None:
            self.failed.append((step, written(step.name, step.server)))
            self.in_vain = self._in_vain(step)
        self.known.hear(step)
        self.events.append(StepEnded(step))

    def _link(self, id: str, step: Step) -> Step:
        """Return a success with the failed calls that it recovers."""
        failures = [*self.known.failures, *self.known.pending]
        if not any(failure.is_open and failure.step.tool_key == step.tool_key for failure in failures):
            return step
        from mulligan.serve.hooks.session_log import link_success, read_log  # only after a failure

        hook = self.hook
        links = link_success(
            step,
            hook.arguments.get(id),
            failures,
            lambda: read_log(hook.agent, hook.told.log, hook.classify),
            lambda raw: hook.through(StepEnded(raw)).step,
        )
        return msgspec.structs.replace(step, links=links) if links else step

    def _in_vain(self, step: Step) -> int:
        """Count how often this failure has occurred in a row, without a success in between."""
        new = Remembered(step, self.known.turns)
        known = next((each for each in self.known.failures if each.is_of == new.is_of), None)
        if known is None or known.since or new.turn - known.turn > RECENT:
            return 1
        return known.count + 1

    def _compacted(self) -> str:
        state, known, now = self.state, self.known, self.hook.now
        if now - state.compacted < AGAIN and state.compacted_at == (state.seq, known.turns):
            return ""
        known.compact(self.hook.words)
        state.compacted, state.compacted_at = now, (state.seq, known.turns)
        if state.seq:
            made = Compaction(session=self.hook.session, at=now, reason="agent", known=known.known)
            self.events.append(ContextCompacted(made))
        return known.injection() if self.hook.told.what == "compacted" else ""

    def _keep(self) -> None:
        state = self.state
        if self.hook.told.what == "ended" and state.seq:
            state.read = 0  # the session files are removed; a resumed session starts new ones
            run = Run(id=state.run, agent=state.agent, session=self.hook.session, started=state.started,
                      ended=self.hook.now, end="finished")  # fmt: skip
            self.events.append(RunEnded(self._whole(run)))
        if self.events:
            self.desk.append(self.events)
        if state.seq or self.known.turns:
            self.desk.put(SESSION, self.hook.session, tracker.kept(self.known))
            self.desk.put(KIND, self.hook.session, encode(state))

    def _whole(self, run: Run) -> Run:
        """Merge the end of a run into the record of its start."""
        begun = next((each.run for each in self.events if isinstance(each, RunStarted)), None) or self.desk.run(run.id)
        if begun is None:
            return run
        return msgspec.structs.replace(begun, ended=run.ended, end=run.end)

    def _wanted(self) -> Iterable[str]:
        """Yield the tools whose success may recover an open failure."""
        if not self.known.is_told:
            yield "*"
        for each in (*self.known.pending, *self.known.failures):
            if each.is_open and self.known.turns - each.turn <= WINDOW:
                yield written(each.step.name, each.step.server)
                if each.step.failure is not None and each.step.failure.kind.code in REREAD:
                    yield from ("Read", "read_file")


def _restored(data: bytes | None, type: type[Any]) -> Any:
    """Decode stored state, or return None if it is missing or invalid."""
    if data is None:
        return None
    try:
        return tracker.restored(data) if type is Tracker else msgspec.json.decode(data, type=type)
    except (msgspec.MsgspecError, UnicodeError):
        return None


def _outcome(failure: Failure) -> Any:
    if failure.counts:
        return "failure"
    return "cancelled" if failure.kind.code == "cancelled" else "refused"


def _path(settings: Settings) -> Any:
    """Return the path of the embedded store, even if the settings name a server: a hook must not wait for a network."""
    url = settings.store_url
    is_file = ("://" not in url and not url.startswith("memory:")) or url.startswith("sqlite:")
    return sqlite_path(url if is_file else str(settings.folder / "mulligan.db"))
