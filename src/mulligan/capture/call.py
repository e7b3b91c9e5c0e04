"""Prepares a call for its player: its tool and policy, its plan, and what the plan may ask."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import msgspec

from mulligan.capture.attempt import CallForm, PreparedCall
from mulligan.capture.call_execution import CallExecution
from mulligan.capture.call_scope import CallScope, ContextValue, inner_scope
from mulligan.capture.captured_call import CapturedCall
from mulligan.capture.context import CaptureContext
from mulligan.capture.first_attempt import FirstAttempt
from mulligan.capture.player import aexecute_plan, execute_plan, run_in_thread, run_sync
from mulligan.capture.run import ActiveRun
from mulligan.capture.signature import code_of
from mulligan.capture.wrapped_function import WrappedFunction
from mulligan.core.failure import Failure, Remedy, TookEffect
from mulligan.core.records import VERIFY, Recovery
from mulligan.recover.plan import (
    BLOCKED,
    VERIFIED_EXECUTED,
    VERIFIED_NOT_EXECUTED,
    RecoveryMoves,
    RecoveryQueries,
    plan_recovery,
)
from mulligan.recover.policy import PrerequisiteCall


def prepare_call(
    wrapped: WrappedFunction,
    capture: CaptureContext,
    run: ActiveRun,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    form: CallForm | None = None,
    *,
    is_standalone: bool = False,
) -> CallExecution:
    """Build a call that a player makes from its first attempt on."""
    rules = wrapped.rules(capture, run.options)
    # The scope of a run or step here: neither is the one of the call, which makes no attempt yet.
    scope = inner_scope(capture, run)
    call = CapturedCall(run, None, scope.outer, False, wrapped, rules, args, kwargs, is_standalone=is_standalone)
    call.enclosing = scope.enclosing
    call.start_time = call.capture.timer()
    return _build_execution(call, None, form or CallForm())


def recover_call(first: FirstAttempt) -> CallExecution:
    """Build the rest of a call whose first attempt the wrapper has made, and which failed."""
    return _build_execution(first.call, first, CallForm())


def _build_execution(call: CapturedCall, first: FirstAttempt | None, form: CallForm) -> CallExecution:
    wrapped, rules, capture = call.wrapped, call.rules, call.capture
    mode = "observe" if call.retrying_scope is not None else rules.mode
    learn = "tell" if rules.learn == "repair" and capture.in_prerequisite.get() else rules.learn
    tool = wrapped.tool(mode, learn)
    if mode != rules.mode:
        tool = msgspec.structs.replace(tool, observe_reason="the enclosing call recovers it")
    form.must_check = wrapped.options.schema is not None or (form.must_check and mode != "observe")
    arguments = wrapped.signature.bind(call.args, call.kwargs)
    prepared = PreparedCall(call, arguments, tool, wrapped.options.policy or capture.policy, form)
    return CallExecution(prepared, first, _start_plan)


def _start_plan(execution: CallExecution) -> RecoveryMoves:
    """Return the plan of a call, connected to what it may ask."""
    prepared, call, judge, memory = execution.prepared, execution.call, execution.judge, execution.memory
    wrapped, capture, limits = call.wrapped, call.capture, execution.limits
    has_prerequisites = prepared.tool.learn == "repair" and capture.find_tool is not None
    sources = PlanQueries(execution)
    queries = RecoveryQueries(
        lookup_precedents=memory.lookup_precedents,
        lookup_fixes=None if capture.lookup_fixes is None else memory.lookup_fixes,
        reflect=None if capture.reflector is None else sources.reflect,
        run_prerequisite=_as_query(sources.run_prerequisite, wrapped.is_async) if has_prerequisites else None,
        verify=_as_query(sources.verify, _is_async(wrapped.verify)) if wrapped.verify is not None else None,
        retries=limits.build_queries(execution.can_wait),
        earlier_calls=call.run.earlier_calls,
        changed_arguments=lambda: execution.attempt.find_changed_arguments(call.rules.value_recorder),
        inner_effects=judge.describe_inner_effects,
        retry_layer=lambda: judge.retry_layer,
        has_reader=lambda: call.answers_model,
        was_executed=lambda: limits.was_executed,
        take_repair=lambda: memory.hold_out_repair() or limits.take_repair(),
        find_obstacle=judge.find_obstacle,
    )
    if wrapped.planner is not None:
        return wrapped.planner(execution, prepared.arguments, prepared.tool, prepared.policy, queries)
    request = prepared.form.repaired_request
    initial_repair = None if request is None else request.recovery
    return plan_recovery(prepared.arguments, prepared.tool, prepared.policy, queries, initial_repair)


class PlanQueries:
    """The queries of a plan that call a function of the user: the reflector, `verify` or a prerequisite."""

    def __init__(self, execution: CallExecution) -> None:
        self._execution = execution
        self._call = execution.call

    def reflect(self, failure: Failure, arguments: Mapping[str, Any], tried_calls: Sequence[Mapping[str, Any]]) -> Any:
        """Ask the user's model. A player calls this in a thread if the call is async."""
        return self._call.capture.reflector.reflect(self._execution, failure, arguments, tried_calls)

    async def verify(self, arguments: Mapping[str, Any], failure: Failure) -> object:
        """Ask the developer's `verify` about a call whose outcome is unknown, and apply its answer."""
        execution, call, limits = self._execution, self._call, self._execution.limits
        capture, verify, step = call.capture, call.wrapped.verify, execution.record.step
        assert verify is not None
        started_at, started = capture.now(), capture.timer()
        positional, keywords = call.split_arguments(execution.builder.to_typed(arguments))
        # As a part of the call: what it reads tells the model nothing.
        number = call.number if step is None else step.seq or step.parent
        scope = CallScope(call.run, number, call.retrying_scope, False, enclosing=call.enclosing, is_in_progress=False)
        with ContextValue(capture.current_scope, lambda: scope):
            answer = verify(*positional, **keywords)
            if _is_async(verify):
                answer = await answer
        if answer is None or (answer is False and call.executed_calls):
            return None  # it knows the call alone, not the calls inside it
        lost_answer = limits.lost_answer
        if lost_answer is not None:
            call.run.settle(lambda other: other.call.is_same_as(lost_answer.call))
        if answer is False:
            call.withdraw_effects()
            if lost_answer is not None and lost_answer.failure is not None and BLOCKED in failure.evidence:
                limits.lost_answer = None  # the call may be made now
                return _prove_not_executed(lost_answer.failure)
            execution.attempt.failure = _prove_not_executed(failure)
            return execution.attempt.failure
        execution.answer.note = execution.answer.prompt.verified_note(execution.prepared.tool.name)
        execution.record.use_answer(answer, Recovery(remedy=Remedy.RETRY, source=VERIFY), started_at, started)
        return VERIFIED_EXECUTED

    async def run_prerequisite(self, prerequisite: PrerequisiteCall) -> str:
        """Make a prerequisite call. Return why it failed, or an empty string."""
        call, capture, name = self._call, self._call.capture, f"the prerequisite {prerequisite.tool}"
        wrapped: WrappedFunction | None = capture.find_tool(prerequisite.tool) if capture.find_tool else None
        if wrapped is None:
            return f"{name} is not a tool of this process"
        if wrapped.options.destructive or wrapped.is_stream or wrapped.is_async_stream:
            return f"{name} is destructive or streams, so it is not called automatically"
        if wrapped.is_async and not call.wrapped.is_async:
            return f"{name} is async and {self._execution.prepared.tool.name} is not"
        form = CallForm(has_json_arguments=True)
        execution = prepare_call(wrapped, capture, call.run, (), prerequisite.arguments, form)
        execution.call.answers_model = True  # the note of this call mentions it
        execution.limits.can_block = True  # the program did not ask for it
        with ContextValue(capture.in_prerequisite, lambda: True):
            try:
                if wrapped.is_async:
                    await aexecute_plan(execution)
                elif call.wrapped.is_async:
                    await run_in_thread(execute_plan, execution)
                else:
                    execute_plan(execution)
            except Exception as error:
                if capture.is_control_flow(error):
                    raise
                # The prerequisite records its own error. The call that needs it is not executed then.
        if execution.attempt.failure is not None:
            return f"{name} failed"
        self._execution.answer.prerequisites += (prerequisite,)
        return ""


def _prove_not_executed(failure: Failure) -> Failure:
    evidence = (*failure.evidence, VERIFIED_NOT_EXECUTED)
    return msgspec.structs.replace(failure, took_effect=TookEffect.NO, evidence=evidence)


def _as_query(query: Callable[..., Coroutine[Any, Any, Any]], is_async: bool) -> Callable[..., Any]:
    return query if is_async else lambda *args: run_sync(query(*args))


def _is_async(function: Callable[..., Any] | None) -> bool:
    return function is not None and inspect.iscoroutinefunction(code_of(function))
