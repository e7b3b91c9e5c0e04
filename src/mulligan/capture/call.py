"""One call: its first attempt, the further attempts of its recovery plan, and its end. `call_record.py` records it."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Collection, Coroutine, Generator, Iterable, Mapping, Sequence
from contextvars import Token
from typing import Any

import msgspec

from mulligan.capture.call_origin import mark_exception
from mulligan.capture.call_record import RecordedCall
from mulligan.capture.context import CaptureContext, reset
from mulligan.capture.limits import CallBlockedError, CallLimits, SchemaMismatchError
from mulligan.capture.player import (
    CallMoves,
    Invocation,
    Reply,
    aexecute_plan,
    execute_plan,
    is_on_event_loop,
    run_in_thread,
    run_sync,
)
from mulligan.capture.run import ActiveRun, CallScope, ContextValue, RecoveryScope, inner_scope
from mulligan.capture.run_judge import outcome_of
from mulligan.capture.signature import code_of
from mulligan.capture.value_recording import States, copy_arguments, copy_data
from mulligan.capture.wrapped_function import WrappedFunction
from mulligan.classify.declared_errors import AgentError, InfraError
from mulligan.classify.fingerprint import compute_fingerprint
from mulligan.classify.kinds import KINDS, TOOL_INVALID_ARGUMENTS
from mulligan.core import fork_safety
from mulligan.core.argument_comparison import differing_names, root_of
from mulligan.core.calls import TOOL_NAME_PATH, is_changed_call
from mulligan.core.events import RecoveryPlanned
from mulligan.core.failure import INNER_EFFECTS, Failure, Remedy, TookEffect
from mulligan.core.fast_path import IMMUTABLE_TYPES
from mulligan.core.holdout import REPAIR, is_fix_held_out
from mulligan.core.privileged_arguments import is_privileged
from mulligan.core.records import (
    VERIFY,
    WAIT_METADATA,
    AdvisedFix,
    Fix,
    Outcome,
    Precedent,
    Prerequisite,
    Recovery,
    RecoveryStop,
    Step,
    ValueProfile,
)
from mulligan.prompt import Prompt
from mulligan.recover.plan import (
    BLOCKED,
    MIN_SHOWN_CONFIDENCE,
    VERIFIED_EXECUTED,
    VERIFIED_NOT_EXECUTED,
    AttemptMove,
    Move,
    QueryMove,
    RecoveryFailed,
    RecoveryMoves,
    RecoveryQueries,
    StopMove,
    plan_recovery,
)
from mulligan.recover.policy import PrerequisiteCall, Suggestion, Tool
from mulligan.recover.retry_schedule import BackoffMove, RetryQueries, WaitMove
from mulligan.recover.target_state import TARGET_DOWN
from mulligan.redaction.plain_data import is_resource

MAX_STORED_SUGGESTIONS = 3
"""Suggestions that are stored with a stop reason, for the model or a person."""
MAX_ADVISED_PRECEDENTS = 3
"""What recovered the same failure before: so many does a model read."""
NOTE_PREFIX = "mulligan:"
"""Start of every note on an exception."""
INTERNAL_ERROR = "recovery failed with an internal error, see the log"
STREAM = object()
"""The result of a function that returned a stream: its attempt ends with the stream."""
PlayedMoves = Generator[Invocation | QueryMove, Reply | None, Any]
"""Generator of moves for the player. It receives a reply to each move and returns a result."""


class CallExecution(RecordedCall, eq=False):
    """One call from its first attempt to its end.

    The wrapper makes the first attempt. If it succeeds, `record_success` records it and nothing else is built. If it
    fails, a player plays `moves`: the same attempt is classified, and the plan decides what follows.

    Internal errors are logged and suppressed: a call ends with the function's result or the function's own exception.
    """

    def keep_failure(self, error: BaseException, start_time: float, token: Token[Any]) -> bool:
        """Store the exception of the first attempt, which `moves` classifies later. Return False if it is no failure.

        Such a call is recorded as cancelled.
        """
        if not isinstance(error, Exception) or self.capture.is_control_flow(error):
            self.record_cancelled(error, start_time, token)
            return False
        self.error, self.start_time, self.ended_at = error, start_time, self.capture.timer()
        self.is_retrying = False
        reset(self.capture.current_scope, token)
        return True

    def run_scope(self) -> ActiveRun | contextlib.nullcontext[ActiveRun]:
        """Return a context manager for the run of this call. It ends the run of a standalone call."""
        if self.is_standalone:
            self.run.is_implicit = True
            return self.run
        return contextlib.nullcontext(self.run)  # the caller has entered it already

    def prepare(self) -> None:
        """Build what a player needs."""
        self.is_prepared = True
        wrapped, rules, capture = self.wrapped, self.rules, self.capture
        options = wrapped.options
        mode = "observe" if self.retrying_scope is not None else rules.mode
        learn = "tell" if rules.learn == "repair" and capture.in_prerequisite.get() else rules.learn
        self.arguments = self.attempt_arguments = wrapped.signature.bind(self.args, self.kwargs)
        self._last_call = self.args, self.kwargs
        self.tool = wrapped.tool(mode, learn)
        if mode != rules.mode:
            self.tool = msgspec.structs.replace(self.tool, observe_reason="the enclosing call recovers it")
        self.policy = options.policy or capture.policy
        self.must_check = options.schema is not None or (self.must_check and mode != "observe")
        if self.ended_at is None:
            self.start_time = capture.timer()
        self._attempt_start = self.start_time
        self.limits = CallLimits(
            capture,
            self.run,
            self.tool,
            self.policy,
            rules.targets,
            options.type,
            lambda arguments, function: wrapped.find_target(arguments, self.args, function),
            wrapped.owner(self.args),
        )
        if options.holdout and self.run.options.holdout:
            self.limits.repair_holdout = capture.holdout_repairs
        self.limits.set_deadline(None if options.timeout is None else self.start_time + options.timeout)

    def _plan(self) -> RecoveryMoves:
        wrapped, limits = self.wrapped, self.limits
        has_prerequisites = self.tool.learn == "repair" and self.capture.find_tool is not None
        queries = RecoveryQueries(
            lookup_precedents=self._lookup_precedents,
            lookup_fixes=None if self.capture.lookup_fixes is None else self._lookup_fixes,
            reflect=None if self.capture.reflector is None else self._reflect,
            run_prerequisite=_as_query(self._run_prerequisite, wrapped.is_async) if has_prerequisites else None,
            verify=_as_query(self._verify, _is_async(wrapped.verify)) if wrapped.verify is not None else None,
            retries=self._build_retry_queries(),
            earlier_calls=self.run.earlier_calls,
            changed_arguments=self._changed_arguments,
            inner_effects=self._describe_inner_effects,
            retry_layer=lambda: self.retry_layer,
            has_reader=lambda: self.answers_model,
            was_executed=lambda: limits.was_executed,
            take_repair=limits.take_repair,
            find_obstacle=self._find_obstacle,
        )
        if wrapped.planner is not None:
            return wrapped.planner(self, self.arguments, self.tool, self.policy, queries)
        initial_repair = None if self.repaired_request is None else self.repaired_request.recovery
        return plan_recovery(self.arguments, self.tool, self.policy, queries, initial_repair)

    def _build_retry_queries(self) -> RetryQueries:
        limits, waiting_call = self.limits, self._find_waiting_call()
        limits.started_at = self.start_time if waiting_call is None else waiting_call.start_time
        limits.retry_limits = self.policy.limit_retries(
            answers_model=waiting_call is not None,
            has_timeout=self.wrapped.options.timeout is not None,
            client_retries=getattr(self.wrapped.function, "client_retries", 0),
        )
        return RetryQueries(
            limits=limits.retry_limits,
            elapsed=limits.elapsed,
            random=self.capture.random,
            can_wait=self._can_wait,
            seconds_left=limits.seconds_left,
            is_target_down=limits.is_target_down,
            has_token=limits.has_token,
            describe_target=self._describe_target,
            take_turn=limits.take_turn,
        )

    def _find_waiting_call(self) -> CallExecution | None:
        """Return the outermost call that answers a model, this one or one around it."""
        waiting_call: CallExecution | None = None
        scope: CallScope | None = self
        while scope is not None:
            if isinstance(scope, CallExecution) and scope.answers_model:
                waiting_call = scope
            scope = scope.enclosing
        return waiting_call

    def _describe_target(self) -> str:
        """Return the name of the target, without values of arguments if none are recorded."""
        return self.tool.name if self.rules.value_recorder.is_shape else self.limits.describe_target()

    def _can_wait(self) -> bool:
        """Return whether the call may sleep. A sync call on the thread of an event loop would stop all its tasks."""
        if self.is_played_async or not is_on_event_loop():
            return True
        self._warn_of_event_loop()
        return False

    def moves(self) -> CallMoves:
        """Yield the moves of this call to the player. Each receives its result and its exception.

        The plan yields what to do next. An `AttemptMove` of it leaves here as an `Invocation` of the function, except
        the first one if the wrapper has already made that attempt.
        """
        if not self.is_prepared:
            self.prepare()
        if self.repaired_request is not None:
            self.record_rejected(self.repaired_request)
        plan = self._plan()
        answer: Any = None
        while (move := self._advance_plan(plan, answer)) is not None:
            answer = None
            match move:
                case AttemptMove():
                    answer = yield from self._attempt(move)
                case BackoffMove() | WaitMove():
                    self._plan_backoff(move)
                    _, error = (yield move) or (None, None)
                    if error is not None:
                        self.capture.log_internal_error("Backoff", error)
                        plan.close()  # an attempt without its backoff is what a rate limit prevents
                case QueryMove():
                    answer = yield from self._query(move)
        yield None

    def _attempt(self, move: AttemptMove) -> PlayedMoves:
        """Make an attempt, or continue with the one that the wrapper made. Return its failure, or None."""
        result: Any = None
        error: Exception | None = None
        if self.has_wrapper_attempt:
            with self.capture.guard("Recording the start of a call"):
                self.record_start(move)
                if self.run.lost_answers:
                    self.limits.lost_answer = self.find_lost_answer()
            self.attempt_count, self._is_admitted = 1, True
            result, error = self.result, self.error
        else:
            try:
                invocation = self._start_attempt(move)
            except (CallBlockedError, SchemaMismatchError) as rejection:
                error = rejection
            else:
                result, error = (yield invocation) or (None, None)
        failure = self._end_returned(result) if error is None else self._end_failed(error)
        if failure is not None and move.recovery is not None and move.recovery.source == "reflection":
            # In a thread of the player: the outcome is stored.
            note = self.capture.reflector.note_failed_repair
            yield from self._query(QueryMove(note, (self.run.id, self.number or 0), "The outcome of a reflection"))
        result = error = None  # a frame that refers to its own exception is a reference cycle
        step, run = self._step, self.run
        if step is not None and self._outcome == "failure" and not run.is_implicit and run.judge.needs_items(step):
            # When a tool fails for the first time in its run. A move, because a store may be slow, and an async
            # caller's event loop must not wait for it.
            load = run.judge.load_items
            arguments = step.tool_key, self.capture.item_arguments
            yield from self._query(QueryMove(load, arguments, "Looking up the arguments that name items"))
        return failure

    def _query(self, move: QueryMove) -> PlayedMoves:
        answer, error = (yield move) or (None, None)
        if error is not None:
            self.capture.log_internal_error(move.name, error)
        return answer

    def _advance_plan(self, plan: RecoveryMoves, answer: Any) -> Move | None:
        """Send the answer to the plan and return its next move, or None.

        Records the last attempt only now: its record says whether recovery stops, and why.
        """
        move: Move | None = None
        is_planned = False
        with self.capture.guard("Recovery planning"):
            try:
                move = plan.send(answer)
            except StopIteration as stop:
                self.recovery_failed = stop.value
                self._note_advice()
            is_planned = True
        if not is_planned and self.attempt_count == 0:
            move = AttemptMove(self.arguments)  # the call itself is made in any case
        if isinstance(move, BackoffMove) and self._step is not None:
            self._step = _note_wait(self._step, move)
        # After a query, the plan may still stop, and an attempt recorded before it would lack the stop reason.
        if not isinstance(move, QueryMove) or isinstance(move, StopMove):
            if self._step is not None and self.ended_at is not None:
                self.record_end(self._stop_reason(move))
            elif self._planned is not None and not isinstance(move, AttemptMove | BackoffMove | WaitMove):
                self.record_skipped(self._stop_reason(move))
        return move

    def _plan_backoff(self, move: BackoffMove | WaitMove) -> None:
        """Publish the planned recovery before the backoff. Listeners see it; no store needs it."""
        if isinstance(move, WaitMove):
            self.backoffs = (*self.backoffs[:-1], sum(self.backoffs[-1:]) + move.seconds)
            return
        if self._last_step is not None:
            recovery = self.rules.value_recorder.recovery(move.recovery) or move.recovery
            self.capture.publish_safely(RecoveryPlanned(_note_wait(self._last_step, move), recovery))
        self._planned = move.recovery
        if move.sleep_seconds:
            self.backoffs += (move.sleep_seconds,)

    def _warn_of_event_loop(self) -> None:
        """Warn, once per tool, that this sync call may not wait for a retry."""
        name = self.tool.name
        self.capture.warn_once(
            self.tool.key,
            "event loop",
            "%s is not async and was called on the event loop, which a backoff would block. It is retried once, at "
            "once. Define it with `async def`, or call it with `await asyncio.to_thread(%s, ...)` or "
            "`await turn.acall(...)`. This warning appears once per tool.",
            name,
            name,
        )

    def _start_attempt(self, move: AttemptMove) -> Invocation:
        """Start an attempt. Raises if it must not be made, before anything can execute."""
        capture = self.capture
        self._planned = self.ended_at = self.failure = None
        self.limits.was_executed = False
        if move.arguments is not self.attempt_arguments:
            self.argument_version += 1
        self.attempt_arguments, self.replacement = move.arguments, move.function
        with capture.guard("Recording the start of a call"):
            self.record_start(move)
        self.attempt_count += 1
        if self._step is not None:
            is_repeatable = self.tool.is_retry_safe and self.tool.mode != "observe" and self.policy.allows_recovery
            scope_class = RecoveryScope if self.attempt_count > 1 else CallScope
            self._scope = scope_class(
                self.run,
                self._step.seq or self._step.parent,
                self.outer,
                is_repeatable and self.retrying_scope is None,
                enclosing=self,
            )
            has_timeout = self.wrapped.options.timeout is not None
            self._context_tokens = (
                capture.current_scope.set(self._scope),
                capture.deadline.set(self.limits.deadline) if has_timeout else None,
            )
        self._attempt_start = capture.timer()
        if not self._is_admitted:
            self._is_admitted = True
            failure = None
            with capture.guard("The limits of a call"):
                failure = self.limits.admit_first(move.arguments, move.has_substitute)
            if failure is not None:
                raise CallBlockedError(failure)
        if self.must_check:
            self.wrapped.check(move.arguments)
        try:
            invocation = self._invocation(self._typed_arguments(move.arguments))
            self._find_repetition()
            if self.rules.has_effects:
                self.mark_effects()
            if self.attempt_count > 1 and self.enclosing is not None:
                self.add_retried_call(self.tool.name)
            return invocation
        except SchemaMismatchError as mismatch:
            # What a validator raised on purpose ends the attempt as if the tool had raised it.
            for error in filter(self._is_raised_on_purpose, mismatch.causes):
                return Invocation(_raise, (error,), {})
            raise

    def _find_repetition(self) -> None:
        """Find the same call whose answer was lost. Raises if a model asks for it again in our own loop.

        Before each attempt: a repair may lead to the same call.
        """
        with self.capture.guard("Looking for a lost answer of the same call"):
            self.limits.lost_answer = self.find_lost_answer() if self.run.lost_answers else None
            if not self.tool.is_retry_safe:
                self._call_identity = self.identify_call()  # now: the function may change its arguments
        if self.rules.mode != "observe":
            self.limits.refuse_repetition()

    def _is_raised_on_purpose(self, error: Exception) -> bool:
        # An iterator that ends inside a validator ends no iteration of the caller.
        is_control_flow = self.capture.is_control_flow(error) and not isinstance(
            error, StopIteration | StopAsyncIteration
        )
        return is_control_flow or isinstance(error, AgentError | InfraError)

    def _typed_arguments(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the arguments for the function. Records, fingerprints and repairs use the JSON arguments."""
        return self.wrapped.convert(arguments) if self.has_json_arguments else arguments

    def _leave(self) -> None:
        if self._scope is not None:
            self._scope.is_retrying = self._scope.is_in_progress = False
        tokens, self._context_tokens = self._context_tokens, None
        if tokens is not None:
            reset(self.capture.current_scope, tokens[0])
            if tokens[1] is not None:
                reset(self.capture.deadline, tokens[1])

    def _changed_arguments(self) -> list[str]:
        """Return the arguments that the last attempt has modified in place.

        They are neither restored nor replaced: the caller may pass an object to be filled, and other code may share it.
        """
        arguments, step, recorder = self.attempt_arguments, self._step, self.rules.value_recorder
        names = [name for name, value in arguments.items() if type(value) not in IMMUTABLE_TYPES]
        if step is None or not names:
            return []
        states: States = {}
        before, states_before = step.arguments if self.values is None else self.values, self.states or {}
        if recorder.is_model:
            now = recorder.arguments(arguments, self.replacement is not None, states)[0]
        else:
            now = copy_arguments(arguments, states)
        return [
            name
            for name in names
            if not is_resource(arguments[name])
            and (now.get(name) != before.get(name) or states.get(name) != states_before.get(name))
        ]

    def _describe_inner_effects(self) -> str:
        """Return why a call inside the last attempt forbids to repeat it, or an empty string."""
        if self.executed_calls:
            return f"{self.executed_calls[0]} may have executed inside this attempt"
        if self.retried_call and self.tool.is_retry_safe:
            return f"{self.retried_call} was retried inside this attempt"
        return ""

    def _find_obstacle(self) -> str:
        # Asked again after the backoff: a task that the attempt has started may have executed a call since.
        return self._describe_inner_effects() or self.limits.find_obstacle()

    def _invocation(self, arguments: Mapping[str, Any]) -> Invocation:
        wrapped = self.wrapped
        self._last_call = self.args, self.kwargs
        if wrapped.options.fresh_arguments:
            arguments = {name: copy_data(value) for name, value in arguments.items()}
        if arguments is not self.arguments:  # otherwise the call stays exactly as the caller made it
            positional, keywords = self.split_arguments(arguments)
            self._last_call = tuple(positional), keywords
        function, open_stream = self.replacement or wrapped.function, self.open_stream
        if open_stream is not None:
            function = _compose(open_stream, function)
        function = self.with_timeout(function)
        if self.adapt is not None:
            function = self.adapt(function)
        return Invocation(function, *self._last_call)

    def split_arguments(self, arguments: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Split arguments by name for a call of the function, with the injected values of this call."""
        return self.wrapped.signature.split_arguments({**self.injected_values, **arguments}, self.args)

    @property
    def injected_values(self) -> dict[str, Any]:
        """The values of injected parameters, which are neither recorded nor changed."""
        return self.wrapped.signature.bind_injected(self.args, self.kwargs)

    def with_timeout(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return an async function that ends at the deadline of the call, if it has a timeout."""
        timeout = self.wrapped.options.timeout
        if timeout is None or not self.wrapped.is_async:
            return function

        async def call(*args: Any, **kwargs: Any) -> Any:
            import asyncio  # lazy: sync programs do not need it

            message = f"{self.wrapped.name} did not answer in {timeout:g} s."
            seconds = self.limits.seconds_left()
            if seconds is not None and seconds <= 0:
                raise TimeoutError(message)
            try:
                async with asyncio.timeout(seconds) as clock:
                    return await function(*args, **kwargs)
            except TimeoutError:
                if clock.expired():
                    raise TimeoutError(message) from None
                raise

        return call

    def _end_returned(self, result: Any) -> Failure | None:
        """End an attempt that returned. Return the failure that its result is; mostly there is none."""
        self.error = self.failure = self.suspected = None
        self.result = result
        self._leave()
        if result is STREAM:
            return None
        if self.ended_at is None:
            self.ended_at = self.capture.timer()
        checker = self.rules.result_checker
        if checker is not None:
            rejects = self.wrapped.options.rejection_statuses
            failure = checker.failure(self.capture, result, self.attempt_arguments, frozenset(rejects))
            self.failure = None if failure is None else self._add_inner_effects(failure)
            if failure is None:
                verdict = checker.judge(result, self.attempt_arguments)
                self.suspected = checker.suspect(self.capture, verdict, self.attempt_arguments)
            if self.failure is not None and self.tool.mode == "repair":
                repaired = checker.repair(result, self.attempt_arguments)
                if repaired is not None:
                    if self._step is not None:
                        metadata = {**(self._step.metadata or {}), "repaired_output": self.failure.message}
                        self._step = msgspec.structs.replace(self._step, metadata=metadata)
                    self.failure, self.result = None, repaired
        self.limits.mark_executed()
        self._end_attempt("success" if self.failure is None else outcome_of(self.failure))
        if self.failure is not None:
            self._find_retry_layer(None)
        return self.failure

    def _end_failed(self, error: Exception) -> Failure:
        """End an attempt that raised. Return its failure."""
        if self.ended_at is None:
            self.ended_at = self.capture.timer()
        self._leave()
        self.error, self.result, self.suspected = error, None, None
        self.failure = self._add_inner_effects(self._classify(error))
        mark_exception(error, self.run.id, self.number or 0)
        self._end_attempt(outcome_of(self.failure))
        self._find_retry_layer(error)
        return self.failure

    def _add_inner_effects(self, failure: Failure) -> Failure:
        """Return the failure of an attempt. If a call inside it may have executed, so may the attempt itself."""
        if self.executed_calls:
            self.tool = msgspec.structs.replace(self.tool, effects="once")
            took_effect = TookEffect.UNKNOWN if failure.took_effect is TookEffect.NO else failure.took_effect
            return msgspec.structs.replace(
                failure, took_effect=took_effect, evidence=(*failure.evidence, INNER_EFFECTS)
            )
        if failure.took_effect is TookEffect.NO:
            self.withdraw_effects()
        return failure

    def _find_retry_layer(self, error: Exception | None) -> None:
        """Find out whether a retry library or a client retries this call too."""
        self.retry_layer = None
        if self.tool.mode == "observe" or not self.policy.allows_recovery or not self.limits.was_executed:
            return
        with self.capture.guard("Looking for other retries of a call"):
            with fork_safety.import_lock:
                from mulligan.capture import retry_layers  # lazy: needed after a failure only
            if error is None:
                layer = retry_layers.find_decorator_below(self.wrapped.function, self.result)
            else:
                layer = retry_layers.find_layer_below(error)
            if layer is None and not self.answers_model:  # otherwise no caller gets the exception
                layer = retry_layers.find_layer_above(error, self.result)
            self.retry_layer = layer

    def _end_attempt(self, outcome: Outcome) -> None:
        """Count the end of an attempt. It is recorded with the next move of the plan."""
        if self.ended_at is None:
            self.ended_at = self.capture.timer()
        self._outcome = outcome
        if self.failure is not None and self.limits.was_executed:
            self.limits.has_executed_failure = True
        if outcome != "cancelled":
            with self.capture.guard("The limits of a call"):
                recovery = None if self._step is None else self._step.recovery
                self.limits.record_result(
                    self.attempt_arguments,
                    self.failure,
                    self.replacement,
                    seconds=self.ended_at - self._attempt_start,
                    is_retry=recovery is not None and recovery.remedy is Remedy.RETRY,
                )

    def _classify(self, error: Exception) -> Failure:
        if isinstance(error, CallBlockedError):
            return error.failure
        options = self.wrapped.options
        facts: dict[str, Any] = {}
        if options.rejection_statuses:
            facts["rejection_statuses"] = options.rejection_statuses
        if self.wrapped.is_listed:
            facts["is_listed"] = True
        failure = self.capture.classify_safely(
            error,
            source=options.type,
            tool=self.tool.name,
            arguments=self.attempt_arguments,
            category=self.wrapped.category,
            **facts,
        )
        if isinstance(error, SchemaMismatchError):
            return failure
        if not (_is_raised_by_call(error) and self.wrapped.signature.rejects_call(*self._last_call)):
            self.limits.mark_executed()
            return failure
        return Failure.of(
            TOOL_INVALID_ARGUMENTS,
            failure.message,
            took_effect=TookEffect.NO,
            fingerprint=compute_fingerprint(
                TOOL_INVALID_ARGUMENTS, self.tool.name, failure.message, self.attempt_arguments
            ),
            detail=failure.detail,
            exception=failure.exception,
            trace=failure.trace,
            evidence=("TypeError before the function began", *failure.evidence),
        )

    def _stop_reason(self, move: Move | None) -> RecoveryStop | None:
        """Return why recovery stops, if the move shows that it does. Count the call as unrecovered."""
        suggestions: Sequence[Suggestion] = ()
        if self.failure is None:
            return None
        if isinstance(move, StopMove):
            _, reason, suggestions = move.arguments
        elif self._is_cancelled:
            self.stop = RecoveryStop(reason="the call was cancelled")
            return self.stop
        elif move is None:
            reason = self.recovery_failed.reason if self.recovery_failed else INTERNAL_ERROR
        else:
            return None
        with self.capture.guard("Recording the stop reason"):
            if TARGET_DOWN not in reason and self.limits.is_target_down():
                reason = f"{reason}; {TARGET_DOWN}"
            reason = self._name_retry_layer(reason)
            spiral = self.limits.record_unrecovered(self.arguments, self.failure)
            may_be_lost = self.limits.was_executed and (not self.tool.is_retry_safe or self.run.lost_answers)
            if may_be_lost and self._step is not None:
                self.note_lost_answer(self._call_identity or self.identify_call(), self._step, self.failure)
            recoveries = [
                Recovery(
                    remedy=Remedy.REPAIR,
                    changes=suggestion.changes,
                    source=suggestion.source,
                    confidence=suggestion.confidence,
                    prerequisites=tuple(prerequisite.tool for prerequisite in suggestion.prerequisites),
                )
                for suggestion in suggestions
                # suggestions from memory are shown as precedents instead
                if suggestion.source != "memory" and (suggestion.changes or suggestion.source == "reflection")
            ]
            self.stop = RecoveryStop(
                reason=reason, suggestions=tuple(recoveries[:MAX_STORED_SUGGESTIONS]), spiral=spiral
            )
            if not self.answers_model:
                if spiral:
                    self.run.add_note(spiral)
                if self.limits.is_note_new:  # once per streak: a poller would fill its run with notes
                    self.run.add_note(self._repeat_note(self.tool.name), until_success_of=self.tool.name)
        return self.stop

    def _note_advice(self) -> None:
        """Note which fixes the answer or the note on the exception will tell."""
        precedents = self.recovery_failed.precedents if self.recovery_failed is not None else ()
        fixes = [precedent.fix for precedent in precedents[:MAX_ADVISED_PRECEDENTS] if precedent.fix]
        call = self.number or 0
        advice = [AdvisedFix(call, fix) for fix in fixes]
        advice += [AdvisedFix(call, fix, held_out=True) for fix in self.held_out_fixes]
        if self.limits.is_repair_held_out:
            advice.append(AdvisedFix(call, REPAIR, held_out=True))
        if advice:
            self.run.judge.note_advice(self.tool.name, advice)

    def _name_retry_layer(self, reason: str) -> str:
        """Return the stop reason. If another layer retries, it names that one, and is logged once for each tool."""
        layer, failure = self.retry_layer, self.failure
        if layer is None or failure is None:
            return reason
        kind = KINDS.get(str(failure.kind), failure.kind)
        if kind.remedy is not failure.remedy or kind.are_retries_exhausted:
            # An error that says itself that all retries failed is classified as one that no retry recovers.
            max_attempts = self.limits.retry_limits.attempts
            reason = layer.find_stop_reason(self.attempt_count + 1, max_attempts, is_retry=True)
        if reason.startswith(layer.name):
            self.capture.warn_once(
                self.tool.key,
                layer.name,
                "%s: %s. To let mulligan retry, turn those retries off. This message appears once per tool.",
                self.tool.name,
                reason,
            )
        return reason

    def end(self) -> Any:
        """Return the result, or raise the original exception with a note about what was tried.

        A result that is a failure is returned: the caller knows what it means.
        """
        self.is_in_progress = False
        self.limits.leave_target()
        error, self.error = self.error, None  # an exception whose frames hold it would live too long
        with self.capture.guard("Adding the exception note"):
            if error is not None:
                self._add_exception_note(error)
            elif self.failure is None:
                prompt, name = self.prompt, self.tool.name
                if self.changes:
                    self.note = self.repair_note(name)
                if self.prerequisites:
                    prerequisites = prompt.prerequisites_made(name, list(_to_prerequisites(self.prerequisites)))
                    self.note = " ".join(filter(None, (self.note, prerequisites)))
                self.note = " ".join(filter(None, (self.note, self.repeated_call_note(name))))
                if self.note and not self.answers_model:
                    self.run.add_note(self.note)
        if error is None:
            return self.result
        try:
            raise error
        finally:
            del error  # an exception whose frames hold it would live too long

    def end_cancelled(self, error: BaseException) -> None:
        """Record that the call was interrupted, which is no failure."""
        self.is_in_progress = False
        self._leave()
        self.limits.leave_target()
        self._is_cancelled = True
        if self._step is not None and self.ended_at is None:
            self.failure = self.result = None
            self.is_cut_off = self._step.attempt == 1 and self.capture.cuts_call_off(error)
            self._end_attempt("cancelled")
            with self.capture.guard("Noting a lost answer"):
                self.note_cut_off(self._step, error)
        if self._step is not None:
            self.record_end(self._stop_reason(None))
        elif self._planned is not None:
            self.record_skipped(self._stop_reason(None))

    @property
    def is_streaming(self) -> bool:
        """Whether the result is a stream that has begun: its attempt is still in progress."""
        return self.result is STREAM

    def end_stream(self, items: int, error: BaseException | None) -> None:
        """Record the end of the stream. After its first item nothing is attempted again."""
        if error is None:
            self.result = {"$stream": items}
            self._end_attempt("success")
            self.record_end(None)
        elif isinstance(error, Exception) and not self.capture.is_control_flow(error):
            failure = self._end_failed(error)
            self.recovery_failed = RecoveryFailed(failure, "the first items of the stream were already delivered")
            with self.capture.guard("Adding the exception note"):
                self.record_end(self._stop_reason(None))
                self._add_exception_note(error)
        else:
            self.end_cancelled(error)

    def _add_exception_note(self, error: Exception) -> None:
        """Add the note to an exception in place of an earlier one: some exceptions are raised again and again."""
        if self.retrying_scope is not None or self.failure is None:
            return  # the scope that retries adds its own note
        note = self._exception_note(self.recovery_failed or RecoveryFailed(self.failure, INTERNAL_ERROR))
        earlier_notes: list[str] = getattr(error, "__notes__", [])
        earlier_notes[:] = [earlier for earlier in earlier_notes if not earlier.startswith(NOTE_PREFIX)]
        with contextlib.suppress(AttributeError, TypeError):  # some exceptions are frozen
            error.add_note(note)

    def _exception_note(self, recovery_failed: RecoveryFailed) -> str:
        """Build the note on an exception: the attempts, the stop reason, suggestions and precedents."""
        prompt, failure, stop = self.prompt, recovery_failed.failure, self.stop
        note = prompt.exception_note(
            failure,
            attempts=0 if BLOCKED in failure.evidence else self.attempt_count,
            seconds=(self.ended_at or self.capture.timer()) - self.start_time,  # without our own work after it
            backoffs=self.backoffs,
            stop_reason=recovery_failed.reason if stop is None else stop.reason,
            run="" if self.capture.is_recording_off else self.run.id,
            show_run=self.capture.show_run,
        )
        lines = [note, self._repeat_note(self.tool.name)]
        if stop is not None:
            lines.append(stop.spiral)
            lines += [f"{NOTE_PREFIX} {suggestion}" for suggestion in prompt.suggestions(stop.suggestions[:2])]
        for precedent in recovery_failed.precedents[:2]:
            lines += [f"{NOTE_PREFIX} {line}" for line in prompt.precedent_lines(precedent)]
        return "\n".join(filter(None, lines))

    def repair_note(self, tool: str) -> str:
        """Return the note about the changes of this call. `tool` is its name, as the model knows it."""
        return self.prompt.note(tool, self.changes, was_rejected=self.limits.has_executed_failure)

    def _repeat_note(self, tool: str) -> str:
        count = self.limits.identical_failures
        note = self.prompt.identical_failure_note(tool, count) if count else ""
        return " ".join(filter(None, (note, self.repeated_call_note(tool))))

    def repeated_call_note(self, tool: str) -> str:
        """Return the note if the call was made although the answer of the same call was lost; otherwise empty."""
        is_repeated = self.limits.lost_answer is not None and self.limits.was_executed
        return self.prompt.repeated_call_note(tool) if is_repeated else ""

    @property
    def final_failure(self) -> Failure | None:
        """The failure that recovery could not handle, or that of the last attempt."""
        return self.recovery_failed.failure if self.recovery_failed is not None else self.failure

    def failure_answer(
        self,
        tool: str,
        *,
        names: Sequence[str] = (),
        all_names: Sequence[str] = (),
        shareable: Collection[str] = (),
        author: str = "",
    ) -> dict[str, Any]:
        """Build the answer for a model about a failed call. `names` are tools that it may have intended.

        If there are none, `all_names` are the tools that exist.

        `author` said the message, if not the tool: no tool says that it does not exist, nor rejects a call that it
        never got.
        """
        failure, stop = self.final_failure, self.stop
        if not self.limits.was_executed:
            author = author or "mulligan"
        assert failure is not None
        return self.prompt.answer(
            failure,
            tool=author or tool,
            precedents=self.recovery_failed.precedents[:MAX_ADVISED_PRECEDENTS] if self.recovery_failed else (),
            names=names,
            all_names=all_names,
            shareable=shareable,
            has_effects=not self.tool.is_retry_safe,
            executed_call=self.executed_calls[0] if self.executed_calls else "",
            suggested=[
                suggestion
                for suggestion in (stop.suggestions if stop is not None else ())
                if all(change.path != TOOL_NAME_PATH for change in suggestion.changes)  # other names are in `names`
            ],
            spiral=stop.spiral if stop is not None else "",
            repeat_note=self._repeat_note(tool),
            facts=self.value_facts,
            schema=self._read_schema() if failure.kind.rejects_arguments else None,
            arguments=self.attempt_arguments,
        )

    def _read_schema(self) -> Mapping[str, Any] | None:
        """Return the schema of the tool, or None if there is none or reading it fails."""
        with self.capture.guard("Reading a schema for a hint"):
            schema = self.tool.schema()
            return schema if isinstance(schema, Mapping) else None
        return None

    @property
    def prompt(self) -> Prompt:
        """Builds the texts for a model, without secrets of the call's arguments."""
        return self.capture.prompt.for_arguments(*self.all_arguments)

    @property
    def all_arguments(self) -> list[Mapping[str, Any]]:
        """The arguments of the first and the last attempt. Of a model call without the conversation, which it knows."""
        first, last = self.arguments, self.attempt_arguments
        attempts = [last] if first is last else [last, first]
        if self.wrapped.options.type != "model":
            return attempts
        with fork_safety.import_lock:
            from mulligan.core import conversation  # lazy: needed for models only
        return [
            {name: arguments[name] for name in arguments if name != conversation.conversation_argument(arguments)}
            for arguments in attempts
        ]

    def _lookup_precedents(
        self, failure: Failure, reason: str, suggestions: Sequence[Suggestion]
    ) -> Sequence[Precedent]:
        if self.capture.lookup_facts is not None and self.answers_model and self.tool.learn != "off":
            facts = self.capture.lookup_facts(self.tool.name, self.tool.key, failure, self.attempt_arguments)
            self.value_facts = _select_facts(facts, self.tool, suggestions)
        precedents = self.find_precedents(failure)
        allows_holdout = self.wrapped.options.holdout and self.run.options.holdout
        share = self.capture.holdout if allows_holdout else 0.0
        held_out = [precedent for precedent in precedents if is_fix_held_out(precedent, self.run.trace_id, share)]
        self.held_out_fixes = tuple(precedent.fix for precedent in held_out)
        tellable = [precedent for precedent in precedents if precedent not in held_out]
        return _select_precedents(tellable, failure, self.tool, suggestions)

    def find_precedents(self, failure: Failure) -> Sequence[Precedent]:
        """Return what recovered the same failure before, unless the tool does not use memory.

        What this run has tried for the same call, and failed with, is left out. So is what the model has read after
        its last call, if it chose to change another argument: it would now read it about a call that differs in two.
        """
        if self.tool.learn == "off":
            return ()
        arguments = self.attempt_arguments
        precedents = self.capture.lookup_precedents(self.tool.name, self.tool.key, failure, arguments)
        failed_arguments = [
            call.arguments
            for call in (self.run.earlier_calls() if precedents else ())
            if call.tool == self.tool.name and call.outcome == "failure" and isinstance(call.arguments, Mapping)
        ]
        judge = self.run.judge
        failed_calls = judge.list_open_arguments(self.rules.template.tool_key)
        other_calls = [failed for failed in failed_calls if failed != arguments]
        other_names = differing_names(other_calls[-1], arguments) if other_calls else set()
        is_other_change = self.answers_model and len(other_names) == 1
        ignored_fixes = judge.list_advice(self.tool.name) if is_other_change else ()
        return [
            precedent
            for precedent in precedents
            if not any(is_changed_call(failed, arguments, precedent.changes) for failed in failed_arguments)
            and (
                precedent.fix not in ignored_fixes
                or any(root_of(change.path) in other_names for change in precedent.changes)
            )
        ]

    def find_profiles(self) -> Sequence[ValueProfile]:
        """Return what successful calls of the tool had in common, unless it does not use memory."""
        if self.tool.learn == "off" or self.capture.lookup_profiles is None:
            return ()
        return _select_facts(self.capture.lookup_profiles(self.tool.name, self.tool.key), self.tool, ())

    def _lookup_fixes(self, failure: Failure, arguments: Mapping[str, Any]) -> Sequence[Fix]:
        assert self.capture.lookup_fixes is not None
        schema = self.tool.schema()
        digest = ""
        if schema:
            with fork_safety.import_lock:
                from mulligan.recover.schema import compile_schema  # lazy: needed after a failure only
            digest = compile_schema(schema).digest
        return self.capture.lookup_fixes(self.tool.name, self.tool.key, failure, arguments, digest)

    def _reflect(self, failure: Failure, arguments: Mapping[str, Any], tried_calls: Sequence[Mapping[str, Any]]) -> Any:
        """Ask the user's model. A player calls this in a thread if the call is async."""
        return self.capture.reflector.reflect(self, failure, arguments, tried_calls)

    async def _verify(self, arguments: Mapping[str, Any], failure: Failure) -> object:
        """Ask the developer's `verify` about a call whose outcome is unknown, and apply its answer."""
        assert self.wrapped.verify is not None
        started_at, started = self.capture.now(), self.capture.timer()
        positional, keywords = self.split_arguments(self._typed_arguments(arguments))
        # As a part of the call: what it reads tells the model nothing.
        number = self.number if self._step is None else self._step.seq or self._step.parent
        scope = CallScope(self.run, number, self.retrying_scope, False, enclosing=self.enclosing, is_in_progress=False)
        with ContextValue(self.capture.current_scope, lambda: scope):
            answer = self.wrapped.verify(*positional, **keywords)
            if _is_async(self.wrapped.verify):
                answer = await answer
        if answer is None or (answer is False and self.executed_calls):
            return None  # it knows the call alone, not the calls inside it
        lost_answer = self.limits.lost_answer
        if lost_answer is not None:
            self.run.settle(lambda other: other.call.is_same_as(lost_answer.call))
        if answer is False:
            self.withdraw_effects()
            if lost_answer is not None and lost_answer.failure is not None and BLOCKED in failure.evidence:
                failure, self.limits.lost_answer = lost_answer.failure, None  # the call may be made now
                return _prove_not_executed(failure)
            self.failure = _prove_not_executed(failure)
            return self.failure
        self.note = self.prompt.verified_note(self.tool.name)
        self.use_answer(answer, Recovery(remedy=Remedy.RETRY, source=VERIFY), started_at, started)
        return VERIFIED_EXECUTED

    async def _run_prerequisite(self, prerequisite: PrerequisiteCall) -> str:
        """Make a prerequisite call. Return why it failed, or an empty string."""
        capture, name = self.capture, f"the prerequisite {prerequisite.tool}"
        wrapped: WrappedFunction | None = capture.find_tool(prerequisite.tool) if capture.find_tool else None
        if wrapped is None:
            return f"{name} is not a tool of this process"
        if wrapped.options.destructive or wrapped.is_stream or wrapped.is_async_stream:
            return f"{name} is destructive or streams, so it is not called automatically"
        if wrapped.is_async and not self.wrapped.is_async:
            return f"{name} is async and {self.tool.name} is not"
        call = prepare_call(wrapped, capture, self.run, (), prerequisite.arguments, has_json_arguments=True)
        call.answers_model = True  # the note of this call mentions it
        call.limits.can_block = True  # the program did not ask for it
        with ContextValue(capture.in_prerequisite, lambda: True):
            try:
                if wrapped.is_async:
                    await aexecute_plan(call)
                elif self.wrapped.is_async:
                    await run_in_thread(execute_plan, call)
                else:
                    execute_plan(call)
            except Exception as error:
                if capture.is_control_flow(error):
                    raise
                # The prerequisite records its own error. The call that needs it is not executed then.
        if call.failure is not None:
            return f"{name} failed"
        self.prerequisites += (prerequisite,)
        return ""


def _note_wait(step: Step, move: BackoffMove) -> Step:
    """Return a failed attempt with what its call waits for, if its target is down, so that other processes can tell."""
    if not move.waits_for:
        return step
    waiting = {"target": move.waits_for, "next_probe_seconds": round(move.probe_seconds, 1)}
    return msgspec.structs.replace(step, metadata={**(step.metadata or {}), WAIT_METADATA: waiting})


def _prove_not_executed(failure: Failure) -> Failure:
    evidence = (*failure.evidence, VERIFIED_NOT_EXECUTED)
    return msgspec.structs.replace(failure, took_effect=TookEffect.NO, evidence=evidence)


def _as_query(query: Callable[..., Coroutine[Any, Any, Any]], is_async: bool) -> Callable[..., Any]:
    return query if is_async else lambda *args: run_sync(query(*args))


def _is_async(function: Callable[..., Any] | None) -> bool:
    return function is not None and inspect.iscoroutinefunction(code_of(function))


def prepare_call(
    wrapped: WrappedFunction,
    capture: CaptureContext,
    run: ActiveRun,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    must_check: bool = False,
    **options: Any,
) -> CallExecution:
    """Build a call that a player makes from its first attempt on.

    `must_check` validates the arguments against the signature first. `options` are further attributes of the call.
    """
    rules = wrapped.rules(capture, run.options)
    # The scope of a run or step here: neither is the one of the call, which makes no attempt yet.
    scope = inner_scope(capture, run)
    call = CallExecution(run, None, scope.outer, False, wrapped, rules, args, kwargs, must_check=must_check, **options)
    call.enclosing = scope.enclosing
    call.prepare()
    return call


def _select_precedents(
    precedents: Sequence[Precedent], failure: Failure, tool: Tool, suggestions: Iterable[Suggestion]
) -> Sequence[Precedent]:
    """Return the precedents to show. If there are none, build them from suggestions by similar failures."""
    if failure.took_effect is TookEffect.UNKNOWN and not tool.is_retry_safe:
        # The call may have executed: a retry that succeeded in another run does not make it safe here.
        precedents = [precedent for precedent in precedents if precedent.method != "retry"]
    return precedents or [
        precedent for suggestion in suggestions if (precedent := _to_precedent(suggestion)) is not None
    ]


def _select_facts(
    facts: Iterable[ValueProfile], tool: Tool, suggestions: Iterable[Suggestion]
) -> tuple[ValueProfile, ...]:
    """Return the facts to tell: not of declared items and privileged arguments, nor what a suggestion already says.

    A reflection is not verified: facts about the same argument support it or speak against it.
    """
    suggested_names = {
        change.path for suggestion in suggestions if suggestion.source != "reflection" for change in suggestion.changes
    }
    return tuple(
        fact
        for fact in facts
        if not tool.destructive
        and fact.argument.partition(".")[0] not in tool.items
        and not is_privileged(fact.argument, tool.privileged)
        and fact.argument not in suggested_names
    )


def _to_precedent(suggestion: Suggestion) -> Precedent | None:
    """Convert a suggestion of memory into a precedent; None unless it stems from similar failures or an exemplar."""
    record = suggestion.record
    is_exemplar = record is not None and record.type == "exemplar"
    if record is None or not record.showable or suggestion.confidence < MIN_SHOWN_CONFIDENCE:
        return None
    if record.similarity >= 1 and not is_exemplar:
        return None  # the store already returned it as a precedent of this failure
    return Precedent(
        method="prerequisite" if suggestion.prerequisites else "agent",
        changes=suggestion.changes,
        prerequisites=_to_prerequisites(suggestion.prerequisites),
        successes=record.successes,
        occurrences=record.trials,
        similarity=0.0 if is_exemplar else record.similarity,
    )


def _to_prerequisites(calls: Iterable[PrerequisiteCall]) -> tuple[Prerequisite, ...]:
    return tuple(Prerequisite(tool=call.tool, arguments=call.arguments) for call in calls)


def _raise(error: Exception) -> Any:
    try:
        raise error
    finally:
        del error  # an exception whose frames hold it would live too long


def _compose(outer: Callable[[Any], Any], inner: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: outer(inner(*args, **kwargs))


def _is_raised_by_call(error: Exception) -> bool:
    """Return whether a TypeError was raised by the call of the function itself, not inside it."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if not isinstance(error, TypeError) or last is None:
        return False
    return str(last.tb_frame.f_globals.get("__name__")).startswith("mulligan.capture.")
