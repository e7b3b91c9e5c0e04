"""What is recorded of a call: its attempts as steps, from the start of the first to the end of the last."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextvars import Token
from typing import TYPE_CHECKING, Any

import msgspec

from mulligan.capture.call_scope import CallScope, RecoveryScope, lock
from mulligan.capture.context import CaptureContext, reset
from mulligan.capture.framework_classes import is_interruption
from mulligan.capture.limits import CallLimits
from mulligan.capture.run import ActiveRun
from mulligan.capture.value_recording import find_user_texts
from mulligan.capture.wrapped_function import CallRules, WrappedFunction
from mulligan.core import fork_safety
from mulligan.core.call_facts import CallFacts
from mulligan.core.events import AnyEvent, StepStarted
from mulligan.core.failure import Failure
from mulligan.core.fast_path import StandaloneRun, SuccessRecord
from mulligan.core.records import (
    Change,
    Outcome,
    Recovery,
    RecoveryStop,
    Step,
    SuspectedFailure,
    ValueProfile,
    digest,
)
from mulligan.core.value_snapshots import restore_value, snapshot_value
from mulligan.recover.plan import AttemptMove, RecoveryFailed, RetryLayer
from mulligan.recover.policy import Policy, PrerequisiteCall, Tool
from mulligan.recover.target_state import TargetCall
from mulligan.redaction import to_plain_data

if TYPE_CHECKING:
    from mulligan.capture.message_recording import StreamAnswer
    from mulligan.core.token_usage import TokenUsage
    from mulligan.recover.lost_answers import CallIdentity, LostAnswer

KEY_BYTES = 16
_encode_json = msgspec.json.Encoder(order="deterministic").encode
_UNPREPARED: Any = None
"""The value of attributes that a call has only after `prepare`: most calls succeed at once and never need them."""


class RepairedRequest(msgspec.Struct, frozen=True):
    """A model's request that was rejected before anything could execute, and its repair."""

    name: str
    arguments: Mapping[str, Any]
    failure: Failure
    recovery: Recovery


