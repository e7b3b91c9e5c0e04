"""The first attempt of a call, which the wrapper makes itself. Most calls end here: nothing for recovery is built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import Token
from typing import Any

import msgspec

from mulligan.capture.call_scope import CallScope
from mulligan.capture.captured_call import CapturedCall
from mulligan.capture.context import DELEGATED_OPTIONS, NO_OPTIONS, CaptureContext, delegated_tool, reset
from mulligan.capture.lost_call import find_lost_answer, note_cut_off
from mulligan.capture.model_record import ModelRecord, usage_fields
from mulligan.capture.propagation import lost_run_watch
from mulligan.capture.result_checks import PLAIN_TYPES
from mulligan.capture.run import ActiveRun
from mulligan.capture.value_recording import snapshot_arguments
from mulligan.capture.wrapped_function import WrappedFunction
from mulligan.core.call_facts import CallFacts
from mulligan.core.events import StepStarted
from mulligan.core.fast_path import StandaloneRun, SuccessRecord, journal_values, simple_journal_values
from mulligan.core.records import Step, SuspectedFailure, new_id, pooled_run_id
from mulligan.core.value_snapshots import IMMUTABLE_TYPES, restore_value, snapshot_value
from mulligan.recover.target_state import TargetCall


class FirstAttempt(msgspec.Struct, eq=False):
    """The first attempt of a call, with what recovery needs of it if it fails."""

    call: CapturedCall
    record: SuccessRecord
    """What is recorded if it succeeds."""
    journal_values: Sequence[Any] | None = None
    values: Mapping[str, Any] | None = None
    """A copy of the arguments, if these are not recorded in full. Links are judged by it."""
    states: dict[str, list[Any]] | None = None
    """What plain objects among the arguments held before. Not recorded."""
    messages: tuple[tuple[int, int], ...] = ()
    """The recorded messages of a model, as ranges."""
    facts: CallFacts | None = None
    """What the run knew when the call started."""
    ended_at: float = 0.0
    """When the function returned or raised: the time for classification does not count."""
    result: Any = None
    error: Exception | None = None

    def keep_failure(self, error: BaseException, start_time: float, token: Token[Any]) -> bool:
        """Store the exception, which recovery classifies later. Return False if it is no failure.

        Such a call is recorded as cancelled.
        """
        call = self.call
        if not isinstance(error, Exception) or call.capture.is_control_flow(error):
            self.record_cancelled(error, start_time, token)
            return False
        self.error, call.start_time, self.ended_at = error, start_time, call.capture.timer()
        self._leave(token)
        return True

    def record_success(self, result: Any, start_time: float, token: Token[Any]) -> bool:
        """Record that the function returned. Return False if its result is a failure."""
        call, record = self.call, self.record
        rules = call.rules
        capture = rules.capture
        try:
            now = capture.timer()
            checker, is_recorded_in_full = rules.result_checker, rules.is_recorded_in_full
            if checker is not None and checker.may_fail(result, record.keywords):
                if checker.is_failure(result, record.arguments):
                    call.start_time, self.ended_at, self.result = start_time, now, result
                    self._leave(token)
                    return False
                is_recorded_in_full = is_recorded_in_full and type(result) in PLAIN_TYPES
            # Mostly every target works, which is all there is to know.
            if rules.targets.states and (call.is_retrying or (rules.is_single and call.retrying_scope is None)):
                self._record_answer_of_target(now)
            call.is_retrying = call.is_in_progress = False
            reset(capture.current_scope, token)
            run = call.known_run
            if not is_recorded_in_full or (
                run is not None and (call.is_standalone or run.has_failures or run.judge.item_scopes is not None)
            ):
                self._record_judged_success(result, now - start_time)
                return True
            record.duration_seconds = now - start_time
            record.result = snapshot_value(result)
            if run is None:
                call.has_ended = True
            else:
                run.judge.note_success(record.template, record.positional, record.keywords)
                run.history.add_record(record)
            capture.put_success(record, self.journal_values)
        except Exception as error:  # noqa: BLE001 - inlined guard: the call succeeded, unrecorded
            capture.log_internal_error("Recording the end of a call", error)
        return True

    def _record_answer_of_target(self, now: float) -> None:
        """Record that the target answered: calls may wait for that."""
        call = self.call
        rules, wrapped = call.rules, call.wrapped
        target = wrapped.find_target(wrapped.signature.bind(call.args, call.kwargs), call.args, None)
        policy = wrapped.options.policy or rules.capture.policy
        rules.targets.record(target.key, TargetCall(now, now), None, now, policy=policy, random=rules.capture.random)

    def _record_judged_success(self, result: Any, seconds: float) -> None:
        """Record a success in reduced form, in a run with failures, or with the end of its own run."""
        call, record = self.call, self.record
        rules, known_run = call.rules, call.known_run
        if rules.is_off and (known_run is None or not known_run.has_failures):
            call.has_ended = True
            if known_run is not None:
                known_run.is_open = known_run.is_open and not call.is_standalone
            return
        run, recorder, model = call.run, rules.value_recorder, ModelRecord(call)
        is_judged_later = type(result) in PLAIN_TYPES and not recorder.is_shape  # the recorder gets the same result
        suspected = None if is_judged_later else self._suspect(result)
        if recorder.has_messages or suspected is not None:
            run.start()  # a step with messages or a suspicion is published as an event, which needs a started run
        usage = model.read_usage(record.seq, record.parent, record.keywords, result)
        usage_facts = usage_fields(usage, record.keywords, None)
        is_within_recovery = usage is not None and call.is_within_recovery
        ends_run = call.is_standalone and not run.has_started
        success = msgspec.structs.replace(
            record,
            duration_seconds=seconds,
            result=snapshot_value(recorder.result(result)),
            standalone_run=StandaloneRun.from_run(run.record) if ends_run else None,
            **usage_facts,
        )
        step: Step | None = None
        if run.has_failures or recorder.has_messages or is_within_recovery or suspected is not None:
            step = msgspec.structs.replace(
                self.to_step(),
                result=restore_value(success.result),
                duration_seconds=seconds,
                answer=model.record_answer(result),
                within_recovery=is_within_recovery,
                suspected=recorder.suspected(suspected),
                **usage_facts,
            )
            step = run.judge_step(step, call.capture, self.collect_facts(), values=self.values, value_recorder=recorder)
        if not call.is_standalone:
            if not rules.is_off and find_lost_answer(call, (call.args, call.kwargs)) is not None:
                run.add_note(call.capture.prompt.repeated_call_note(rules.template.name))
            run.history.add_record(success)
            if record.template.type != "model":
                values = self.arguments
                run.note_success(rules.template.tool_key, values, run.judge.item_scope(rules.items, values))
        if step is not None and (step.links or step.suspected or recorder.has_messages or is_within_recovery):
            if is_judged_later:
                step = msgspec.structs.replace(step, suspected=self._suspect(result))
            call.capture.publish_safely(run.end_step(step))
        elif not rules.is_off:
            call.capture.put_success(success, None)  # redacted on the recorder's thread
        if ends_run:
            run.is_open = False
        elif call.is_standalone:
            run.finish(None)

    def _suspect(self, result: Any) -> SuspectedFailure | None:
        suspect = self.record.template.suspect
        return None if suspect is None else suspect(result, self.record.arguments)

    def record_cancelled(self, error: BaseException, start_time: float, token: Token[Any]) -> None:
        """Record that the attempt was interrupted, which is no failure."""
        call = self.call
        capture = call.capture
        with capture.guard("Recording a cancelled call"):
            seconds = capture.timer() - start_time
            self._leave(token)
            call.is_in_progress = False
            run = call.run.start()
            step = msgspec.structs.replace(self.to_step(), outcome="cancelled", duration_seconds=seconds)
            run.publish_step(
                step,
                capture,
                values=self.values,
                value_recorder=call.rules.value_recorder,
                is_cut_off=not call.is_standalone and capture.cuts_call_off(error),
            )
            if call.is_standalone:
                run.is_implicit = True
                run.finish(error)
            else:
                note_cut_off(call, (call.args, call.kwargs), step, error)

    def _leave(self, token: Token[Any]) -> None:
        self.call.is_retrying = False
        reset(self.call.capture.current_scope, token)

    def to_step(self) -> Step:
        step = self.record.to_step()
        return msgspec.structs.replace(step, arguments=dict(step.arguments), messages=self.messages)

    @property
    def arguments(self) -> Mapping[str, Any]:
        """The arguments by which links are judged."""
        return self.values or self.record.arguments

    def collect_facts(self) -> CallFacts:
        """Return the facts of the attempt, without failures that the model read while it ran."""
        if self.facts is None:
            facts = self.call.collect_facts(self.arguments)
            self.facts = msgspec.structs.replace(facts, failures_before=0, handled=(), lost_answers=())
        return self.facts

    def copy_arguments(self) -> None:
        """Store copies of the arguments in the record: the function may modify them."""
        call, record = self.call, self.record
        template, signature, value_recorder = call.rules.template, call.wrapped.signature, call.rules.value_recorder
        arguments: Mapping[str, Any] = signature.bind(call.args, call.kwargs)
        user_text = None
        states = self.states = {}
        if value_recorder.is_reduced:
            model = ModelRecord(call)
            self.values = value_recorder.values(arguments, states)
            model.note_user_messages(arguments)
            self.messages = model.record_conversation(arguments)
            arguments, user_text = value_recorder.arguments(arguments, states=states)
        elif (
            signature.is_unrestricted
            and template.lookup_name is not None
            # Limit of remembered argument names beyond the parameters of a function that accepts any name.
            and len(template.recordable_names) < 200
        ):
            template.recordable_names = template.recordable_names.union(
                name for name in call.kwargs if signature.can_name(name) and template.is_recordable(name)
            )
        record.positional = ()
        self.journal_values = journal_values(template, arguments)
        record.is_immutable = IMMUTABLE_TYPES.issuperset(map(type, arguments.values()))
        if record.is_immutable or value_recorder.is_reduced:
            record.keywords = dict(arguments)
        else:
            record.keywords = snapshot_arguments(arguments, states)
        if user_text is not None:
            call.run.set_context_if_unset(user_text)


def begin_attempt(
    wrapped: WrappedFunction, capture: CaptureContext, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> FirstAttempt | None:
    """Begin the first attempt. Return None if the call needs a check first. Hot path: every call runs this."""
    scope: CallScope[ActiveRun] | None = capture.current_scope.get()
    rules = wrapped.default_rules
    run: ActiveRun | None
    if scope is None:
        if lost_run_watch.is_active:
            lost_run_watch.check(wrapped.name)
        if rules is None or rules.capture is not capture:
            if wrapped.needs_precheck:
                return None
            rules = wrapped.rules(capture, None)
        if rules.can_be_refused and rules.targets.states:
            return None
        run = outer = enclosing = parent = None
        is_counted, is_standalone, standalone_run = rules.is_retried, True, rules.standalone_run
        number: int | None = 1
        try:
            run_id = pooled_run_id()
        except IndexError:
            run_id = new_id()
    else:
        run = scope.known_run or scope.run
        if delegated_tool.get() is wrapped:
            delegated_tool.set(None)  # the tool may call itself
            rules = wrapped.rules(capture, DELEGATED_OPTIONS)
        elif rules is None or rules.capture is not capture or run.options is not NO_OPTIONS:
            if wrapped.needs_precheck:
                return None
            rules = wrapped.rules(capture, run.options)
        if rules.can_be_refused and rules.targets.states:
            return None
        outer = scope if scope.is_retrying else scope.outer
        enclosing = scope if scope.is_in_progress else None if scope.enclosing is None else scope.attempt
        standalone_run = None
        is_counted = rules.is_retried and (outer is None or not outer.is_retrying or bool(outer.executed_calls))
        if run.is_open:
            is_standalone = False
            parent = scope.number
            if not run.has_started:
                run.start()  # the run of a standalone call, which now contains a second call
        else:
            is_standalone, parent, run = True, None, ActiveRun(rules.capture, "", rules.run_options)
        # Calls inside an unrecorded call are children of its parent.
        number = parent if rules.is_off and not run.capture.is_recording_off else next(run.numbers)
        run_id = run.id
    capture, template, started_at = rules.capture, rules.template, capture.clock()
    positional = args[1:] if wrapped.is_method else args
    values = None
    if len(positional) <= template.safe_positional_count:
        values = simple_journal_values(positional, kwargs, template.recordable_names)
    is_retrying = is_counted and not rules.is_once
    record = SuccessRecord(template, run_id, number or 0, parent, started_at, positional, kwargs, standalone_run)
    call = CapturedCall(
        run, number, outer, is_retrying, wrapped, rules, args, kwargs, run_id, started_at, is_standalone
    )
    first = FirstAttempt(call, record, values)
    if enclosing is not None:
        call.enclosing = enclosing
    if values is None:
        first.copy_arguments()
    if run is not None and run.has_failures and not is_standalone:
        first.facts = call.collect_facts(first.arguments)
    if capture.listeners and not rules.is_off:
        call.run.start()
        capture.publish_safely(StepStarted(first.to_step()))
    if enclosing is not None and rules.has_effects:
        call.has_marked_effects = True
        call.add_executed_call(wrapped.name)
    return first
