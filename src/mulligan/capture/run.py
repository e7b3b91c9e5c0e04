"""Runs and steps as context managers, and the current run of each context."""

from __future__ import annotations

import contextvars
import itertools
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar, Token
from enum import Enum
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, get_args
from weakref import WeakValueDictionary

import msgspec

from mulligan.capture.call_origin import (
    corrected_calls,
    enter_task,
    find_marked_calls,
    find_marked_step,
    find_marked_steps,
    mark_exception,
    mark_step,
)
from mulligan.capture.context import NO_OPTIONS, CaptureContext, RunOptions, reset
from mulligan.capture.framework_classes import is_interruption
from mulligan.capture.propagation import lost_run_watch
from mulligan.capture.recorded_failure import build_recorded_failure
from mulligan.capture.run_judge import TOOL_STEP_TYPES, RunJudge, outcome_of
from mulligan.capture.step_values import (
    STATUS_NOTE,
    decorate,
    merge_metadata,
    parse_usage,
    record_arguments,
    record_result,
)
from mulligan.capture.value_recording import ValueRecorder, shapes
from mulligan.classify.kinds import ORCHESTRATION_UNCAUGHT_EXCEPTION
from mulligan.core import fork_safety
from mulligan.core.attempts import SENT_NAME, AttemptTracker, parse_attempt_name
from mulligan.core.call_facts import CallFacts
from mulligan.core.events import FailureRecorded, RunEnded, RunStarted, StepEnded, StepStarted
from mulligan.core.failure import Failure, SettingsError, to_code
from mulligan.core.fast_path import MAX_INLINE_CHARS, SuccessRecord, restore_value
from mulligan.core.links import STAGES
from mulligan.core.records import (
    FIRST_FAILURE_SEQ,
    AvoidedTurn,
    EndReason,
    Link,
    Outcome,
    RecordedMessage,
    Run,
    Status,
    Step,
    StepType,
    new_id,
)
from mulligan.recover.policy import EarlierCall

if TYPE_CHECKING:
    from mulligan.capture.message_recording import RunMessages
    from mulligan.core.token_usage import TokenUsage
    from mulligan.recover.loop_detection import LoopDetector
    from mulligan.recover.lost_answers import LostAnswer, UserMessages

F = TypeVar("F", bound=Callable[..., Any])
Raised = type[BaseException] | None


MAX_EXECUTED_CALLS = 100
"""Executed calls that an attempt remembers. Beyond, it surely contains one that executed, and forgets none."""


class EnclosingAttempts(msgspec.Struct, kw_only=True, eq=False):
    """The attempts around a scope, and what happened inside the attempt of the scope itself."""

    enclosing: CallScope | None = None
    """The scope of the enclosing attempt, whether that retries or not."""
    is_in_progress: bool = True
    """Whether this is the scope of an attempt whose call has not ended."""
    executed_calls: tuple[str, ...] = ()
    """Names of calls with effects="once" inside the attempt that executed or may have: it must not be repeated."""
    retried_call: str = ""
    """Name of a call inside the attempt that was retried, while this attempt did not hold the scope that retries."""
    key_counts: dict[bytes, int] | None = None
    """How many equal calls inside the attempt have asked for an idempotency key."""


class CallScope(EnclosingAttempts, eq=False):
    """Where code runs: in which run, inside which step, and under which scope that retries.

    Only one scope retries, while its call is in progress: a task that outlives the call is on its own. A call that must
    not be repeated holds no such scope, so that the calls inside it recover themselves.
    """

    known_run: ActiveRun | None
    """None if the run is created on request."""
    number: int | None
    """The number of the enclosing step."""
    outer: CallScope | None
    """The enclosing scope that retries."""
    is_retrying: bool
    """Whether the call of this scope is retried, and in progress. `executed_calls` suspend that."""

    @property
    def run(self) -> ActiveRun:
        assert self.known_run is not None
        return self.known_run

    @property
    def retrying_scope(self) -> CallScope | None:
        """The scope that retries here: this one or an enclosing one, while its call may be repeated."""
        scope = self if self.is_retrying else self.outer
        return scope if scope is not None and scope.is_retrying and not scope.executed_calls else None

    @property
    def attempt(self) -> CallScope | None:
        """The nearest scope of an attempt whose call has not ended: this one or an enclosing one."""
        scope: CallScope | None = self
        while scope is not None and not scope.is_in_progress:
            scope = scope.enclosing
        return scope

    def enclosing_attempts(self) -> Iterator[CallScope]:
        """Yield the scopes of the attempts around this scope, the nearest first."""
        scope = self.enclosing
        while scope is not None:
            yield scope
            scope = scope.enclosing

    def inner_scope(self, run: ActiveRun, number: int | None) -> CallScope:
        """Return a scope inside this one that makes no attempt: that of a run or of a marked step."""
        outer = self if self.is_retrying else self.outer
        return CallScope(run, number, outer, False, enclosing=self.attempt, is_in_progress=False)

    def add_executed_call(self, name: str) -> None:
        """Note in all enclosing attempts that a call with effects="once" inside them is about to execute."""
        scope = self.enclosing
        with _lock:
            while scope is not None:  # not `enclosing_attempts`, which takes a third longer: nested calls run this
                if len(scope.executed_calls) < MAX_EXECUTED_CALLS:
                    scope.executed_calls += (name,)
                scope = scope.enclosing

    def remove_executed_call(self, name: str) -> None:
        """Withdraw `add_executed_call`: the call did not execute."""
        with _lock:
            for scope in self.enclosing_attempts():
                names = list(scope.executed_calls)
                if len(names) < MAX_EXECUTED_CALLS and name in names:
                    names.remove(name)
                    scope.executed_calls = tuple(names)

    def add_retried_call(self, name: str) -> None:
        """Note in the enclosing attempts that a call inside them is retried: one layer at a time does that."""
        for scope in self.enclosing_attempts():
            if not scope.is_retrying or scope.executed_calls:
                scope.retried_call = name


class RecoveryScope(CallScope, eq=False):
    """The scope of an attempt that serves recovery: a later attempt of a call, or a summary for a compression."""


