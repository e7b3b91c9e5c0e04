"""Runs and steps as context managers, and the current run of each context."""

from __future__ import annotations

import contextvars
import itertools
import sys
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, Self, get_args

import msgspec

from mulligan.capture import trace_context
from mulligan.capture.context import NO_LIMITS, Here, Kit, Limits, reset
from mulligan.capture.run_judge import (
    RunJudge,
    enter_task,
    find_failed_calls,
    find_marked_calls,
    scope_of,
)
from mulligan.capture.value_recording import shapes
from mulligan.classify.kinds import KINDS, ORCHESTRATION_UNCAUGHT_EXCEPTION
from mulligan.core import fork_safety
from mulligan.core.events import RunEnded, RunStarted, StepEnded, StepStarted
from mulligan.core.failure import Failure, Kind, SettingsError
from mulligan.core.fast_path import MAX_INLINE_CHARS, SuccessRecord, restore_value
from mulligan.core.links import CallFacts, Receiver, RunProgress
from mulligan.core.records import Link, Outcome, Run, Status, Step, StepType, new_id
from mulligan.recover.loop_detection import LoopDetector
from mulligan.recover.plan import BLOCKED
from mulligan.recover.tool import EarlierCall

Raised = type[BaseException] | None
_lock = threading.RLock()
"""Guards the state of all runs. One lock is enough: it is held only briefly. A forked child gets a new one."""


def lock() -> threading.RLock:
    """Return the current lock. A forked child has its own."""
    return _lock


def _reset_lock_in_child() -> None:
    global _lock  # in the child, the thread that held it no longer exists
    _lock = threading.RLock()
    for call_scope in contextvars.copy_context().values():
        if isinstance(call_scope, Here):
            _mark_inherited(call_scope)


def _mark_inherited(call_scope: Here) -> None:
    """In a forked child: mark the enclosing runs as inherited from the parent process."""
    pending: list[object] = [call_scope]
    while pending:
        here = pending.pop()
        if isinstance(here, Here) and not here.run.is_inherited:
            here.run.mark_inherited()
            pending += [here.above, *(token.old_value for token in here.run._entered or ())]


fork_safety.run_in_child(_reset_lock_in_child)
MAX_REMEMBERED_CALLS = 32
"""Earlier calls of a run that are remembered; repairs may take an id from them."""
REPORTED_ATTRIBUTE = "__mulligan_told__"
"""The attribute of an exception that names the run with a step for it."""


TOOL_STEP_TYPES: tuple[StepType, ...] = ("tool", "retrieval")
LOOP_KINDS = ("orchestration/loop_detected", "tool/wrong_approach")
"""Kinds of calls that were blocked because they had failed before."""


def _to_earlier_call(step: Step) -> EarlierCall:
    result_or_error = step.failure.message if step.failure is not None else step.result
    return EarlierCall(step.name, step.arguments, step.outcome, result_or_error)


def outcome_of(failure: Failure) -> Outcome:
    """Return the outcome for a failure. User rejections and cancellations have their own."""
    if failure.is_failure:
        return "blocked" if failure.kind in LOOP_KINDS and BLOCKED in failure.evidence else "failure"
    return "cancelled" if failure.kind.code == "cancelled" else "blocked"


def _is_interrupted(error: BaseException | None) -> bool:
    """Return whether an exception interrupts a run: an interrupt, a cancellation, an exit with an error.

    Closing a generator and a normal exit do not.
    """
    if isinstance(error, SystemExit):
        return error.code not in (None, 0)
    return error is not None and not isinstance(error, GeneratorExit)