class RecordedCall(CallScope[ActiveRun], eq=False):
    """The record of one call. It is also the scope of its first attempt.

    `record_success` records a first attempt and builds nothing else: most calls end there.
    """

    wrapped: WrappedFunction
    rules: CallRules
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    success_record: SuccessRecord | None = None
    """What is recorded if the first attempt succeeds; None if the player makes the first attempt."""
    journal_values: Sequence[Any] | None = None
    is_standalone: bool = False
    """Whether the call is outside any run. Its own run is created on request, which is rare."""
    start_time: float = 0.0
    ended_at: float | None = None
    """When the function returned or raised: the time for classification does not count."""
    result: Any = None
    error: Exception | None = None
    has_ended: bool = False
    suspected: SuspectedFailure | None = None
    """What looks like a failure in the result of the last attempt, if that succeeded."""
    values: Mapping[str, Any] | None = None
    """A copy of the arguments, if these are not recorded in full. Links are judged by it."""
    facts: CallFacts | None = None
    """What the run knew when the call started."""
    messages: tuple[tuple[int, int], ...] = ()
    """The recorded messages of the first attempt, if the wrapper makes it."""
    states: dict[str, list[Any]] | None = None
    """What plain objects among the arguments of the last attempt held before it. Not recorded."""
    has_marked_effects: bool = False
    """Whether the enclosing attempts count this call among those that may have executed."""
    argument_version: int = 0
    """How often the arguments were changed: repairs get another idempotency key."""
    key_seed: bytes = b""
    """What the idempotency keys of this call are derived from, once it has one."""

    is_prepared: bool = False
    # From here on, the attributes of a call that a player makes.
    arguments: Mapping[str, Any] = _UNPREPARED
    """The arguments of the first attempt, by name."""
    tool: Tool = _UNPREPARED
    policy: Policy = _UNPREPARED
    limits: CallLimits = _UNPREPARED
    open_stream: Callable[[Any], Any] | None = None
    """Converts the function's return value, if it is a stream."""
    adapt: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None
    """Changes how the function is called, for example in a thread."""
    repaired_request: RepairedRequest | None = None
    must_check: bool = False
    """Whether arguments are checked against the schema before each attempt."""
    has_json_arguments: bool = False
    """Whether the arguments are JSON: each attempt converts them to the annotated types."""
    answers_model: bool = False
    """Whether the answer goes to a model, which then needs no notes beside it."""
    is_played_async: bool = False
    """Whether the call waits without blocking its thread."""
    tool_names: Collection[str] = ()
    """Names of the tools that the model may call, if it requested this call."""
    turn: tuple[int, int] | None = None
    """The loop and the number of the model turn that requested the call."""
    failure: Failure | None = None
    """The failure of the last attempt."""
    retry_layer: RetryLayer | None = None
    """What else retries the call that failed, above or below it."""
    recovery_failed: RecoveryFailed | None = None
    value_facts: tuple[ValueProfile, ...] = ()
    """What successful calls had in common, and this one has not."""
    held_out_fixes: tuple[str, ...] = ()
    """Learned fixes that the model is not told, so that their effect can be measured, by id."""
    stop: RecoveryStop | None = None
    note: str = ""
    """The note for the model about a call that succeeded only after a repair."""
    attempt_count: int = 0
    attempt_arguments: Mapping[str, Any] = _UNPREPARED
    """The arguments of the last attempt, by name."""
    changes: tuple[Change, ...] = ()
    """All repairs so far."""
    backoffs: tuple[float, ...] = ()
    prerequisites: tuple[PrerequisiteCall, ...] = ()
    """The prerequisite calls that succeeded."""
    replacement: Callable[..., Any] | None = None
    """The function that this attempt calls instead of the wrapped one: that of another model."""
    stream_usage: TokenUsage | None = None
    """The token usage of a stream that has ended."""
    stream_answer: StreamAnswer | None = None
    """The answer of a stream that has ended, if the model records conversations."""
    step_metadata: dict[str, Any] | None = None
    """Metadata of the next attempt."""
    pending_event: AnyEvent | None = None
    """An event to publish before the next attempt."""
    _last_call: tuple[tuple[Any, ...], Mapping[str, Any]] = _UNPREPARED
    _call_identity: CallIdentity | None = None
    """What the last attempt asked for, if it matters that it is not asked for again."""
    _scope: CallScope[ActiveRun] | None = None
    """The scope of the attempt in progress."""
    _context_tokens: tuple[Token[Any], Token[Any] | None] | None = None
    """Tokens that restore the scope and the deadline."""
    _attempt_start: float = 0.0
    _step: Step | None = None
    """The attempt in progress, or one that ended and is recorded as soon as the next move is known."""
    _outcome: Outcome = "success"
    """The outcome of that attempt, once it has ended."""
    is_cut_off: bool = False
    """Whether its only attempt was cancelled from outside. One that failed before is a failed call."""
    _last_step: Step | None = None
    """The last attempt that was recorded."""
    _planned: Recovery | None = None
    """The recovery before the next attempt, until that starts."""
    _is_cancelled: bool = False
    _is_admitted: bool = False

    @property
    def capture(self) -> CaptureContext:
        return self.rules.capture

    @property
    def run(self) -> ActiveRun:
        """The run. That of a standalone call is created by calls inside it, or because it failed."""
        if self.known_run is None:
            assert self.success_record is not None
            with lock():  # several tasks of the call may ask at once
                if self.known_run is None:
                    run = ActiveRun(
                        self.capture,
                        "",
                        self.rules.run_options,
                        is_standalone=True,
                        id=self.success_record.run,
                        started_at=int(self.success_record.started_at * 1000),
                    )
                    run.next_number()  # that of this call
                    run.is_open = not self.has_ended
                    if self.known_run is None:  # otherwise a signal handler has created it meanwhile
                        self.known_run = run
        assert self.known_run is not None
        return self.known_run

    def record_success(self, result: Any, start_time: float, token: Token[Any]) -> bool:
        """Record that the first attempt returned. Return False if its result is a failure."""
        rules, record = self.rules, self.success_record
        capture = rules.capture
        assert record is not None
        try:
            now = capture.timer()
            checker, is_recorded_in_full = rules.result_checker, rules.is_recorded_in_full
            if checker is not None and checker.may_fail(result, record.keywords):
                verdict = checker.judge(result, record.arguments)
                if verdict.judgment == "failure":
                    self.start_time, self.ended_at, self.result = start_time, now, result
                    self._leave_first(token)
                    return False
                if verdict.judgment == "suspected" and not rules.is_off:
                    self.suspected = checker.suspect(capture, verdict, record.arguments)
                    is_recorded_in_full = self.suspected is None and is_recorded_in_full
            # Mostly every target works, which is all there is to know.
            if rules.targets.states and (self.is_retrying or (rules.is_single and self.retrying_scope is None)):
                self._record_answer_of_target(now)
            self.is_retrying = self.is_in_progress = False
            reset(capture.current_scope, token)
            run = self.known_run
            if not is_recorded_in_full or (
                run is not None and (self.is_standalone or run.has_failures or run.judge.item_scopes is not None)
            ):
                self._record_success(result, now - start_time)
                return True
            record.duration_seconds = now - start_time
            record.result = snapshot_value(result)
            if run is None:
                self.has_ended = True
            else:
                run.judge.note_success(record.template, record.positional, record.keywords)
                run.history.add_record(record)
            capture.put_success(record, self.journal_values)
        except Exception as error:  # noqa: BLE001 - inlined guard: the call succeeded, unrecorded
            capture.log_internal_error("Recording the end of a call", error)
        return True

    def _record_answer_of_target(self, now: float) -> None:
        """Record that the target answered the first attempt: calls may wait for that."""
        rules, wrapped = self.rules, self.wrapped
        target = wrapped.find_target(wrapped.signature.bind(self.args, self.kwargs), self.args, None)
        policy = wrapped.options.policy or rules.capture.policy
        rules.targets.record(target.key, TargetCall(now, now), None, now, policy=policy, random=rules.capture.random)

    def _record_success(self, result: Any, seconds: float) -> None:
        """Record a success in reduced form, in a run with failures, or with the end of its own run."""
        rules, run, record = self.rules, self.known_run, self.success_record
        assert record is not None
        if rules.is_off and (run is None or not run.has_failures):
            self.has_ended = True
            if run is not None:
                run.is_open = run.is_open and not self.is_standalone
            return
        run = run or self.run
        has_messages = rules.value_recorder.has_messages
        if has_messages or self.suspected is not None:
            run.start()  # a step with messages or a suspicion is published as an event, which needs a started run
        usage = self._read_usage(record.seq, record.parent, record.keywords, result)
        usage_facts = usage_fields(usage, record.keywords, None)
        is_within_recovery = usage is not None and self._is_within_recovery
        ends_run = self.is_standalone and not run.has_started
        success = msgspec.structs.replace(
            record,
            duration_seconds=seconds,
            result=snapshot_value(rules.value_recorder.result(result)),
            standalone_run=StandaloneRun.from_run(run.record) if ends_run else None,
            **usage_facts,
        )
        step: Step | None = None
        if run.has_failures or has_messages or is_within_recovery or self.suspected is not None:
            step = msgspec.structs.replace(
                self._first_step(),
                result=restore_value(success.result),
                duration_seconds=seconds,
                answer=self._record_answer(result),
                within_recovery=is_within_recovery,
                suspected=rules.value_recorder.suspected(self.suspected),
                **usage_facts,
            )
            self.facts = self._first_facts()
            step = run.judge_step(
                step, self.capture, self.facts, values=self.values, value_recorder=rules.value_recorder
            )
        if not self.is_standalone:
            if run.lost_answers and not rules.is_off and self.find_lost_answer() is not None:
                run.add_note(self.capture.prompt.repeated_call_note(rules.template.name))
            run.history.add_record(success)
            if record.template.type != "model":
                values = self.values or record.arguments
                run.note_success(rules.template.tool_key, values, run.judge.item_scope(rules.items, values))
        if step is not None and (step.links or step.suspected or has_messages or is_within_recovery):
            self.capture.publish_safely(run.end_step(step))
        elif not rules.is_off:
            self.capture.put_success(success, None)  # redacted on the recorder's thread
        if ends_run:
            run.is_open = False
        elif self.is_standalone:
            run.finish(None)

    def record_cancelled(self, error: BaseException, start_time: float, token: Token[Any]) -> None:
        """Record that the first attempt was interrupted, which is no failure."""
        with self.capture.guard("Recording a cancelled call"):
            seconds = self.capture.timer() - start_time
            self._leave_first(token)
            self.is_in_progress = False
            self.run.start()
            step = msgspec.structs.replace(self._first_step(), outcome="cancelled", duration_seconds=seconds)
            self.run.publish_step(
                step,
                self.capture,
                values=self.values,
                value_recorder=self.rules.value_recorder,
                is_cut_off=not self.is_standalone and self.capture.cuts_call_off(error),
            )
            if self.is_standalone:
                self.run.is_implicit = True
                self.run.finish(error)
            else:
                self.note_cut_off(step, error)

    def mark_effects(self) -> None:
        """Tell the enclosing attempts that this call, which has effects="once", is about to execute."""
        if self.enclosing is not None and not self.has_marked_effects:
            self.has_marked_effects = True
            self.add_executed_call(self.wrapped.name)

    def withdraw_effects(self) -> None:
        """Tell the enclosing attempts that this call did not execute after all, nor a call inside it."""
        if self.has_marked_effects and not self.executed_calls:
            self.has_marked_effects = False
            self.remove_executed_call(self.wrapped.name)

    def idempotency_key(self) -> str:
        """Return the key of the current attempt: the same for all attempts of this call with the same arguments.

        That of a call inside another one is derived from the key of that one: if the outer call is repeated, its n-th
        call of this tool with equal arguments gets the same key again.
        """
        with lock():
            if not self.key_seed:
                self.key_seed = self._make_key_seed()
        return digest(self.key_seed + str(self.argument_version).encode(), KEY_BYTES).hex()

    def _make_key_seed(self) -> bytes:
        attempt = self.enclosing
        outer_call = None if attempt is None else find_call(attempt)
        if attempt is None or outer_call is None:
            return os.urandom(KEY_BYTES)
        arguments = self.wrapped.signature.bind(self.args, self.kwargs)
        identity = digest(_encode_json([self.rules.template.tool_key, to_plain_data(arguments)]), KEY_BYTES)
        counts = attempt.key_counts = attempt.key_counts or {}
        number = counts[identity] = counts.get(identity, 0) + 1
        return digest(f"{outer_call.idempotency_key()} {number} ".encode() + identity, KEY_BYTES)

    def _leave_first(self, token: Token[Any]) -> None:
        self.is_retrying = False
        reset(self.capture.current_scope, token)

    def _first_step(self) -> Step:
        assert self.success_record is not None
        step = self.success_record.to_step()
        return msgspec.structs.replace(step, arguments=dict(step.arguments), messages=self.messages)

    def identify_call(self) -> CallIdentity:
        """Return what makes another call the same as this one: the tool, and what the last attempt passes to it."""
        with fork_safety.import_lock:
            from mulligan.recover.lost_answers import CallIdentity, encode_arguments  # lazy: few calls need it
        wrapped, owner = self.wrapped, self.wrapped.owner(self.args)
        arguments = wrapped.complete_arguments(self._passed_arguments)
        name = self.limits.requested_name if self.is_prepared else ""
        return CallIdentity(wrapped.key, name, 0 if owner is None else id(owner), encode_arguments(arguments))

    @property
    def _passed_arguments(self) -> dict[str, Any]:
        """The arguments that the last attempt passes to the function, by name."""
        return self.wrapped.signature.bind(*(self._last_call if self.is_prepared else (self.args, self.kwargs)))

    def find_lost_answer(self) -> LostAnswer | None:
        """Return the same call of the session whose answer was lost and is not settled, the latest."""
        call = self.identify_call()
        return next((answer for answer in reversed(self.run.lost_answers) if answer.call.is_same_as(call)), None)

    def note_cut_off(self, step: Step, error: BaseException | None) -> None:
        """Remember that the answer of this call was lost, if this exception cut it off."""
        if self.wrapped.options.effects == "once" and is_interruption(error, self.capture.control_flow):
            self.note_lost_answer(self._call_identity or self.identify_call(), step, None)

    def note_lost_answer(self, call: CallIdentity, step: Step, failure: Failure | None) -> None:
        """Remember that the answer of this call was lost, if it matters and is so. `failure` is None if it was cut off.

        A call around it that failed too is no answer either, whatever it raised.
        """
        has_lost_answer = self.wrapped.options.effects == "once" and (failure is None or failure.has_lost_answer)
        if failure is not None and not has_lost_answer:
            has_lost_answer = any(
                answer.parent == step.seq and answer.run == self.run.id for answer in self.run.lost_answers
            )
        is_delegated = self.rules.is_off and self.rules.mode == "observe"  # an adapter notes its own call
        if self.run.is_implicit or is_delegated or not has_lost_answer:
            return
        with fork_safety.import_lock:
            from mulligan.recover.lost_answers import LostAnswer, find_identifiers  # lazy: after a failure only
        self.run.add_lost_answer(
            LostAnswer(
                run=self.run.id,
                number=step.call,
                parent=step.parent,
                tool=self.wrapped.name,
                call=call,
                identifiers=find_identifiers(self._passed_arguments, self.wrapped.shareable_texts()),
                failure=failure,
                user_messages=self.run.user_messages,
                settled_calls=self.run.judge.settled_calls,
            )
        )

    def record_start(self, move: AttemptMove) -> None:
        """Record the start of an attempt, or take over the first one, which the wrapper has made."""
        if self.has_wrapper_attempt:
            self._step, self.facts = self._first_step(), self._first_facts()
            return
        recorder, self.states = self.rules.value_recorder, {}
        self.facts = self.facts or self._start_facts()
        if move.recovery is not None:
            self.changes += tuple(move.recovery.changes)
        self.values = recorder.values(move.arguments, self.states)
        self._step = self._start_step(
            self.tool.name,
            move.arguments,
            attempt=self.attempt_count + 1,
            metadata=self.step_metadata,
            recovery=recorder.recovery(move.recovery),
        )
        self.number = self.number or self._step.seq
        if self.pending_event is not None:
            self.capture.publish_safely(self.pending_event)
        self.step_metadata = self.pending_event = None
        self.capture.publish_safely(StepStarted(self._step))

    def record_end(self, stop: RecoveryStop | None) -> None:
        """Record an attempt that has ended. `stop` says why no other follows, if recovery stops."""
        step, self._step = self._step, None
        if step is None:
            return
        with self.capture.guard("Recording the end of a call"):
            recorder = self.rules.value_recorder
            failure = recorder.failure(self.failure, self.attempt_arguments)
            usage = self._read_usage(step.seq, step.parent, step.arguments, self.result)
            self._last_step = msgspec.structs.replace(
                step,
                outcome=self._outcome,
                failure=failure,
                duration_seconds=(self.ended_at or 0.0) - self._attempt_start,
                effects=None if failure is None else self.tool.effects,
                result=recorder.result(self.result),
                stop=recorder.stop(stop),
                **usage_fields(usage, step.arguments, step.metadata, is_other_model=self.replacement is not None),
                answer=self._record_answer(self.result),
                within_recovery=usage is not None and self._is_within_recovery,
                suspected=recorder.suspected(self.suspected),
            )
            self._publish_last(is_final=self._outcome != "failure" or stop is not None)

    def record_rejected(self, request: RepairedRequest) -> None:
        """Record a request that was rejected before its first attempt, so that the attempt counts as its repair."""
        self.attempt_count = 1
        if self.is_left_out:
            return
        failure = self.rules.value_recorder.failure(request.failure, request.arguments)
        self._last_step = self._start_step(request.name, request.arguments, outcome="failure", failure=failure)
        self.number = self._last_step.seq
        self.facts = self._start_facts()
        self.run.publish_step(self._last_step, self.capture, self.facts, is_final=False)

    def record_skipped(self, stop: RecoveryStop | None) -> None:
        """Record why a planned attempt, whose backoff has passed, is not made after all."""
        planned, self._planned = self._planned, None
        if self._last_step is None or self.failure is None or not self._last_step.seq:
            return
        with self.capture.guard("Recording the stop reason"):
            self._record_addition(
                outcome="cancelled",
                result=None,
                answer=None,
                messages=(),
                tokens=None,
                metadata=None,
                started_at=self.capture.now(),
                duration_seconds=0.0,
                recovery=self.rules.value_recorder.recovery(planned),
                stop=self.rules.value_recorder.stop(stop),
            )

    def use_answer(self, answer: Any, recovery: Recovery, started_at: int, started: float) -> None:
        """Use an answer that did not come from the function as the result, and record where it came from."""
        self.record_end(None)
        self.error, self.failure, self.result = None, None, answer
        usage = self.rules.value_recorder.usage(answer)
        self._record_addition(
            **usage_fields(usage, None, None, is_other_model=True),
            outcome="success",
            result=self.rules.value_recorder.result(answer),
            answer=self._record_answer(answer),
            started_at=started_at,
            duration_seconds=self.capture.timer() - started,
            recovery=recovery,
        )

    def _record_addition(self, **fields: Any) -> None:
        """Record a step that follows the last attempt but is not an attempt of the function."""
        if self._last_step is not None:
            self._last_step = msgspec.structs.replace(
                self._last_step, seq=self.run.next_number(), attempt=self.attempt_count + 1, failure=None, **fields
            )
            self._publish_last(is_final=True)

    def _publish_last(self, *, is_final: bool) -> None:
        """Publish the last step. Links are derived from its full arguments, even if the record reduces them."""
        assert self._last_step is not None
        self.run.publish_step(
            self._last_step,
            self.capture,
            self.facts,
            is_final=is_final,
            values=self.values,
            value_recorder=self.rules.value_recorder,
            is_cut_off=self.is_cut_off,
        )

    @property
    def has_wrapper_attempt(self) -> bool:
        """Whether the wrapper has made an attempt that was not sent to the plan yet."""
        return self.ended_at is not None and not self.attempt_count

    @property
    def _is_within_recovery(self) -> bool:
        """Whether an enclosing attempt that serves recovery makes this call."""
        return any(isinstance(scope, RecoveryScope) for scope in self.enclosing_attempts())

    @property
    def is_left_out(self) -> bool:
        """Whether the call is not recorded although its run is."""
        return self.rules.is_off and not self.run.capture.is_recording_off

    def _start_facts(self) -> CallFacts:
        options, record = self.wrapped.options, self.success_record
        reads_only = options.effects == "none" and options.type != "model"
        arguments = self.arguments if self.is_prepared or record is None else self.values or record.arguments
        return self.run.judge.call_facts(
            arguments,
            self.rules.items,
            privileged=tuple(options.privileged),
            is_destructive=options.destructive,
            turn=self.turn,
            receiver=self.wrapped.receiver(self.args),
            lost_answers=self.run.lost_answers if reads_only else (),
            reads_only=reads_only,
        )

    def _first_facts(self) -> CallFacts:
        """Return the facts of the first attempt. Failures delivered while it ran do not count as earlier ones."""
        return self.facts or msgspec.structs.replace(
            self._start_facts(), failures_before=0, handled=(), lost_answers=()
        )

    def _start_step(self, name: str, arguments: Mapping[str, Any], **fields: Any) -> Step:
        is_replaced = self.replacement is not None
        recorded, user_text = self.rules.value_recorder.arguments(arguments, is_replaced, self.states)
        step = self.run.start_step(
            is_numbered=not self.is_left_out,
            call=self.number or 0,
            user_text=user_text,
            type=self.wrapped.options.type,
            name=name,
            server=self.tool.server,
            arguments=recorded,
            key=self.tool.recorded_key,
            **fields,
        )
        self.note_user_messages(arguments)
        messages = self.record_conversation(arguments)
        return msgspec.structs.replace(step, messages=messages) if messages else step

    def note_user_messages(self, arguments: Mapping[str, Any]) -> None:
        """Note what the user wrote, if this is a model call before the first tool call of a loop."""
        if self.rules.value_recorder.is_model and self.known_run is not None and self.known_run.awaits_user_messages:
            with self.capture.guard("Reading a conversation"):
                self.known_run.note_user_messages(find_user_texts(arguments))

    def record_conversation(self, arguments: Mapping[str, Any]) -> tuple[tuple[int, int], ...]:
        """Record the messages that a model receives, if it records conversations. Return their numbers as ranges."""
        if self.rules.value_recorder.has_messages:
            with self.capture.guard("Recording a conversation"):
                recording = _message_recording()
                numbers = self.run.record_messages(recording.parse_conversation(arguments))
                return tuple(recording.to_ranges(numbers))
        return ()

    def _record_answer(self, answer: Any) -> int | None:
        """Record the answer of a model, if it records conversations. Return its number."""
        if self.rules.value_recorder.has_messages:
            with self.capture.guard("Recording an answer"):
                if self.stream_answer is not None:
                    message = self.stream_answer.build_message()
                else:
                    message = _message_recording().parse_answer(answer)
                return next(iter(self.run.record_messages([message])), None) if message is not None else None
        return None

    def collect_stream(self) -> StreamAnswer | None:
        """Return what collects the answer of a stream, if the model records conversations."""
        return _message_recording().StreamAnswer() if self.rules.value_recorder.has_messages else None

    def _read_usage(self, number: int, parent: int | None, arguments: Any, answer: Any) -> TokenUsage | None:
        recorder = self.rules.value_recorder
        if not recorder.is_model:
            return None
        usage = self.run.count_usage(number, parent, self.stream_usage or recorder.usage(answer))
        if usage is not None:
            model = arguments.get("model") if isinstance(arguments, dict) and self.replacement is None else None
            self.run.set_model_turn(model if isinstance(model, str) else None, usage)
        return usage


def find_call(scope: CallScope[ActiveRun] | None) -> RecordedCall | None:
    """Return the call whose attempt a scope belongs to, or None."""
    while scope is not None and not isinstance(scope, RecordedCall):
        scope = scope.enclosing
    return scope


def usage_fields(
    usage: TokenUsage | None, arguments: Any, metadata: dict[str, Any] | None, *, is_other_model: bool = False
) -> dict[str, Any]:
    """Return the fields of a step that its token usage determines.

    `is_other_model` means that another function answered: the arguments do not name its model.
    """
    if usage is None:
        return {"tokens": None, "metadata": metadata}
    facts: dict[str, Any] = {"model": usage.model or ""} if is_other_model else {}
    facts |= usage.to_metadata(arguments)
    return {"tokens": usage.tokens, "metadata": {**(metadata or {}), **facts} or None}


def _message_recording() -> Any:
    """Import the parser of messages with the first recorded conversation."""
    with fork_safety.import_lock:
        from mulligan.capture import message_recording
    return message_recording
