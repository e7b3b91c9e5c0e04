"""What is recorded of a call that a player makes: its attempts as steps, and answers from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from mulligan.capture.attempt import LastAttempt, PreparedCall, RepairedRequest
from mulligan.capture.first_attempt import FirstAttempt
from mulligan.capture.model_record import ModelRecord, usage_fields
from mulligan.capture.value_recording import States
from mulligan.core.call_facts import CallFacts
from mulligan.core.events import AnyEvent, StepStarted
from mulligan.core.records import Recovery, RecoveryStop, Step


class CallRecord(msgspec.Struct):
    """The record of one call. An attempt that has ended is recorded as soon as it is known whether another follows."""

    prepared: PreparedCall
    attempt: LastAttempt
    model: ModelRecord
    facts: CallFacts | None = None
    """What the run knew when the call started."""
    step: Step | None = None
    """The attempt in progress, or one that ended and is not recorded yet."""
    last_step: Step | None = None
    planned: Recovery | None = None
    """The recovery before the next attempt, until that starts."""
    next_metadata: dict[str, Any] | None = None
    pending_event: AnyEvent | None = None
    """An event to publish before the next attempt."""
    is_cut_off: bool = False
    """Whether the only attempt was cancelled from outside. One that failed before is a failed call."""

    def record_start(self, first: FirstAttempt | None = None) -> None:
        """Record the start of an attempt, or take over the first one, which the wrapper has made."""
        attempt, prepared, call = self.attempt, self.prepared, self.prepared.call
        recorder = call.rules.value_recorder
        if first is not None:
            self.step, self.facts = first.to_step(), first.collect_facts()
            attempt.recorded_arguments, attempt.values, attempt.states = self.step.arguments, first.values, first.states
            return
        states: States = {}
        attempt.states = states
        self.facts = self.facts or call.collect_facts(prepared.arguments, prepared.turn)
        attempt.values = recorder.values(attempt.arguments, states)
        self.step = self._start_step(
            prepared.tool.name,
            attempt.arguments,
            attempt=attempt.number,
            metadata=self.next_metadata,
            recovery=recorder.recovery(attempt.recovery),
        )
        attempt.recorded_arguments = self.step.arguments
        call.number = call.number or self.step.seq
        if self.pending_event is not None:
            call.capture.publish_safely(self.pending_event)
        self.next_metadata = self.pending_event = None
        call.capture.publish_safely(StepStarted(self.step))

    def record_end(self, stop: RecoveryStop | None) -> None:
        """Record an attempt that has ended. `stop` says why no other follows, if recovery stops."""
        step, self.step = self.step, None
        if step is None:
            return
        attempt, call, model = self.attempt, self.prepared.call, self.model
        with call.capture.guard("Recording the end of a call"):
            recorder = call.rules.value_recorder
            failure = recorder.failure(attempt.failure, attempt.arguments)
            is_replaced = attempt.replacement is not None
            usage = model.read_usage(step.seq, step.parent, step.arguments, attempt.result, is_other_model=is_replaced)
            metadata = step.metadata if attempt.metadata is None else {**(step.metadata or {}), **attempt.metadata}
            self.last_step = msgspec.structs.replace(
                step,
                outcome=attempt.outcome,
                failure=failure,
                duration_seconds=(attempt.ended_at or 0.0) - attempt.started_at,
                effects=None if failure is None else self.prepared.tool.effects,
                result=recorder.result(attempt.result),
                stop=recorder.stop(stop),
                **usage_fields(usage, step.arguments, metadata, is_other_model=is_replaced),
                answer=model.record_answer(attempt.result),
                within_recovery=usage is not None and call.is_within_recovery,
                suspected=recorder.suspected(attempt.suspected),
            )
            self._publish_last(is_final=attempt.outcome != "failure" or stop is not None)

    def record_rejected(self, request: RepairedRequest) -> None:
        """Record a request that was rejected before its first attempt, so that the attempt counts as its repair."""
        prepared, call = self.prepared, self.prepared.call
        self.attempt.number = 1
        if call.is_left_out:
            return
        failure = call.rules.value_recorder.failure(request.failure, request.arguments)
        self.last_step = self._start_step(request.name, request.arguments, outcome="failure", failure=failure)
        call.number = self.last_step.seq
        self.facts = call.collect_facts(prepared.arguments, prepared.turn)
        call.run.publish_step(self.last_step, call.capture, self.facts, is_final=False)

    def record_skipped(self, stop: RecoveryStop | None) -> None:
        """Record why a planned attempt, whose backoff has passed, is not made after all."""
        planned, self.planned = self.planned, None
        if self.last_step is None or self.attempt.failure is None or not self.last_step.seq:
            return
        call, recorder = self.prepared.call, self.prepared.call.rules.value_recorder
        with call.capture.guard("Recording the stop reason"):
            self._record_addition(
                outcome="cancelled",
                result=None,
                answer=None,
                messages=(),
                tokens=None,
                metadata=None,
                started_at=call.capture.now(),
                duration_seconds=0.0,
                recovery=recorder.recovery(planned),
                stop=recorder.stop(stop),
            )

    def use_answer(self, answer: Any, recovery: Recovery, started_at: int, started: float) -> None:
        """Use an answer that did not come from the function as the result, and record where it came from."""
        self.record_end(None)
        attempt, call = self.attempt, self.prepared.call
        attempt.error, attempt.failure, attempt.result = None, None, answer
        recorder = call.rules.value_recorder
        self._record_addition(
            **usage_fields(recorder.usage(answer), None, None, is_other_model=True),
            outcome="success",
            result=recorder.result(answer),
            answer=self.model.record_answer(answer),
            started_at=started_at,
            duration_seconds=call.capture.timer() - started,
            recovery=recovery,
        )

    def _record_addition(self, **fields: Any) -> None:
        """Record a step that follows the last attempt but is not an attempt of the function."""
        if self.last_step is not None:
            number = self.prepared.call.run.next_number()
            self.last_step = msgspec.structs.replace(
                self.last_step, seq=number, attempt=self.attempt.number + 1, failure=None, **fields
            )
            self._publish_last(is_final=True)

    def _publish_last(self, *, is_final: bool) -> None:
        """Publish the last step. Links are derived from its full arguments, even if the record reduces them."""
        call = self.prepared.call
        assert self.last_step is not None
        call.run.publish_step(
            self.last_step,
            call.capture,
            self.facts,
            is_final=is_final,
            values=self.attempt.values,
            value_recorder=call.rules.value_recorder,
            is_cut_off=self.is_cut_off,
        )

    def _start_step(self, name: str, arguments: Mapping[str, Any], **fields: Any) -> Step:
        call, tool = self.prepared.call, self.prepared.tool
        recorded, user_text = call.rules.value_recorder.arguments(
            arguments, self.attempt.replacement is not None, self.attempt.states
        )
        step = call.run.start_step(
            is_numbered=not call.is_left_out,
            call=call.number or 0,
            user_text=user_text,
            type=call.wrapped.options.type,
            name=name,
            server=tool.server,
            arguments=recorded,
            key=tool.recorded_key,
            **fields,
        )
        self.model.note_user_messages(arguments)
        messages = self.model.record_conversation(arguments)
        return msgspec.structs.replace(step, messages=messages) if messages else step
