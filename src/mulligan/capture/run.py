"""Runs as context managers, and the current run of each context."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from contextvars import Token
from enum import Enum
from types import TracebackType
from typing import Any, Self

import msgspec

from mulligan.capture.active_step import ActiveStep
from mulligan.capture.call_origin import (
    corrected_calls,
    enter_task,
    find_marked_calls,
    find_marked_step,
    find_marked_steps,
    mark_exception,
)
from mulligan.capture.call_scope import AsyncScope, CallScope, ContextValue, Raised, current_step, inner_scope, lock
from mulligan.capture.context import NO_OPTIONS, CaptureContext, RunOptions
from mulligan.capture.framework_classes import is_interruption
from mulligan.capture.propagation import lost_run_watch
from mulligan.capture.run_steps import RunSteps
from mulligan.capture.step_values import RunMetadata
from mulligan.core import fork_safety
from mulligan.core.events import RunEnded, RunStarted
from mulligan.core.failure import Failure, SettingsError, to_code
from mulligan.core.holdout import can_hold_out_lesson, is_held_out
from mulligan.core.kinds import ORCHESTRATION_UNCAUGHT_EXCEPTION
from mulligan.core.records import AdvisedFix, EndReason, Lesson, Run, Step, StepType, new_id


class ActiveRun(RunSteps, RunMetadata, AsyncScope):
    """A run in progress. Created by `mulligan.run`; wrapped calls inside it become its steps."""

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
        call_scope: CallScope[ActiveRun] | None = None if is_standalone else capture.current_scope.get()
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
        self._is_nested = call_scope is not None and call_scope.number is not None
        if call_scope is not None and self._is_nested:
            self.user_messages = call_scope.run.user_messages
            self.session_key = record_fields.get("session") or call_scope.run.session_key
        self.is_open = True
        self.record: Run = Run(agent=agent or capture.agent, **record_fields)
        super().__init__(self.capture)
        self.entered_tokens: list[Token[Any]] = []
        """One reset token for each open `with` of the run, in any thread."""
        self.has_started = False
        self.has_failures = self.session_key in capture.lost_answers

    def trace(self) -> tuple[str, str | None]:
        """Return the outermost run and the incoming header, of this run or an enclosing one."""
        if self.record.traceparent is not None:
            return self.id, self.record.traceparent
        return self._outer_trace or (self.id, None)

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

    def __repr__(self) -> str:
        running = ", running" if self.is_open else ""
        return f"<run {self.id} of {self.record.agent or 'no agent'}, {self.status}{running}>"

    def become_child_run(self) -> None:
        """Continue an inherited run under a new id, as its child."""
        parent, self._outer_trace = self.id, self.trace()
        self.is_inherited, self.is_open, self.has_started, self.has_failures = False, True, False, False
        self._notes, judge = [], self.judge
        self.messages = None
        self.id = new_id()
        self.start_judging()
        self.judge.item_scopes, self.judge.is_logged = judge.item_scopes, judge.is_logged
        self.record = msgspec.structs.replace(self.record, id=self.id, parent=parent, started_at=self.capture.now())
        self.start()

    def make_explicit(self) -> None:
        """Turn the run of one call into the run of a loop."""
        self.is_implicit = False
        lost_run_watch.add_run(self.id)

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
        return ActiveStep(self, type, name, metadata, arguments=arguments, call=call, attempt=attempt)

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
        failed_step: AsyncScope | Step | None = target if isinstance(target, ActiveStep) else None
        if isinstance(target, int):
            failed_step = self.find_step(target)
        elif target is None and to_code(type).lower() != "orchestration":
            failed_step = self._find_handled_step()
        if isinstance(failed_step, ActiveStep):
            return failed_step.record_failure(type, code, message, **facts)
        ended_step = failed_step if isinstance(failed_step, Step) else None
        failure = self.build_failure(type, code, message, facts, ended_step)
        if ended_step is not None:
            if ended_step.failure is not None:
                return ended_step.failure
            if ended_step.started_at:
                self.fail_step(ended_step, failure)
            else:
                self.record_failure_of_unknown_step(ended_step, failure)
            return failure
        if (error := sys.exception()) is not None:
            mark_exception(error, self.id)  # leaving the run, it adds no second failure
        self.record_child_failure("run", self.record.agent, failure)
        return failure

    def _find_handled_step(self) -> ActiveStep | Step | None:
        """Return the failed step that has left the exception being handled, if any."""
        number = find_marked_step(sys.exception(), self.id)
        step = self.find_step(number) if number is not None else None
        return step if isinstance(step, ActiveStep | Step) and step.failure is not None else None

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

    @property
    def allows_holdout(self) -> bool:
        """Whether help may be withheld from this run. A run that is not recorded would measure nothing."""
        return self.options.holdout and not self.capture.is_recording_off

    def hold_out_lessons(self, lessons: Iterable[Lesson]) -> set[str]:
        """Return the lessons, by id, that the prompts of this run go without. Note them, and those to compare with.

        Nothing is held out of what protects.
        """
        capture = self.capture
        share = capture.holdout if self.allows_holdout else 0.0
        measured = [lesson for lesson in lessons if share and can_hold_out_lesson(lesson)]
        held_out: set[str] = set()
        for lesson in measured:
            tool = capture.find_tool(lesson.tool) if capture.find_tool is not None else None
            if tool is None or (tool.options.holdout and not tool.options.destructive):
                record = AdvisedFix(0, lesson.id, is_held_out(share, self.trace_id, lesson.id))
                self.judge.note_help(record)
                held_out.update([lesson.id] * record.held_out)
        return held_out

    def as_current(self) -> ContextValue:
        """Make the run the current one in this context: `with run.as_current():`."""
        scope = self.capture.current_scope
        return ContextValue(scope, lambda: inner_scope(self.capture, self, current_step(self.capture, self)))

    def __enter__(self) -> Self:
        if self.is_inherited:
            self.become_child_run()
        token = self.capture.current_scope.set(inner_scope(self.capture, self))
        enter_task()
        with lock():
            self.entered_tokens.append(token)
        if not self.is_implicit:
            lost_run_watch.add_run(self.id)
        return self.start()

    def __exit__(self, kind: Raised, error: BaseException | None, trace: TracebackType | None) -> None:
        # A run may be entered repeatedly, by several threads. The last one to exit ends it.
        with lock():
            entered = self.entered_tokens
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


def current_run(capture: CaptureContext) -> ActiveRun | None:
    """Return the current run, if it is open: a task that it left behind must not add to it."""
    call_scope: CallScope[ActiveRun] | None = capture.current_scope.get()
    return call_scope.run if call_scope is not None and call_scope.run.is_open else None


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