class ActiveRun:
    """A run in progress. Created by `mulligan.run`; wrapped calls inside it become its steps."""

    # Class-level defaults: every standalone call creates a run, so setting them per instance would be too slow.
    is_implicit = False
    """Whether it was created for one call outside any run."""
    is_inherited = False
    """Whether the run belongs to the parent process, from which this one was forked."""
    retries = 0
    loop_detector: LoopDetector | None = None
    recent: deque[SuccessRecord] | None = None
    """The latest successful calls."""
    is_logged = False
    """Whether a model makes its calls and turns are unknown, as behind a proxy."""
    has_success = False
    """Whether a step marked by the user has succeeded, except stages."""
    judge: RunJudge | None = None
    """Created by the first call of the run."""
    item_scopes: ContextVar[tuple[Any, ...]] | None = None
    """Created by the first item scope of the run."""
    _at_end: dict[str, Callable[[], None]] | None = None
    _entered: list[Token[Here | None]] | None = None
    """One reset token for each open `with` of the run, in any thread."""
    _outer_trace: tuple[str, str | None] | None = None
    """The trace of the enclosing run. Not the run itself: a chain of runs would keep each other alive."""
    _token_counted_attempts: set[int] | None = None
    """Attempts whose tokens were counted by a nested model call."""

    def __init__(
        self,
        kit: Kit,
        agent: str = "",
        limits: Limits = NO_LIMITS,
        *,
        is_standalone: bool = False,
        **record_fields: Any,
    ) -> None:
        here = None if is_standalone else kit.here.get()
        if here is not None:
            self._outer_trace = here.run.trace()
            limits = limits.within(here.run.limits)
            record_fields.setdefault("parent", here.run.id)
            record_fields.setdefault("session", here.run.record.session)
        record_fields.setdefault("environment", kit.environment)
        self.limits: Limits = limits
        self.kit = kit if limits.record is None else kit.recording(limits.record)
        if self.kit.record == "shape":
            record_fields.update(context=None, metadata=shapes(record_fields.get("metadata") or {}) or None)
        record_fields.setdefault("id", new_id())
        record_fields.setdefault("started_at", kit.now())
        self.id: str = record_fields["id"]
        self.is_open = True
        self.record: Run = Run(agent=agent or kit.agent, **record_fields)
        self.numbers = itertools.count(1)
        self._notes: list[str] = []
        self._item_of_call: dict[int, tuple[Any, ...]] = {}
        """The item scopes of the latest calls."""
        self._failed: deque[Step] = deque(maxlen=MAX_REMEMBERED_CALLS)
        """The latest failed attempts."""
        self.has_started = False
        self.has_failures = False

    @property
    def status(self) -> Status:
        """The status of the run so far: success, recovered, partial or failure."""
        with _lock:
            progress = self.judge.progress if self.judge is not None else RunProgress()
            if not progress.has_success and (self.recent or self.has_success):
                progress = msgspec.structs.replace(progress, has_success=True)
        return progress.status(self.record)

    @property
    def headers(self) -> dict[str, str]:
        """The headers `traceparent` and `tracestate` for outgoing requests, which link the receiver's run to this
        one."""
        return trace_context.build_trace_headers(self.id, *self.trace())

    @property
    def traceparent(self) -> str:
        """The `traceparent` header alone."""
        return self.headers["traceparent"]

    def trace(self) -> tuple[str, str | None]:
        """Return the outermost run and the incoming header, of this run or an enclosing one."""
        if self.record.traceparent is not None:
            return self.id, self.record.traceparent
        return self._outer_trace or (self.id, None)

    def links(self) -> list[Link]:
        """Return the recovery links of this run so far."""
        with _lock:
            return list(self.judge.links) if self.judge is not None else []

    def item(self, key: Any) -> ItemScope:
        """Open a scope for one item of a loop: `with run.item(order_id):`. Links and suggestions never cross scopes."""
        with _lock:
            if self.item_scopes is None:
                self.item_scopes = ContextVar("mulligan_items", default=())
        return ItemScope(self.item_scopes, key)

    def ensure_judge(self) -> RunJudge:
        judge = self.judge
        if judge is None:
            with _lock:
                judge = self.judge = self.judge or RunJudge()
        return judge

    def call_facts(self, *, turn: tuple[int, int] | None = None, receiver: Receiver | None = None) -> CallFacts:
        """Return the facts about a call that starts now. Before the first failure of the run there are few."""
        judge = self.judge
        delivered = judge.progress.delivered if judge is not None else 0
        handled: tuple[int, ...] = ()
        corrected: tuple[int, ...] = ()
        if delivered:
            error = sys.exception()
            if error is not None:
                handled = find_failed_calls(error, self.id)
            corrected = tuple(call for run, call in corrected_calls.get() if run == self.id)
        return CallFacts(
            failures_before=delivered,
            task=None if self.is_logged else enter_task(),
            handled=handled,
            turn=turn,
            corrected=corrected,
            receiver=receiver,
            knows_program=not self.is_logged,
            is_logged=self.is_logged,
        )

    def scope_of_call(self, declared: Collection[str], arguments: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the item scope of a call with these arguments."""
        scopes = self.item_scopes.get() if self.item_scopes is not None else ()
        return scope_of(scopes, declared, arguments) if scopes or declared else ()

    def note_success(self, key: str, arguments: Mapping[str, Any], scope: tuple[Any, ...] = ()) -> None:
        """Add the arguments of a successful call: they distinguish a loop over items from a correction."""
        judge = self.ensure_judge()
        judge.note_arguments(key, scope, arguments)
        if judge.has_provisional:
            with _lock:
                judge.withdraw_wrong()

    def __repr__(self) -> str:
        running = ", running" if self.is_open else ""
        return f"<run {self.id} of {self.record.agent or 'no agent'}, {self.status}{running}>"

    def next_number(self) -> int:
        if self.is_inherited:
            self._become_child_run()
        return next(self.numbers)

    def mark_inherited(self) -> None:
        """In a forked child: mark the run as inherited. Both processes would otherwise assign the same step numbers.

        Wrapped calls in the child become runs of their own with this run as parent.
        """
        self.is_inherited, self.is_open = True, False

    def _become_child_run(self) -> None:
        """Continue an inherited run under a new id, as its child."""
        parent, self._outer_trace = self.id, self.trace()
        self.is_inherited, self.is_open, self.has_started, self.has_failures = False, True, False, False
        self._notes, self.recent, self.judge = [], None, None
        self._failed.clear()
        self.id = new_id()
        self.record = msgspec.structs.replace(self.record, id=self.id, parent=parent, started_at=self.kit.now())
        self.start()

    def add_note(self, note: str) -> None:
        """Queue a note about a repair for the model."""
        with _lock:
            self._notes.append(note)

    def drain_notes(self) -> list[str]:
        """Return the queued notes for the model and clear the queue."""
        with _lock:
            notes, self._notes = self._notes, []
        return notes

    def step(self, type: StepType = "custom", name: str = "", **metadata: Any) -> ActiveStep:
        """Mark a step of your own: `with run.step("plan", "read the question"):`."""
        if type not in get_args(StepType) or type == "run":
            raise SettingsError(f"Invalid step type {type!r}. Use plan, tool, model, retrieval, respond or custom.")
        return ActiveStep(self.kit, self, type, name, metadata)

    def record_failure(
        self, type: str, code: str, message: str = "", step: ActiveStep | None = None, **facts: Any
    ) -> Failure:
        """Record a failure without an exception, of a step or of the run itself.

        `type` and `code` name a kind of mulligan (`tool`, `timeout`) or your own. `facts` are further fields of
        `Failure`, such as `status` or `hint`.
        """
        text = str(message)
        classified = self.kit.failure(text=text, source=type, tool=step.name if step else self.record.agent)
        kind = KINDS.get(f"{type}/{code}") or Kind(type, code)
        failure = Failure.of(kind, text, **{"fingerprint": classified.fingerprint, **facts})
        if step is None:
            self.publish_step(self.record_child_failure("run", self.record.agent, failure))
        else:
            step.set_failure(failure)
        return failure

    def record_child_failure(self, type: StepType, name: str, failure: Failure, parent: int | None = None) -> Step:
        """Build a step that only reports a failure."""
        number = self.next_number()
        return Step(
            run=self.id,
            seq=number,
            call=number,
            parent=parent,
            type=type,
            name=name,
            outcome=outcome_of(failure),
            started_at=self.kit.now(),
            failure=failure,
        )

    def note_item(self, call: int) -> None:
        """Store the item scope of a call, if the run has item scopes."""
        if self.item_scopes is not None and (scopes := self.item_scopes.get()):
            self._item_of_call[call] = scopes
            while len(self._item_of_call) > 4 * MAX_REMEMBERED_CALLS:
                del self._item_of_call[next(iter(self._item_of_call))]

    def remember_success(self, success: SuccessRecord) -> None:
        """Remember a successful call: a later repair may take an id from it. Large results are dropped."""
        self.note_item(success.seq)
        result = success.result
        if (type(result) is str and len(result) > MAX_INLINE_CHARS) or (
            type(result) is msgspec.Raw and memoryview(result).nbytes > MAX_INLINE_CHARS
        ):
            success = msgspec.structs.replace(success, result=None)
        if self.recent is None:
            self.recent = deque(maxlen=MAX_REMEMBERED_CALLS)
        self.recent.append(success)

    def earlier_calls(self) -> list[EarlierCall]:
        """Return the earlier calls of this run, the oldest first; none for a standalone call."""
        if self.is_implicit:
            return []
        with _lock:
            failed = [step for step in self._failed if step.type in TOOL_STEP_TYPES]
        successes = tuple(self.recent or ())
        if self.item_scopes is not None and (scopes := self.item_scopes.get()):
            # Calls of another item are no evidence for this one.
            failed = [step for step in failed if self._item_of_call.get(step.call, ()) in ((), scopes)]
            successes = tuple(call for call in successes if self._item_of_call.get(call.seq, ()) in ((), scopes))
        failed_numbers = {step.seq for step in failed}
        numbered_calls = [(step.seq, _to_earlier_call(step)) for step in failed]
        numbered_calls += [
            (
                success.seq,
                EarlierCall(success.template.name, success.arguments, "success", restore_value(success.result)),
            )
            for success in successes
            if success.seq not in failed_numbers and success.template.type in TOOL_STEP_TYPES
        ]
        return [earlier_call for _, earlier_call in sorted(numbered_calls, key=lambda item: item[0])][
            -MAX_REMEMBERED_CALLS:
        ]

    def ensure_loop_detector(self) -> LoopDetector:
        """Return the loop detector, with the unrecovered calls of this run."""
        with _lock:
            if self.loop_detector is None:
                self.loop_detector = LoopDetector()
            self.has_failures = True  # from now on, successes are reported too
            return self.loop_detector

    def deduplicate_tokens(
        self, number: int, parent: int | None, tokens: dict[str, int] | None
    ) -> dict[str, int] | None:
        """Return the tokens of a model call, or None if a nested model call reported them already.

        A wrapped function that calls a wrapped client returns the same usage, which must count once.
        """
        counted_attempts = self._token_counted_attempts
        is_counted = counted_attempts is not None and number in counted_attempts
        if (tokens or is_counted) and parent is not None:
            with _lock:
                if self._token_counted_attempts is None:
                    self._token_counted_attempts = set()
                self._token_counted_attempts.add(parent)
        return None if is_counted else tokens

    def take_retry(self, limit: int) -> bool:
        """Count a retry. Return False if the limit is reached."""
        with _lock:
            if self.retries >= limit:
                return False
            self.retries += 1
            return True

    def at_end(self, name: str, callback: Callable[[], None]) -> None:
        """Call a function when the run ends, once per name."""
        with _lock:
            if self._at_end is None:
                self._at_end = {}
            self._at_end[name] = callback

    def set_context_if_unset(self, user_text: str | None) -> None:
        """Set the context to the user's text from the first model call, unless it is set."""
        if user_text and self.record.context is None and self.kit.record == "full":
            self.record = msgspec.structs.replace(self.record, context=user_text)

    def publish_step(
        self,
        step: Step,
        kit: Kit | None = None,
        facts: CallFacts | None = None,
        *,
        is_final: bool = True,
        reduce: Callable[[Step], Step] | None = None,
    ) -> None:
        """Publish a finished attempt with its recovery links.

        `kit` is the capture context of the step, if it records less than the run. `is_final` means that no further
        attempt of the call follows. `reduce` removes what must not be recorded.
        """
        kit = kit or self.kit
        judged_step = self.judge_step(step, kit, facts, is_final=is_final)
        if judged_step is not None:
            kit.tell(StepEnded(judged_step if reduce is None else reduce(judged_step)))

    def judge_step(self, step: Step, kit: Kit, facts: CallFacts | None = None, *, is_final: bool = True) -> Step | None:
        """Judge a finished attempt. Return it with its links, or None if it is not published."""
        if (
            self.loop_detector is not None
            and step.outcome == "success"
            and step.type in TOOL_STEP_TYPES
            and kit.layer() is None
        ):
            self.loop_detector.record_success()
        if kit.is_silent and not self.kit.is_silent:
            return None  # the status of a recorded run must not depend on unrecorded steps
        self.has_success = self.has_success or (step.outcome == "success" and step.type not in ("plan", "respond"))
        if not (self.has_failures or step.has_failed):
            return step  # a success before the first failure recovers nothing
        judge = self.ensure_judge()
        if (
            step.has_failed
            and step.type in TOOL_STEP_TYPES
            and not self.is_implicit
            and step.tool_key not in judge.item_arguments
        ):
            # Query before taking the lock: a store may be slow, and other threads record meanwhile.
            judge.item_arguments[step.tool_key] = self._find_item_arguments(step.tool_key)
        with _lock:
            self.has_failures = True
            if facts is None:
                task = None if self.is_logged else enter_task()
                facts = CallFacts(failures_before=judge.progress.delivered, task=task, is_logged=self.is_logged)
            if step.has_failed:
                self._failed.append(step)
                self.note_item(step.call)
            return judge.judge(step, facts, is_final=is_final)

    def _find_item_arguments(self, tool: str) -> Collection[str]:
        try:
            return self.kit.item_arguments(tool)
        except Exception:  # noqa: BLE001 - without a readable store, no items are known
            self.kit.fault("Looking up the arguments that name items")
            return ()

    def mark_reported(self, error: BaseException) -> bool:
        """Mark an exception as reported by a step. Return whether it was marked before.

        Marks the exception itself: a list of exceptions would keep their frames alive.
        """
        try:
            marks = vars(error)
            was_reported: bool = marks.get(REPORTED_ATTRIBUTE) == self.id
            marks[REPORTED_ATTRIBUTE] = self.id
        except Exception:  # noqa: BLE001 - an exception that cannot be marked is reported twice
            return False
        return was_reported

    def start(self) -> Self:
        """Start the run without making it the current one."""
        if not self.has_started:
            self.has_started = True
            self.kit.tell(RunStarted(self.record))
        return self

    def finish(self, error: BaseException | None) -> None:
        if self.is_inherited:
            return  # the parent process ends it
        has_raised = isinstance(error, Exception)
        if has_raised and error is not None and not self.mark_reported(error):
            failure = self.kit.failure(error, source="orchestration", tool=self.record.agent)
            if failure.kind.code == "unknown":
                failure = Failure.of(ORCHESTRATION_UNCAUGHT_EXCEPTION, failure.message, fingerprint=failure.fingerprint)
            self.publish_step(self.record_child_failure("run", self.record.agent, failure))
        end = "raised" if has_raised else "abandoned" if _is_interrupted(error) and not self.is_implicit else "finished"
        self.is_open = False
        for callback in (self._at_end or {}).values():
            callback()
        judge = self.judge
        end_fields: dict[str, Any] = {}
        if judge is not None:
            end_fields = {"withdrawn": judge.withdrawn, "items": self.kit.new_items(judge.items())}
        self.record = msgspec.structs.replace(self.record, ended_at=self.kit.now(), end_reason=end, **end_fields)
        self.kit.tell(RunEnded(self.record))

    def as_current(self) -> CurrentRun:
        """Make the run the current one in this context: `with run.as_current():`."""
        return CurrentRun(self.kit, self)

    def __enter__(self) -> Self:
        if self.is_inherited:
            self._become_child_run()
        token = self.kit.here.set(Here(self, None, self.kit.layer(), is_open=False))
        enter_task()
        with _lock:
            if self._entered is None:
                self._entered = []
            self._entered.append(token)
        return self.start()

    def __exit__(self, kind: Raised, error: BaseException | None, trace: TracebackType | None) -> None:
        # A run may be entered repeatedly, by several threads. The last one to exit ends it.
        with _lock:
            entered = self._entered or []
            for token in reversed(entered):
                try:
                    self.kit.here.reset(token)
                except ValueError:
                    continue  # of another thread or task
                entered.remove(token)
                break
            else:
                del entered[-1:]  # exited in another context than it was entered in
        if not entered:
            self.finish(error)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, kind: Raised, error: BaseException | None, trace: TracebackType | None) -> None:
        self.__exit__(kind, error, trace)