def current_run(capture: CaptureContext) -> ActiveRun | None:
    """Return the current run, if it is open: a task that it left behind must not add to it."""
    call_scope: CallScope | None = capture.current_scope.get()
    return call_scope.run if call_scope is not None and call_scope.run.is_open else None


def current_step(capture: CaptureContext, run: ActiveRun) -> int | None:
    """Return the number of the enclosing step of this run."""
    call_scope: CallScope | None = capture.current_scope.get()
    return call_scope.number if call_scope is not None and call_scope.run is run else None


def retrying_scope(capture: CaptureContext) -> CallScope | None:
    """Return the enclosing scope that retries, if any: inner calls are then only recorded."""
    call_scope: CallScope | None = capture.current_scope.get()
    return call_scope.retrying_scope if call_scope is not None else None


def inner_scope(capture: CaptureContext, run: ActiveRun, number: int | None = None) -> CallScope:
    """Return a scope of a run or of a marked step inside the current scope."""
    call_scope: CallScope | None = capture.current_scope.get()
    if call_scope is None:
        return CallScope(run, number, None, is_retrying=False, is_in_progress=False)
    return call_scope.inner_scope(run, number)


_lock = threading.RLock()
"""Guards the state of all runs. One lock is enough: it is held only briefly. A forked child gets a new one."""


def lock() -> threading.RLock:
    """Return the current lock. A forked child has its own."""
    return _lock


def _reset_in_child() -> None:
    """In a forked child: renew the lock, whose holder no longer exists, and mark the enclosing runs as inherited."""
    global _lock
    _lock = threading.RLock()
    pending: list[object] = list(contextvars.copy_context().values())
    while pending:
        scope = pending.pop()
        if isinstance(scope, CallScope) and not scope.run.is_inherited:
            # Both processes would otherwise assign the same step numbers. Wrapped calls in the child become runs of
            # their own with this run as parent.
            scope.run.is_inherited, scope.run.is_open = True, False
            pending += [scope.outer, scope.enclosing, *(token.old_value for token in scope.run._entered)]


fork_safety.run_in_child(_reset_in_child)
MAX_ATTEMPTS = 1000
MAX_REMEMBERED_CALLS = 32
"""Earlier calls of a run that are remembered; repairs may take an id from them."""


class AsyncScope:
    """A context manager that does the same in `with` and `async with`."""

    __slots__ = ()

    def __enter__(self) -> Self:
        raise NotImplementedError

    def __exit__(self, kind: Raised, error: BaseException | None, trace: TracebackType | None) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, kind: Raised, error: BaseException | None, trace: TracebackType | None) -> None:
        self.__exit__(kind, error, trace)


