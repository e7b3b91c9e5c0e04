"""Steps that a program marks itself: `with run.step("plan", "read the question"):`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from types import TracebackType
from typing import Any, Self, TypeVar, get_args

import msgspec

from mulligan.capture.call_origin import mark_exception, mark_step
from mulligan.capture.call_scope import AsyncScope, Raised, inner_scope
from mulligan.capture.context import reset
from mulligan.capture.run_judge import outcome_of
from mulligan.capture.run_steps import RunSteps
from mulligan.capture.step_values import (
    STATUS_NOTE,
    decorate,
    merge_metadata,
    parse_usage,
    record_arguments,
    record_result,
)
from mulligan.capture.value_recording import ValueRecorder, shapes
from mulligan.core.attempts import SENT_NAME, parse_attempt_name
from mulligan.core.events import FailureRecorded, StepStarted
from mulligan.core.failure import Failure, SettingsError
from mulligan.core.records import Outcome, Step, StepType

F = TypeVar("F", bound=Callable[..., Any])
MAX_ATTEMPTS = 1000


class ActiveStep(AsyncScope):
    """A step marked by the user, in progress."""

    def __init__(
        self,
        run: RunSteps,
        type: StepType,
        name: str,
        metadata: dict[str, Any],
        *,
        arguments: Mapping[str, Any] | None = None,
        call: ActiveStep | int | None = None,
        attempt: int | None = None,
        parent: int | None = None,
    ) -> None:
        if type not in get_args(StepType) or type in ("run", "reflection"):
            raise SettingsError(f"Invalid step type {type!r}. Use plan, tool, model, retrieval, respond or custom.")
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
        """Mark a step inside this one, also from another thread. The options are those of `run.step`."""
        parent = self.number
        return ActiveStep(
            self.run, type, name, metadata, arguments=arguments, call=call, attempt=attempt, parent=parent
        )

    def add_metadata(self, values: Mapping[str, Any] | None = None, /, **more: Any) -> None:
        """Add to the metadata of the step while it is in progress: `step.add_metadata(rows=3)`."""
        if self._can_change("add_metadata"):
            merge_metadata(self.metadata, values, more)

    def set_result(self, result: Any) -> None:
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

    def record_failure(
        self,
        type: str | Enum = "",
        code: str | Enum = "",
        message: str = "",
        *,
        failure_type: str | Enum = "",
        failure_code: str | Enum = "",
        **facts: Any,
    ) -> Failure:
        """Record a failure of this step by hand, as `run.record_failure` does."""
        type, code = type or failure_type, code or failure_code
        return self.set_failure(self.run.build_failure(type, code, message, facts, self))

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
        self._step = step = self.run.join_call(
            step, self._call.number if isinstance(self._call, ActiveStep) else self._call, self._rank
        )
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