class ItemScope:
    """One item of a loop, while its calls are made."""

    __slots__ = ("_key", "_scopes", "_token")

    def __init__(self, scopes: ContextVar[tuple[Any, ...]], key: Any) -> None:
        self._scopes = scopes
        self._key = str(key)[:1000]

    def __enter__(self) -> Self:
        self._token = self._scopes.set((*self._scopes.get(), self._key))
        return self

    def __exit__(self, kind: Raised, error: BaseException | None, trace: TracebackType | None) -> None:
        reset(self._scopes, self._token)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, kind: Raised, error: BaseException | None, trace: TracebackType | None) -> None:
        self.__exit__(kind, error, trace)


corrected_calls: ContextVar[tuple[tuple[str, int], ...]] = ContextVar("mulligan_correcting", default=())
"""The failed calls, each with its run, that the program says are being corrected."""


class Correction:
    """`with mulligan.correcting(error):` links the next successful call to the one that raised the error."""

    __slots__ = ("_calls", "_token")

    def __init__(self, error: BaseException) -> None:
        if not isinstance(error, BaseException):
            raise SettingsError(f"Invalid argument {error!r:.80} of correcting. Pass the exception that a call raised.")
        self._calls = find_marked_calls(error)

    def __enter__(self) -> Self:
        self._token = corrected_calls.set((*corrected_calls.get(), *self._calls))
        return self

    def __exit__(self, kind: Raised, error: BaseException | None, trace: TracebackType | None) -> None:
        reset(corrected_calls, self._token)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, kind: Raised, error: BaseException | None, trace: TracebackType | None) -> None:
        self.__exit__(kind, error, trace)