class ActiveRun(AsyncScope):
    """A run in progress. Created by `mulligan.run`; wrapped calls inside it become its steps."""

    is_implicit = False
    """Whether it was created for one call outside any run."""
    has_loop = False
    """Whether a loop of turns belongs to the run."""
    is_inherited = False
    """Whether the run belongs to the parent process, from which this one was forked."""
    user_messages: tuple[UserMessages, ...] = ()
    """What the user had written when the current loop began, in each conversation before its first tool call."""
    awaits_user_messages = True
    """Whether no tool was called yet in the current loop, so that a conversation may have a new message of the user.
    Later ones may be results of tools: some programs send these as messages of the user."""
    repairs = 0
    loop_detector: LoopDetector | None = None
    success_count = 0
    """How many published steps have succeeded, except stages."""
    marked_steps: WeakValueDictionary[int, ActiveStep] | None = None
    """The steps marked by the user, by number."""
    messages: RunMessages | None = None
    """The recorded messages, if a model of the run records conversations."""
    _attempts: AttemptTracker | None = None
    """The latest calls whose attempts are marked steps."""
    _recent_steps: deque[ActiveStep] | None = None
    """The latest of them. A program that has only the number of a step has let go of the step itself."""
    _outer_trace: tuple[str, str | None] | None = None
    """The trace of the enclosing run. Not the run itself: a chain of runs would keep each other alive."""

    def __init__(
        self,
        capture: CaptureContext,
        agent: str = "",
        options: RunOptions = NO_OPTIONS,
        *,
        is_standalone: bool = False,
        **record_fields: Any,
    ) -> None:
        call_scope: CallScope | None = None if is_standalone else capture.current_scope.get()
        if call_scope is not None:
            outer = call_scope.run
            self._outer_trace = outer.trace()
            options = options.within(outer.options)
            record_fields.setdefault("parent", outer.id)
            record_fields.setdefault("session", outer.record.session)
        record_fields.setdefault("environment", capture.environment)
        self.options: RunOptions = options
        self.capture = capture if options.record is None else capture.recording(options.record)
        self._metadata = dict(record_fields.get("metadata") or {})
        if self.capture.record == "shape":
            record_fields.update(context=None, metadata=self._stored_metadata())
        record_fields.setdefault("id", new_id())
        record_fields.setdefault("started_at", capture.now())
        self.id: str = record_fields["id"]
        self.session_key: str = record_fields.get("session") or self.id
        """The session, or else the run, whose lost answers count here."""
        self._is_nested = call_scope is not None and call_scope.number is not None
        """Whether a step of another run contains it: then it is part of that run's work."""
        if call_scope is not None and self._is_nested:
            self.user_messages = call_scope.run.user_messages
            self.session_key = record_fields.get("session") or call_scope.run.session_key
        self.is_open = True
        self.record: Run = Run(agent=agent or capture.agent, **record_fields)
        self.numbers = itertools.count(1)
        self.judge = RunJudge(self.id, self.capture.prompt_fixes)
        self.recent: deque[SuccessRecord] = deque(maxlen=MAX_REMEMBERED_CALLS)
        """The latest successful calls."""
        self._request_start = 0
        """Number of the last call before the current request of the user."""
        self._notes: list[tuple[str, str]] = []
        self._entered: list[Token[Any]] = []
        """One reset token for each open `with` of the run, in any thread."""
        self._token_counted_attempts: set[int] = set()
        """Attempts whose tokens were counted by a nested model call."""
        self._model_turn: AvoidedTurn | None = None
        """The latest model call, until a recovered or failed tool call takes it."""
        self._item_of_call: dict[int, tuple[Any, ...]] = {}
        """The item scopes of the latest calls."""
        self._failed: deque[Step] = deque(maxlen=MAX_REMEMBERED_CALLS)
        """The latest failed attempts."""
        self._judged_successes: deque[Step] = deque(maxlen=MAX_REMEMBERED_CALLS)
        """The latest successful attempts that are not in `recent`, or that were judged."""
        self.has_started = False
        self.has_failures = self.session_key in capture.lost_answers
        """Whether successes are judged too: a call has failed, or its session has a lost answer."""

    @property
    def lost_answers(self) -> tuple[LostAnswer, ...]:
        """The calls of the session with effects="once" whose answer was lost and is not settled."""
        return self.capture.lost_answers.get(self.session_key, ())

    def add_lost_answer(self, answer: LostAnswer) -> None:
        """Remember a lost answer until it is settled. Remembers a limited number, of a limited number of sessions."""
        with fork_safety.import_lock:
            from mulligan.recover.lost_answers import MAX_LOST_ANSWERS, MAX_SESSIONS  # lazy: after a failure only
        with _lock:
            by_session = self.capture.lost_answers
            earlier_answers = by_session.pop(self.session_key, ())
            by_session[self.session_key] = (*earlier_answers[1 - MAX_LOST_ANSWERS :], answer)
            while len(by_session) > MAX_SESSIONS:
                del by_session[next(iter(by_session))]
            self.has_failures = True  # from now on, successes are reported too

    def settle(self, is_settled: Callable[[LostAnswer], bool]) -> int:
        """Forget the lost answers of the session whose outcome is known. Return how many there were."""
        settled_answers = [answer for answer in self.lost_answers if is_settled(answer)]
        if not settled_answers:
            return 0
        with _lock:
            for answer in settled_answers:
                answer.settled_calls.add(answer.number)
            remaining = tuple(answer for answer in self.lost_answers if answer not in settled_answers)
            if remaining:
                self.capture.lost_answers[self.session_key] = remaining
            else:
                self.capture.lost_answers.pop(self.session_key, None)
        return len(settled_answers)

    def begin_loop(self) -> None:
        """Mark that an agent loop begins: its conversation may have a new message of the user."""
        self.has_loop = True
        if not self._is_inside_call:
            self.awaits_user_messages, self.user_messages = True, ()

    @property
    def _is_inside_call(self) -> bool:
        """Whether the current code is part of a step: an agent inside a tool does not talk to the user."""
        return self._is_nested or current_step(self.capture, self) is not None

    def note_user_messages(self, texts: Sequence[str], *, starts_loop: bool = False) -> None:
        """Note what the user wrote in a conversation. A new message settles earlier lost answers.

        `starts_loop` says that a loop was started with it.
        """
        if not texts or self._is_inside_call:
            return
        with fork_safety.import_lock:
            from mulligan.recover.lost_answers import MAX_CONVERSATIONS, UserMessages  # lazy: for models only
        messages = UserMessages(len(texts), texts[-1])
        self.settle(lambda answer: answer.is_followed_by(texts, starts_loop=starts_loop))
        if messages not in self.user_messages:
            self.user_messages = (*self.user_messages[1 - MAX_CONVERSATIONS :], messages)
        self.awaits_user_messages = not starts_loop

    @property
    def status(self) -> Status:
        """The status of the run so far: success, recovered, partial or failure."""
        with _lock:
            progress = self.judge.progress
            if not progress.has_success and (self.recent or self.success_count):
                progress = msgspec.structs.replace(progress, has_success=True)
            record = self.record
            if record.end_reason is None and self.judge.cut_off:
                record = msgspec.structs.replace(record, cut_off=tuple(self.judge.cut_off))
        return progress.status(record)

    @status.setter
    def status(self, status: object) -> None:
        raise AttributeError(STATUS_NOTE)

    @property
    def headers(self) -> dict[str, str]:
        """The headers `traceparent` and `tracestate` for outgoing requests, which link the receiver's run to this
        one."""
        with fork_safety.import_lock:
            from mulligan.capture.trace_context import build_trace_headers  # lazy: few runs pass headers on

        return build_trace_headers(self.id, *self.trace())

    @property
    def trace_id(self) -> str:
        """The id of the trace, the same for all runs and processes in it."""
        with fork_safety.import_lock:
            from mulligan.capture.trace_context import find_trace_id  # lazy: few runs hold out help

        return find_trace_id(*self.trace())

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
            return list(self.judge.links)

    def item(self, key: Any) -> ContextValue:
        """Open a scope for one item of a loop: `with run.item(order_id):`. Links and suggestions never cross scopes."""
        with _lock:
            scopes = self.judge.item_scopes = self.judge.item_scopes or ContextVar("mulligan_items", default=())
        return ContextValue(scopes, lambda: (*scopes.get(), str(key)[:1000]))

    def note_success(self, key: str, arguments: Mapping[str, Any], item: tuple[Any, ...]) -> None:
        """Add the arguments of a successful call: they distinguish a loop over items from a correction."""
        with _lock:
            self.judge.note_arguments(key, item, arguments)

    def __repr__(self) -> str:
        running = ", running" if self.is_open else ""
        return f"<run {self.id} of {self.record.agent or 'no agent'}, {self.status}{running}>"

    def next_number(self) -> int:
        if self.is_inherited:
            self._become_child_run()
        return next(self.numbers)

    def _become_child_run(self) -> None:
        """Continue an inherited run under a new id, as its child."""
        parent, self._outer_trace = self.id, self.trace()
        self.is_inherited, self.is_open, self.has_started, self.has_failures = False, True, False, False
        self._notes, judge = [], self.judge
        self.recent.clear()
        self._failed.clear()
        self.messages = None
        self.id = new_id()
        self.judge = RunJudge(self.id, self.capture.prompt_fixes)
        self.judge.item_scopes, self.judge.is_logged = judge.item_scopes, judge.is_logged
        self.record = msgspec.structs.replace(self.record, id=self.id, parent=parent, started_at=self.capture.now())
        self.start()

    def make_explicit(self) -> None:
        """Turn the run of one call into the run of a loop."""
        self.is_implicit = False
        lost_run_watch.add_run(self.id)

    def add_note(self, note: str, *, until_success_of: str = "") -> None:
        """Queue a note for the model. A success of the tool `until_success_of` withdraws it."""
        with _lock:
            self._notes.append((note, until_success_of))

    def drain_notes(self) -> list[str]:
        """Return the queued notes for the model and clear the queue."""
        with _lock:
            notes, self._notes = self._notes, []
        return [note for note, _ in notes]

    def step(
        self,
        type: StepType = "custom",
        name: str = "",
        *,
        arguments: Mapping[str, Any] | None = None,
        call: ActiveStep | int | None = None,
        attempt: int | None = None,
        **metadata: Any,
    ) -> ActiveStep:
        """Mark a step of your own: `with run.step("plan", "read the question"):`. Also a decorator.

        `call` is an earlier attempt of the same call: its step or its number. `attempt` numbers the attempt: a later
        one continues the latest call of the same tool. So does a name such as `fetch_attempt_2`.
        """
        if type not in get_args(StepType) or type in ("run", "reflection"):
            raise SettingsError(f"Invalid step type {type!r}. Use plan, tool, model, retrieval, respond or custom.")
        return ActiveStep(self, type, name, metadata, arguments=arguments, call=call, attempt=attempt)

    def join_call(self, step: Step, call: ActiveStep | int | None, rank: int | None) -> Step:
        """Return a step that starts as an attempt of the call that it continues, if any."""
        number = call.number if isinstance(call, ActiveStep) else call
        if isinstance(number, int) and 0 < number < step.seq:
            step = msgspec.structs.replace(step, call=number)
        if rank is not None and rank > 1:
            step = msgspec.structs.replace(step, attempt=rank)
        with _lock:
            if self._attempts is None:
                self._attempts = AttemptTracker(MAX_REMEMBERED_CALLS)
            return self._attempts.add(step, rank)

    def reopen_call(self, call: int) -> None:
        """Take back the judgement of a failed call: another attempt of it has ended."""
        with _lock:
            self.judge.reopen_call(call)

    def note_attempt(self, step: Step) -> None:
        """Note how an attempt of a marked step has ended."""
        with _lock:
            if self._attempts is not None:
                self._attempts.note(step)

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata of the run. What you change until the run ends is stored with its end."""
        return self._metadata

    @metadata.setter
    def metadata(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = {}
        merge_metadata(self._metadata, metadata, {})

    def add_metadata(self, values: Mapping[str, Any] | None = None, /, **more: Any) -> None:
        """Add to the metadata of the run: `run.add_metadata(order=7)`."""
        merge_metadata(self._metadata, values, more)

    @property
    def tags(self) -> list[str]:
        """The tags of the run, in its metadata."""
        tags = self._metadata.get("tags")
        return list(tags) if isinstance(tags, list | tuple) else []

    @tags.setter
    def tags(self, tags: Iterable[str]) -> None:
        self._metadata["tags"] = [tags] if isinstance(tags, str) else [str(tag) for tag in tags]

    @property
    def user(self) -> str | None:
        """The user whom the run serves, in its metadata."""
        user = self._metadata.get("user")
        return None if user is None else str(user)

    @user.setter
    def user(self, user: str | None) -> None:
        self._metadata["user"] = None if user is None else str(user)

    def record_failure(
        self,
        type: str | Enum = "",
        code: str | Enum = "",
        message: str = "",
        step: ActiveStep | int | None = None,
        *,
        failure_type: str | Enum = "",
        failure_code: str | Enum = "",
        step_id: int | None = None,
        **facts: Any,
    ) -> Failure:
        """Record a failure by hand, of a step or of the run itself. Return the failure that is stored.

        `type` and `code` name a kind of mulligan (`tool`, `timeout`) or one of your own, which settings may declare.
        `failure_type`, `failure_code` and `step_id` are other names for the same. `facts` are further fields of
        `Failure`, such as `status` or `hint`. It raises nothing, whatever you pass.

        A step has one failure, recorded inside the step or after it: yours decides its kind. While you handle the
        exception of a step, it is the default step, except for failures of the type `orchestration`.
        """
        type, code = type or failure_type, code or failure_code
        target = step if step is not None else step_id
        failed_step: ActiveStep | Step | None = target if isinstance(target, ActiveStep) else None
        if isinstance(target, int):
            failed_step = self._find_step(target)
        elif target is None and to_code(type).lower() != "orchestration":
            failed_step = self._find_handled_step()
        failure = self.reduce_failure(
            build_recorded_failure(
                self.capture, type, code, message,
                source="run" if failed_step is None else failed_step.type,
                tool=self.record.agent if failed_step is None else failed_step.name,
                arguments=None if failed_step is None else failed_step.arguments,
                facts=facts,
            )
        )  # fmt: skip
        if isinstance(failed_step, ActiveStep):
            return failed_step.set_failure(failure)
        if failed_step is not None:
            if failed_step.failure is not None:
                return failed_step.failure
            if failed_step.started_at:
                self.fail_step(failed_step, failure)
            else:
                self._record_failure_of_unknown_step(failed_step, failure)
            return failure
        if (error := sys.exception()) is not None:
            mark_exception(error, self.id)  # leaving the run, it adds no second failure
        self.record_child_failure("run", self.record.agent, failure)
        return failure

    def fail_step(self, step: Step, failure: Failure) -> None:
        """Give a step that has ended as a success the failure that was recorded for it afterwards."""
        self.capture.publish_safely(FailureRecorded(self.id, step.seq, failure))
        self.note_attempt(step.with_failure(failure))
        with _lock:
            later_successes = [success for success in self._successes() if success.seq > step.seq]
            self._forget_success(step.seq)
        self.judge_step(step.with_failure(failure), self.capture)
        for success in later_successes:  # one of them may be what recovered it
            if success.tool_key == step.tool_key:
                with _lock:
                    facts = CallFacts(failures_before=self.judge.progress.delivered, task=enter_task())
                    self.judge.judge(success, facts)

    def _successes(self) -> list[Step]:
        """Return the latest successful attempts, in order."""
        recent = [success.to_step(success.template.name, success.arguments, None) for success in tuple(self.recent)]
        return sorted((*recent, *self._judged_successes), key=lambda step: step.seq)

    def _forget_success(self, number: int) -> None:
        for success in [success for success in tuple(self.recent) if success.seq == number]:
            self.recent.remove(success)
        for step in [step for step in self._judged_successes if step.seq == number]:
            self._judged_successes.remove(step)
            self.success_count -= step.type not in STAGES
        has_success = bool(self.recent or self.success_count)
        self.judge.progress = msgspec.structs.replace(self.judge.progress, has_success=has_success)

    def _record_failure_of_unknown_step(self, step: Step, failure: Failure) -> None:
        """Record the failure of a step that the run no longer holds. The store gives it to the step."""
        seq = FIRST_FAILURE_SEQ + step.seq % FIRST_FAILURE_SEQ
        nested_step = Step(run=self.id, seq=seq, call=seq, parent=step.seq, started_at=self.capture.now())
        self.publish_step(nested_step.with_failure(failure))

    def remember_step(self, step: ActiveStep, number: int) -> None:
        with _lock:
            if self.marked_steps is None or self._recent_steps is None:
                self.marked_steps, self._recent_steps = WeakValueDictionary(), deque(maxlen=MAX_REMEMBERED_CALLS)
        self.marked_steps[number] = step
        self._recent_steps.append(step)

    def _find_step(self, number: int) -> ActiveStep | Step:
        """Return the step with this number: in use, among the latest ones, or else one without a name and a time."""
        marked_step = self.marked_steps.get(number) if self.marked_steps is not None else None
        if marked_step is not None:
            return marked_step
        with _lock:
            latest_steps = (*self._failed, *self._successes())
            step = next((step for step in latest_steps if step.seq == number), None)
        return step or Step(run=self.id, seq=number, call=number)

    def _find_handled_step(self) -> ActiveStep | Step | None:
        """Return the failed step that has left the exception being handled, if any."""
        number = find_marked_step(sys.exception(), self.id)
        failed_step = self._find_step(number) if number is not None else None
        return failed_step if failed_step is not None and failed_step.failure is not None else None

    def reduce_failure(self, failure: Failure) -> Failure:
        """Return a failure as recorded: in shape without its detail, which has the messages of causes."""
        return msgspec.structs.replace(failure, detail="") if self.capture.record == "shape" else failure

    def record_child_failure(self, type: StepType, name: str, failure: Failure, parent: int | None = None) -> None:
        """Record a step that only reports a failure."""
        outcome = outcome_of(failure)
        self.publish_step(self.start_step(type=type, name=name, parent=parent, outcome=outcome, failure=failure))

    def start_step(
        self, *, is_numbered: bool = True, call: int = 0, user_text: str | None = None, **fields: Any
    ) -> Step:
        """Build the step of an attempt that starts now. `user_text` is the user's last text in its conversation.

        An attempt that is left out of the record has no number. `call` is the number of an earlier attempt.
        """
        number = self.next_number() if is_numbered else 0
        self.set_context_if_unset(user_text)
        fields.setdefault("parent", current_step(self.capture, self))
        return Step(run=self.id, seq=number, call=call or number, started_at=self.capture.now(), **fields)

    def _note_item(self, call: int) -> None:
        """Store the item scope of a call, if the run has item scopes."""
        item_scopes = self.judge.item_scopes
        if item_scopes is not None and (scopes := item_scopes.get()):
            with _lock:
                self._item_of_call[call] = scopes
                while len(self._item_of_call) > 4 * MAX_REMEMBERED_CALLS:
                    del self._item_of_call[next(iter(self._item_of_call))]

    def remember_success(self, success: SuccessRecord) -> None:
        """Remember a successful call: a later repair may take an id from it. Large results are dropped."""
        if self.judge.item_scopes is not None:
            self._note_item(success.seq)
        size = 0
        if type(result := success.result) is str:
            size = len(result)
        elif type(result) is msgspec.Raw:
            size = memoryview(result).nbytes
        if size > MAX_INLINE_CHARS:
            success = msgspec.structs.replace(success, result=None)
        self.recent.append(success)

    def begin_user_request(self) -> None:
        """Mark that the user has asked for something else: no repair takes a value from the calls so far.

        The user has read what is unknown, so that lost answers are settled.
        """
        self.settle(lambda answer: True)
        with _lock:
            numbers = [step.seq for step in self._failed]
        self._request_start = max([*numbers, *(success.seq for success in tuple(self.recent))], default=0)

    def earlier_calls(self) -> list[EarlierCall]:
        """Return the earlier calls for the same request of the user, the oldest first; none for a standalone call."""
        if self.is_implicit:
            return []
        with _lock:
            failed = [step for step in self._failed if step.type in TOOL_STEP_TYPES]
        calls = {
            success.seq: (
                success.seq,
                EarlierCall(success.template.name, success.arguments, "success", restore_value(success.result)),
            )
            for success in tuple(self.recent)
            if success.template.type in TOOL_STEP_TYPES
        }
        calls |= {step.seq: (step.call, EarlierCall.from_step(step)) for step in failed}
        if self._request_start:
            calls = {seq: call for seq, call in calls.items() if seq > self._request_start}
        if scopes := self.judge.item_scope((), {}):
            # Calls of another item are no evidence for this one.
            calls = {seq: call for seq, call in calls.items() if self._item_of_call.get(call[0], ()) in ((), scopes)}
        return [calls[seq][1] for seq in sorted(calls)[-MAX_REMEMBERED_CALLS:]]

    def ensure_loop_detector(self) -> LoopDetector:
        """Return the loop detector, with the unrecovered calls of this run."""
        with fork_safety.import_lock:
            from mulligan.recover.loop_detection import LoopDetector  # lazy: needed after a failure only
        with _lock:
            if self.loop_detector is None:
                self.loop_detector = LoopDetector()
            self.has_failures = True  # from now on, successes are reported too
            return self.loop_detector

    def count_usage(self, number: int, parent: int | None, usage: TokenUsage | None) -> TokenUsage | None:
        """Return the token usage of a model call, or None if a nested model call reported it already.

        A wrapped function that calls a wrapped client returns the same usage, which must count once.
        """
        is_counted = number in self._token_counted_attempts
        with _lock:
            if (usage or is_counted) and parent is not None:
                self._token_counted_attempts.add(parent)
        return None if is_counted else usage

    def set_model_turn(self, model: str | None, usage: TokenUsage) -> None:
        """Remember the latest turn of the agent's model: a tool call that is recovered saves another one like it."""
        if input_tokens := usage.tokens.get("input"):
            with _lock:
                self._model_turn = AvoidedTurn(model=model or usage.model or "", input_tokens=input_tokens)

    def _take_model_turn(self, step: Step) -> AvoidedTurn | None:
        """Return the model turn that a recovered call made unnecessary: the latest one, once.

        Calls that one turn requested need one more turn at most. A call that fails for good takes it too: then the
        model is asked again anyway.
        """
        is_recovered = step.attempt > 1 and step.outcome == "success"
        if self._model_turn is None or not (is_recovered or step.has_failed):
            return None
        with _lock:
            turn, self._model_turn = self._model_turn, None
        return turn if is_recovered else None

    def take_repair(self, limit: int) -> bool:
        """Count a repair. Return False if the limit is reached."""
        with _lock:
            if self.repairs >= limit:
                return False
            self.repairs += 1
            return True

    def set_context_if_unset(self, user_text: str | None) -> None:
        """Set the context to the user's text from the first model call, unless it is set."""
        if user_text and self.record.context is None and self.capture.record == "full":
            self.record = msgspec.structs.replace(self.record, context=user_text)

    def record_messages(self, messages: Sequence[RecordedMessage]) -> list[int]:
        """Number the messages of a model call. Those that are new are published with the next step."""
        with _lock:
            if self.messages is None:
                with fork_safety.import_lock:
                    from mulligan.capture.message_recording import RunMessages  # lazy: few models record conversations
                self.messages = RunMessages()
            return self.messages.add(messages)

    def end_step(self, step: Step) -> StepEnded:
        """Build the event of a finished attempt, with the messages that no earlier one has brought."""
        if self.messages is None:
            return StepEnded(step)
        with _lock:
            return StepEnded(step, self.messages.drain())

    def publish_step(
        self,
        step: Step,
        capture: CaptureContext | None = None,
        facts: CallFacts | None = None,
        **options: Any,
    ) -> None:
        """Publish a finished attempt with its recovery links. `options` are further arguments of `judge_step`.

        `capture` is the capture context of the step, if it records less than the run.
        """
        capture = capture or self.capture
        judged_step = self.judge_step(step, capture, facts, **options)
        turn = self._take_model_turn(step) if options.get("is_final", True) and step.type != "model" else None
        if judged_step is not None:
            if turn is not None:
                judged_step = msgspec.structs.replace(judged_step, avoided=turn)
            capture.publish_safely(self.end_step(judged_step))
        if facts is not None and step.outcome == "success" and step.type != "model" and not self.is_implicit:
            self.note_success(step.tool_key, options.get("values") or step.arguments or {}, facts.item)

    def judge_step(
        self,
        step: Step,
        capture: CaptureContext,
        facts: CallFacts | None = None,
        *,
        is_final: bool = True,
        values: Mapping[str, Any] | None = None,
        value_recorder: ValueRecorder | None = None,
        is_cut_off: bool = False,
    ) -> Step | None:
        """Judge a finished attempt. Return it with its links, or None if it is not published.

        `is_final` means that no further attempt of the call follows. `values` are the arguments to judge by, if
        `value_recorder` has reduced those of the step. `is_cut_off` says that it was cancelled from outside.
        """
        if values is not None and value_recorder is not None:
            whole_step = msgspec.structs.replace(step, arguments=dict(values))
            judged_step = self.judge_step(whole_step, capture, facts, is_final=is_final, is_cut_off=is_cut_off)
            if judged_step is None:
                return None
            links = value_recorder.links(judged_step.links)
            return msgspec.structs.replace(judged_step, arguments=step.arguments, links=links)
        if (
            self.loop_detector is not None
            and step.outcome == "success"
            and step.type in TOOL_STEP_TYPES
            and retrying_scope(capture) is None
        ):
            self.loop_detector.record_success()
            if self._notes:
                with _lock:
                    self._notes = [(note, tool) for note, tool in self._notes if tool != step.name]
        if facts is not None and facts.lost_answers and step.outcome == "success":
            earlier_answers = facts.lost_answers
            if facts.turn is not None or step.parent is None:  # a read inside a tool tells the model nothing
                self.settle(
                    lambda answer: answer in earlier_answers and answer.is_looked_up(step.arguments, step.result)
                )
        if capture.is_recording_off and not self.capture.is_recording_off:
            return None  # the status of a recorded run must not depend on unrecorded steps
        self.success_count += step.outcome == "success" and step.type not in STAGES
        if step.outcome == "success" and not self.is_implicit:
            self._judged_successes.append(msgspec.structs.replace(step, result=None))
        if is_cut_off and self.is_open and not self.is_implicit and step.type not in ("plan", "respond"):
            with _lock:
                self.has_failures = True  # from now on, successes are judged: one may make the call again
                self.judge.note_cut_off(step, self._successes())
        if not (self.has_failures or step.has_failed):
            return step  # a success before the first failure recovers nothing
        judge = self.judge
        if step.has_failed and not self.is_implicit and judge.needs_items(step):
            with self.capture.guard("Looking up the arguments that name items"):
                # before taking the lock: a store may be slow
                judge.load_items(step.tool_key, self.capture.item_arguments)
        with _lock:
            self.has_failures = True
            if facts is None:
                task = None if judge.is_logged else enter_task()
                facts = CallFacts(failures_before=judge.progress.delivered, task=task, is_logged=judge.is_logged)
            if step.has_failed:
                self._failed.append(step)
                self._note_item(step.call)
            return judge.judge(step, facts, is_final=is_final)

    def start(self) -> Self:
        """Start the run without making it the current one."""
        if not self.has_started:
            self.has_started = True
            self.capture.publish_safely(RunStarted(self.record))
        return self

    def finish(self, error: BaseException | None) -> None:
        if self.is_inherited:
            return  # the parent process ends it
        lost_run_watch.remove_run(self.id)
        has_raised = error is not None and not self.capture.is_control_flow(error)
        if has_raised and error is not None and not mark_exception(error, self.id):
            failure = self.capture.classify_safely(error, source="orchestration", tool=self.record.agent)
            if failure.kind.is_unknown:
                failure = Failure.of(
                    ORCHESTRATION_UNCAUGHT_EXCEPTION,
                    failure.message,
                    fingerprint=failure.fingerprint,
                    exception=failure.exception,
                    trace=failure.trace,
                )
            self.record_child_failure("run", self.record.agent, self.reduce_failure(failure))
        is_abandoned = not self.is_implicit and is_interruption(error, self.capture.control_flow)
        end_reason: EndReason = "raised" if has_raised else "abandoned" if is_abandoned else "finished"
        self.is_open = False
        self.record = msgspec.structs.replace(
            self.record,
            ended_at=self.capture.now(),
            end_reason=end_reason,
            metadata=self._stored_metadata(),
            withdrawn=self.judge.withdrawn,
            cut_off=() if is_abandoned else tuple(sorted(self.judge.cut_off)),
            advice=self.judge.advised_fixes,
            items=self.capture.new_items(self.judge.items()),
        )
        if self.session_key == self.id:
            self.capture.lost_answers.pop(self.id, None)
        self.capture.publish_safely(RunEnded(self.record))
        if self.capture.reflector is not None:
            with self.capture.guard("Judging the reflections of a run"):
                self.capture.reflector.settle(self.id, self.judge.links)

    def _stored_metadata(self) -> dict[str, Any] | None:
        metadata = {name: value for name, value in self._metadata.items() if value is not None}
        return (shapes(metadata) if self.capture.record == "shape" else metadata) or None

    def as_current(self) -> ContextValue:
        """Make the run the current one in this context: `with run.as_current():`."""
        scope = self.capture.current_scope
        return ContextValue(scope, lambda: inner_scope(self.capture, self, current_step(self.capture, self)))

    def __enter__(self) -> Self:
        if self.is_inherited:
            self._become_child_run()
        token = self.capture.current_scope.set(inner_scope(self.capture, self))
        enter_task()
        with _lock:
            self._entered.append(token)
        if not self.is_implicit:
            lost_run_watch.add_run(self.id)
        return self.start()

    def __exit__(self, kind: Raised, error: BaseException | None, trace: TracebackType | None) -> None:
        # A run may be entered repeatedly, by several threads. The last one to exit ends it.
        with _lock:
            entered = self._entered
            call_scope = self.capture.current_scope.get()
            for token in reversed(entered):
                try:
                    self.capture.current_scope.reset(token)
                except ValueError:
                    continue  # of another thread or task
                if call_scope is not None and call_scope.run is not self and call_scope.run.is_open:
                    self.capture.current_scope.set(call_scope)  # a loop that was left behind ends inside a later run
                entered.remove(token)
                break
            else:
                del entered[-1:]  # exited in another context than it was entered in
            is_last = not entered
        if is_last:
            self.finish(error)