class CurrentRun:
    """Makes a run the current one. Not a `contextlib.contextmanager`: that modifies exceptions, and some are frozen."""

    __slots__ = ("_kit", "_run", "_token")

    def __init__(self, kit: Kit, run: ActiveRun) -> None:
        self._kit = kit
        self._run = run

    def __enter__(self) -> ActiveRun:
        self._token = self._kit.here.set(
            Here(self._run, self._kit.step_of(self._run), self._kit.layer(), is_open=False)
        )
        return self._run

    def __exit__(self, kind: Raised, error: BaseException | None, trace: TracebackType | None) -> None:
        reset(self._kit.here, self._token)


def scope(kit: Kit, run: ActiveRun | None = None, limits: Limits = NO_LIMITS) -> ActiveRun | CurrentRun:
    """Return a context manager for the current run, the given run, or a new run for one call."""
    current = kit.current() or (run if run is not None and run.is_open else None)
    if current is not None:
        return CurrentRun(kit, current)
    implicit_run = ActiveRun(kit, limits=limits)
    implicit_run.is_implicit = True
    return implicit_run


class ActiveStep:
    """A step marked by the user, in progress."""

    def __init__(self, kit: Kit, run: ActiveRun, type: StepType, name: str, metadata: dict[str, Any]) -> None:
        self._kit = kit
        self.run = run
        self.type: StepType = type
        self.name = name
        self.metadata = metadata
        self._shapes = kit.record == "shape"
        self.failure: Failure | None = None
        self.number: int | None = None
        self._step: Step | None = None
        self._token: Token[Here | None] | None = None

    def record_failure(self, type: str, code: str, message: str = "", **facts: Any) -> Failure:
        """Record a failure of this step without an exception."""
        return self.run.record_failure(type, code, message, step=self, **facts)

    def set_failure(self, failure: Failure) -> None:
        """Set the failure of the step. A second one, or one after the step has ended, becomes a nested step."""
        if self.failure is None and self._step is not None:
            self.failure = failure
        else:
            self.run.publish_step(self.run.record_child_failure(self.type, self.name, failure, parent=self.number))

    def __enter__(self) -> Self:
        self.number = self.run.next_number()
        self.failure = None
        self._step = Step(
            run=self.run.id,
            seq=self.number,
            call=self.number,
            parent=self._kit.step_of(self.run),
            type=self.type,
            name=self.name,
            started_at=self._kit.now(),
            metadata=self._stored_metadata(),
        )
        self._started = self._kit.timer()
        self._token = self._kit.here.set(Here(self.run, self.number, self._kit.layer(), is_open=False))
        self._kit.tell(StepStarted(self._step))
        return self

    def __exit__(self, kind: Raised, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._token is not None:
            reset(self._kit.here, self._token)
        if isinstance(error, Exception):
            was_reported = self.run.mark_reported(error)
            if self.failure is None or not was_reported:
                self.set_failure(self._kit.failure(error, source=self.type, tool=self.name))
        outcome: Outcome = "success"
        if self.failure is not None:
            outcome = outcome_of(self.failure)
        elif error is not None:
            outcome = "cancelled"
        step, self._step = self._step, None
        if step is not None:
            self.run.publish_step(
                msgspec.structs.replace(
                    step,
                    outcome=outcome,
                    failure=self.failure,
                    duration_seconds=self._kit.timer() - self._started,
                    metadata=self._stored_metadata(),
                )
            )

    def _stored_metadata(self) -> dict[str, Any] | None:
        return (shapes(self.metadata) if self._shapes else self.metadata) or None

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, kind: Raised, error: BaseException | None, trace: TracebackType | None) -> None:
        self.__exit__(kind, error, trace)