class ContextValue(AsyncScope):
    """Context manager that sets a context variable to a value computed on entry, and resets it on exit.

    Not a `contextlib.contextmanager`: that modifies exceptions, and some are frozen.
    """

    __slots__ = ("_compute", "_token", "_value", "_variable")

    def __init__(self, variable: ContextVar[Any], compute: Callable[[], Any]) -> None:
        self._variable = variable
        self._compute = compute

    def __enter__(self) -> Any:
        value = self._value = self._compute()
        self._token = self._variable.set(value)
        return value.run if isinstance(value, CallScope) else self

    def __exit__(self, kind: Raised, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._variable.get() is self._value:  # otherwise a generator is closed late: another value is current
            reset(self._variable, self._token)


def mark_corrected(error: BaseException) -> ContextValue:
    """Return a context manager that links the next successful call to the one that raised the error."""
    if not isinstance(error, BaseException):
        raise SettingsError(f"Invalid argument {error!r:.80} of correcting. Pass the exception that a call raised.")
    calls = (*find_marked_calls(error), *find_marked_steps(error))
    return ContextValue(corrected_calls, lambda: (*corrected_calls.get(), *calls))


def scope(capture: CaptureContext, run: ActiveRun | None = None) -> ActiveRun | ContextValue:
    """Return a context manager for the current run, the given run, or a new run for one call."""
    current = current_run(capture) or (run if run is not None and run.is_open else None)
    if current is not None:
        return current.as_current()
    implicit_run = ActiveRun(capture)
    implicit_run.is_implicit = True
    return implicit_run


class ActiveStep(AsyncScope):
    """A step marked by the user, in progress."""

    def __init__(
        self,
        run: ActiveRun,
        type: StepType,
        name: str,
        metadata: dict[str, Any],
        *,
        arguments: Mapping[str, Any] | None = None,
        call: ActiveStep | int | None = None,
        attempt: int | None = None,
        parent: int | None = None,
    ) -> None:
        self._capture = run.capture
        self.run = run
        self.type: StepType = type
        attempt_name = parse_attempt_name(name) if isinstance(name, str) else None
        self.name = name if attempt_name is None else attempt_name.name
        self.metadata = metadata if attempt_name is None else {**metadata, SENT_NAME: name}
        self.failure: Failure | None = None
        self.number: int | None = None
        self._rank = None if attempt_name is None else attempt_name.rank
        if isinstance(attempt, int) and 0 <= attempt <= MAX_ATTEMPTS:
            self._rank = attempt
        elif attempt is not None:
            self.metadata = {**self.metadata, "attempt": attempt}
        self.arguments, self._call, self._parent = arguments, call, parent
        self._fields: dict[str, Any] = {}
        """What was set besides metadata: the result and the tokens."""
        self._step: Step | None = None
        self._ended_step: Step | None = None

    @property
    def step_id(self) -> int | None:
        """The number of the step in its run; None before the step has started."""
        return self.number

    def step(self, type: StepType = "custom", name: str = "", **options: Any) -> ActiveStep:
        """Mark a step inside this one, also from another thread. The options are those of `run.step`."""
        step = self.run.step(type, name, **options)
        step._parent = self.number
        return step

    def add_metadata(self, values: Mapping[str, Any] | None = None, /, **more: Any) -> None:
        """Add to the metadata of the step while it is in progress: `step.add_metadata(rows=3)`."""
        if self._can_change("add_metadata"):
            merge_metadata(self.metadata, values, more)

    def set_result(self, result: Any) -> None:
        """Set the result of the step while it is in progress."""
        if self._can_change("set_result"):
            with self._capture.guard("Recording a result"):
                self._fields["result"] = record_result(result, is_shape=self._capture.record == "shape")

    def set_usage(
        self, usage: Any = None, *, model: str | None = None, cost: float | None = None, **counts: int
    ) -> None:
        """Set the token usage of the step while it is in progress.

        `usage` is the answer of a model or its usage, in the form of any provider. Or pass counts: `input=900,
        output=20`. `cost` is in US dollars.
        """
        if self._can_change("set_usage"):
            with self._capture.guard("Reading a token usage"):
                token_usage = parse_usage(counts if usage is None else usage)
                self._fields["tokens"] = token_usage.tokens if token_usage is not None else None
                model = model or (token_usage.model if token_usage is not None else None)
                facts = {"model": model, "cost": cost}
                self.metadata.update({name: fact for name, fact in facts.items() if fact is not None})

    def _can_change(self, method: str) -> bool:
        if self._ended_step is not None:
            message = "%s of the step %.80r was called after its end: it changes nothing. Call it inside the step."
            self._capture.warn_once(str(self.name), method, message, method, self.name)
        return self._ended_step is None

    @property
    def status(self) -> Outcome | None:
        """The outcome of the step; None before its end."""
        return self._ended_step.outcome if self._ended_step is not None else None

    @status.setter
    def status(self, status: object) -> None:
        raise AttributeError(STATUS_NOTE)

    def __call__(self, function: F) -> F:
        """Decorate a function: each of its calls is such a step."""
        return decorate(function, self._copy)

    def _copy(self, arguments: Mapping[str, Any] | None) -> ActiveStep:
        step = ActiveStep(self.run, self.type, self.name, dict(self.metadata), arguments=self.arguments or arguments)
        step._call, step._rank, step._parent = self._call, self._rank, self._parent
        return step

    def record_failure(self, type: str | Enum = "", code: str | Enum = "", message: str = "", **facts: Any) -> Failure:
        """Record a failure of this step by hand, as `run.record_failure` does."""
        return self.run.record_failure(type, code, message, step=self, **facts)

    def set_failure(self, failure: Failure) -> Failure:
        """Set the failure of the step, which may have ended, and return it. A later one adds to an earlier one."""
        if self.failure is not None and self.failure.is_failure:
            if not failure.is_failure:
                return self.failure
            failure = self.failure.with_recorded(failure)
        is_changed, had_failure = failure != self.failure, self.failure is not None
        self.failure = failure
        if self._ended_step is not None and is_changed:
            if had_failure:
                self._capture.publish_safely(FailureRecorded(self.run.id, self._ended_step.seq, failure))
            else:
                self.run.fail_step(self._ended_step, failure)
        return failure

    def __enter__(self) -> Self:
        self.failure = self._ended_step = None
        is_shape = self._capture.record == "shape"
        fields: dict[str, Any] = {} if self._parent is None else {"parent": self._parent}
        with self._capture.guard("Recording arguments"):
            fields["arguments"] = record_arguments(self.arguments, is_shape=is_shape)
        step = self.run.start_step(type=self.type, name=self.name, metadata=self._stored_metadata(), **fields)
        self._step = step = self.run.join_call(step, self._call, self._rank)
        self.number = step.seq
        self.run.remember_step(self, self.number)
        # What is being handled or corrected matters only after a failure.
        self._facts = self.run.judge.call_facts(self.arguments or {}) if self.run.has_failures else None
        self._started = self._capture.timer()
        self._token = self._capture.current_scope.set(inner_scope(self._capture, self.run, self.number))
        self._capture.publish_safely(StepStarted(self._step))
        return self

    def __exit__(self, kind: Raised, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._token is not None:
            reset(self._capture.current_scope, self._token)
        if error is not None and not self._capture.is_control_flow(error):
            mark_exception(error, self.run.id)
            if self.number is not None:
                mark_step(error, self.run.id, self.number)
            failure = self.run.reduce_failure(self._capture.classify_safely(error, source=self.type, tool=self.name))
            self.failure = failure if self.failure is None else failure.with_recorded(self.failure)
        outcome: Outcome = "success"
        if self.failure is not None:
            outcome = outcome_of(self.failure)
        elif error is not None:
            outcome = "cancelled"
        step, self._step = self._step, None
        if step is not None:
            self._ended_step = msgspec.structs.replace(
                step,
                outcome=outcome,
                failure=self.failure,
                duration_seconds=self._capture.timer() - self._started,
                metadata=self._stored_metadata(),
                **self._fields,
            )
            if step.attempt > 1:
                self.run.reopen_call(step.call)
            self.run.note_attempt(self._ended_step)
            options: dict[str, Any] = {}
            if self._capture.record == "shape" and self.arguments is not None:
                # Links are judged by the values, of which only the shapes are recorded.
                recorder = ValueRecorder(is_shape=True, is_model=False, shareable_texts=tuple)
                options = {"values": dict(self.arguments), "value_recorder": recorder}
            self.run.publish_step(
                self._ended_step,
                facts=self._facts,
                **options,
                is_cut_off=outcome == "cancelled" and error is not None and self._capture.cuts_call_off(error),
            )

    def _stored_metadata(self) -> dict[str, Any] | None:
        return (shapes(self.metadata) if self._capture.record == "shape" else self.metadata) or None
