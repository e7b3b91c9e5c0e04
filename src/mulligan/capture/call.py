"""One call: its first attempt, the further attempts of its recovery plan, and its end. `call_record.py` records it."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from mulligan.capture import call_notes
from mulligan.capture.call_record import RecordedCall, snapshot_arguments
from mulligan.capture.context import NO_OPTIONS, CaptureContext, reset
from mulligan.capture.limits import CIRCUIT_OPEN, CallBlockedError, CallLimits, SchemaMismatchError
from mulligan.capture.player import CallMoves, Invocation, aexecute_plan, execute_plan
from mulligan.capture.run import ActiveRun, CallScope, current_run, outcome_of, retrying_scope
from mulligan.capture.run_judge import mark_exception
from mulligan.capture.signature import code_of
from mulligan.capture.wrapped_function import WrappedFunction
from mulligan.classify.kinds import TOOL_INVALID_ARGUMENTS
from mulligan.core import fork_safety
from mulligan.core.events import RecoveryPlanned, StepStarted
from mulligan.core.failure import Failure, Remedy, TookEffect
from mulligan.core.fast_path import SHAREABLE_TYPES, SuccessRecord
from mulligan.core.records import VERIFY, Fix, Precedent, Recovery, RecoveryStop, new_id, pooled_run_id
from mulligan.prompt import Prompt
from mulligan.recover.plan import (
    BLOCKED,
    VERIFIED_EXECUTED,
    VERIFIED_NOT_EXECUTED,
    AttemptMove,
    BackoffMove,
    Move,
    QueryMove,
    RecoveryFailed,
    RecoveryMoves,
    RecoveryQueries,
    StopMove,
    plan_recovery,
)
from mulligan.recover.policy import PrerequisiteCall, Suggestion

STREAM = object()
"""The result of a function that returned a stream: its attempt ends with the stream."""


class CallExecution(RecordedCall, eq=False):
    """One call from its first attempt to its end.

    The wrapper makes the first attempt. If it succeeds, `record_success` records it and nothing else is built. If it
    fails, a player plays `moves`: the same attempt is classified, and the plan decides what follows.

    Internal errors are logged and suppressed: a call ends with the function's result or the function's own exception.
    """

    def prepare(self) -> None:
        """Build what a player needs."""
        self.is_prepared = True
        wrapped, rules, capture = self.wrapped, self.rules, self.capture
        options = wrapped.options
        mode = "observe" if retrying_scope(capture) is not None else rules.mode
        learn = "tell" if rules.learn == "repair" and capture.in_prerequisite.get() else rules.learn
        self.arguments = self.attempt_arguments = wrapped.signature.bind(self.args, self.kwargs)
        self._last_call = self.args, self.kwargs
        self.tool = wrapped.tool(mode, learn)
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
            rules.tool_limits,
            options.type,
            wrapped.owner(self.args),
            wrapped.target_resolver,
        )
        self.limits.set_deadline(None if options.timeout is None else self.start_time + options.timeout)

    def _plan(self) -> RecoveryMoves:
        wrapped, limits = self.wrapped, self.limits
        has_prerequisites = self.tool.learn == "repair" and self.capture.find_tool is not None
        queries = RecoveryQueries(
            lookup_precedents=self._lookup_precedents,
            lookup_fixes=None if self.capture.lookup_fixes is None else self._lookup_fixes,
            run_prerequisite=None
            if not has_prerequisites
            else self._arun_prerequisite
            if wrapped.is_async
            else self._run_prerequisite,
            verify=None
            if wrapped.verify is None
            else self._averify
            if inspect.iscoroutinefunction(code_of(wrapped.verify))
            else self._verify,
            random=self.capture.random,
            earlier_calls=self.run.earlier_calls,
            changed_arguments=self._changed_arguments,
            seconds_left=limits.seconds_left,
            take_retry_budget=limits.take_retry_budget,
            blocking_reason=limits.blocking_reason,
            admit_retry=limits.admit_retry,
        )
        if wrapped.planner is not None:
            return wrapped.planner(self, self.arguments, self.tool, self.policy, queries)
        initial_repair = None if self.repaired_request is None else self.repaired_request.recovery
        return plan_recovery(self.arguments, self.tool, self.policy, queries, initial_repair)

    def moves(self) -> CallMoves:
        """Yield the moves of this call to the player. Each receives its result and its exception.

        The plan yields what to do next. An `AttemptMove` of it leaves here as an `Invocation` of the function, except
        the first one if the wrapper has already made that attempt.
        """
        if not self.is_prepared:
            self.prepare()
        if self.repaired_request is not None:
            self._publish_rejected(self.repaired_request)
        plan = self._plan()
        answer: Any = None
        while (move := self._advance_plan(plan, answer)) is not None:
            answer = error = None
            match move:
                case AttemptMove() if self.has_wrapper_attempt:
                    answer = self._take_first_attempt()
                    yield from self._load_items()
                case AttemptMove():
                    try:
                        invocation = self._start_attempt(move)
                    except (CallBlockedError, SchemaMismatchError) as rejection:
                        answer = self._end_failed(rejection)
                        yield from self._load_items()
                        continue
                    result, error = (yield invocation) or (None, None)
                    answer = self._end_returned(result) if error is None else self._end_failed(error)
                    result = error = None  # an exception whose frames hold it would live too long
                    yield from self._load_items()
                case BackoffMove():
                    self._plan_backoff(move)
                    _, error = (yield move) or (None, None)
                    if error is not None:
                        self.capture.log_internal_error("Backoff", error)
                        plan.close()  # an attempt without its backoff is what a rate limit prevents
                case QueryMove():
                    answer, error = (yield move) or (None, None)
                    if error is not None:
                        self.capture.log_internal_error("A recovery query", error)
        yield None

    def _advance_plan(self, plan: RecoveryMoves, answer: Any) -> Move | None:
        """Tell the plan the answer and return its next move, or None.

        Publishes the last attempt, which is held back until now: its record says whether recovery stops, and why.
        """
        move: Move | None = None
        is_planned = False
        with self.capture.guard("Recovery planning"):
            try:
                move = plan.send(answer)
            except StopIteration as stop:
                self.recovery_failed = stop.value
            is_planned = True
        if not is_planned and self.attempt_count == 0:
            move = AttemptMove(self.arguments)  # the call itself is made in any case
        # After a query, the plan may still stop: then an attempt published before would lack the reason.
        if not isinstance(move, QueryMove) or isinstance(move, StopMove):
            if self._unpublished is not None:
                self._publish_ended(self._stop_reason(move))
            elif self._planned is not None and not isinstance(move, AttemptMove | BackoffMove):
                self._publish_skipped(self._stop_reason(move))
        return move

    def _plan_backoff(self, move: BackoffMove) -> None:
        """Publish the planned recovery before the backoff. Listeners see it; no store needs it."""
        if self._last_step is not None:
            recovery = self.rules.value_recorder.recovery(move.recovery) or move.recovery
            self.capture.publish_safely(RecoveryPlanned(self._last_step, recovery))
        self._planned = move.recovery
        self.backoffs += (move.recovery.backoff_seconds,)

    def _load_items(self) -> CallMoves:
        """Look up which arguments of the tool name items, when it fails for the first time in its run.

        A move, because a store may be slow, and an async caller's event loop must not wait for it.
        """
        step = self._unpublished[0] if self._unpublished is not None else None
        if step is not None and step.has_failed and self.run.needs_items(step):
            _, error = (yield QueryMove(self.run.load_items, (step.tool_key,))) or (None, None)
            if error is not None:
                self.capture.log_internal_error("Looking up the arguments that name items", error)

    @property
    def has_wrapper_attempt(self) -> bool:
        """Whether the wrapper has made an attempt that the plan does not know yet."""
        return self.ended_at is not None and not self.attempt_count

    def _take_first_attempt(self) -> Failure | None:
        """Continue with the first attempt, which the wrapper made."""
        self.attempt_count = 1
        self._is_admitted = True
        self._step = self._first_step()
        # Failures that were delivered during the attempt were unknown to it.
        failures, handled = (0, ()) if self.facts is None else (self.facts.failures_before, self.facts.handled)
        self.facts = msgspec.structs.replace(self._start_facts(), failures_before=failures, handled=handled)
        error, self.error = self.error, None
        return self._end_returned(self.result) if error is None else self._end_failed(error)

    def _start_attempt(self, move: AttemptMove) -> Invocation:
        """Start an attempt. Raises if it must not be made, before anything can execute."""
        self.attempt_count += 1
        self._planned = None
        self.attempt_arguments = move.arguments
        self.replacement = move.function
        self.ended_at = None
        with self.capture.guard("Recording the start of a call"):
            self._record_start(move)
        if not self._is_admitted:
            self._is_admitted = True
            failure = None
            with self.capture.guard("The limits of a call"):
                failure = self.limits.admit_first(move.arguments, move.has_substitute)
            if failure is not None:
                raise CallBlockedError(failure)
        if self.must_check:
            self.wrapped.check(move.arguments)
        return self._invocation(move.arguments)

    def _invocation(self, arguments: Mapping[str, Any]) -> Invocation:
        wrapped = self.wrapped
        self._last_call = self.args, self.kwargs
        if arguments is not self.arguments:  # otherwise the call stays exactly as the caller made it
            positional, keywords = wrapped.signature.split_arguments(arguments, self.args)
            self._last_call = tuple(positional), keywords
        function, open_stream = self.replacement or wrapped.function, self.open_stream
        if open_stream is not None:
            function = _compose(open_stream, function)
        if wrapped.options.timeout is not None and wrapped.is_async:
            function = self._with_timeout(function, wrapped.options.timeout)
        if self.adapt is not None:
            function = self.adapt(function)
        return Invocation(function, *self._last_call)

    def _with_timeout(self, function: Callable[..., Any], timeout: float) -> Callable[..., Any]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            import asyncio  # lazy: async callers have loaded it

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
        self.error = self.failure = None
        self.result = result
        self._leave()
        if result is STREAM:
            return None
        if self.ended_at is None:
            self.ended_at = self.capture.timer()
        checker = self.rules.result_checker
        if checker is not None:
            rejects = self.wrapped.options.rejection_statuses
            self.failure = checker.failure(self.capture, result, self.attempt_arguments, frozenset(rejects))
            if self.failure is not None and self.tool.mode == "repair":
                repaired = checker.repair(result, self.attempt_arguments)
                if repaired is not None:
                    if self._step is not None:
                        metadata = {**(self._step.metadata or {}), "mended": self.failure.message}
                        self._step = msgspec.structs.replace(self._step, metadata=metadata)
                    self.failure, self.result = None, repaired
        self.limits.mark_executed()
        self._record_end("success" if self.failure is None else outcome_of(self.failure), self.result)
        return self.failure

    def _end_failed(self, error: Exception) -> Failure:
        """End an attempt that raised. Return its failure."""
        if self.ended_at is None:
            self.ended_at = self.capture.timer()
        self._leave()
        self.error = error
        self.failure = self._classify(error)
        self.run.mark_reported(error)
        mark_exception(error, self.run.id, self.number or 0)
        self._record_end(outcome_of(self.failure), None)
        return self.failure

    def _classify(self, error: Exception) -> Failure:
        if isinstance(error, CallBlockedError):
            return error.failure
        options = self.wrapped.options
        rejects = {"rejection_statuses": options.rejection_statuses} if options.rejection_statuses else {}
        failure = self.capture.classify_safely(
            error, source=options.type, tool=self.tool.name, arguments=self.attempt_arguments, **rejects
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
            fingerprint=failure.fingerprint,
            detail=failure.detail,
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
            reason = self.recovery_failed.reason if self.recovery_failed else call_notes.INTERNAL_ERROR
        else:
            return None
        with self.capture.guard("Recording the stop reason"):
            if CIRCUIT_OPEN not in reason and self.limits.is_circuit_open():
                reason = f"{reason}; {CIRCUIT_OPEN}"
            spiral = self.limits.record_unrecovered(self.arguments, self.failure)
            self.stop = call_notes.build_stop(reason, suggestions, spiral)
            if not self.answers_model:
                if spiral:
                    self.run.add_note(spiral)
                if self.limits.is_note_new:  # once per streak: a poller would fill its run with notes
                    self.run.add_note(self.limits.repeat_note)
        return self.stop

    def end(self) -> Any:
        """Return the result, or raise the original exception with a note about what was tried.

        A result that is a failure is returned: the caller knows what it means.
        """
        error, self.error = self.error, None  # an exception whose frames hold it would live too long
        with self.capture.guard("Adding the exception note"):
            if error is not None:
                self._add_exception_note(error)
            elif self.failure is None:
                prompt, name = self.prompt, self.tool.name
                if self.changes:
                    self.note = prompt.note(name, self.changes)
                if self.prerequisites:
                    prerequisites = prompt.prerequisites_made(
                        name, list(call_notes.to_prerequisites(self.prerequisites))
                    )
                    self.note = " ".join(filter(None, (self.note, prerequisites)))
                if self.note and not self.answers_model:
                    self.run.add_note(self.note)
        if error is not None:
            raise error
        return self.result

    def end_cancelled(self) -> None:
        """Record that the call was interrupted, which is no failure."""
        self._leave()
        self.limits.release_probe()
        self._is_cancelled = True
        if self._unpublished is not None:
            self._publish_ended(self._stop_reason(None))
        elif self._planned is not None:
            self._publish_skipped(self._stop_reason(None))
        self._record_end("cancelled", None)

    @property
    def is_streaming(self) -> bool:
        """Whether the result is a stream that has begun: its attempt is still in progress."""
        return self.result is STREAM

    def end_stream(self, items: int, error: BaseException | None) -> None:
        """Record the end of the stream. After its first item nothing is attempted again."""
        if error is None:
            self._record_end("success", {"$stream": items})
        elif isinstance(error, Exception):
            failure = self._end_failed(error)
            self.recovery_failed = RecoveryFailed(failure, "the first items of the stream were already delivered")
            with self.capture.guard("Adding the exception note"):
                self._publish_ended(self._stop_reason(None))
                self._add_exception_note(error)
        else:
            self.end_cancelled()

    def _add_exception_note(self, error: Exception) -> None:
        if retrying_scope(self.capture) is not None or self.failure is None:
            return  # the scope that retries adds its own note
        failed = self.recovery_failed or RecoveryFailed(self.failure, call_notes.INTERNAL_ERROR)
        call_notes.add_exception_note(error, self.exception_note(failed))

    def exception_note(self, recovery_failed: RecoveryFailed) -> str:
        prompt, failure = self.prompt, recovery_failed.failure
        note = prompt.exception_note(
            failure,
            attempts=0 if BLOCKED in failure.evidence else self.attempt_count,
            seconds=self.capture.timer() - self.start_time,
            backoffs=self.backoffs,
            stop_reason=recovery_failed.reason if self.stop is None else self.stop.reason,
            run="" if self.capture.is_recording_off else self.run.id,
        )
        return call_notes.extend_note(note, prompt, recovery_failed, self.stop, self.limits.repeat_note)

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
        if self.tool.learn == "off":
            return ()
        precedents = self.capture.lookup_precedents(self.tool.name, self.tool.key, failure, self.attempt_arguments)
        return call_notes.select_precedents(precedents, failure, self.tool, suggestions)

    def _lookup_fixes(self, failure: Failure, arguments: Mapping[str, Any]) -> Sequence[Fix]:
        assert self.capture.lookup_fixes is not None
        schema = self.tool.schema()
        digest = ""
        if schema:
            with fork_safety.import_lock:
                from mulligan.recover.schema import compile_schema  # lazy: needed after a failure only
            digest = compile_schema(schema).digest
        return self.capture.lookup_fixes(self.tool.name, self.tool.key, failure, arguments, digest)

    def _call_verify(self, arguments: Mapping[str, Any]) -> Any:
        assert self.wrapped.verify is not None
        positional, keywords = self.wrapped.signature.split_arguments(arguments, self.args)
        return self.wrapped.verify(*positional, **keywords)

    def _verify(self, arguments: Mapping[str, Any], failure: Failure) -> object:
        started = self.capture.now(), self.capture.timer()
        return self._apply_verification(self._call_verify(arguments), failure, *started)

    async def _averify(self, arguments: Mapping[str, Any], failure: Failure) -> object:
        started = self.capture.now(), self.capture.timer()
        return self._apply_verification(await self._call_verify(arguments), failure, *started)

    def _apply_verification(self, answer: Any, failure: Failure, started_at: int, started: float) -> object:
        """Apply the answer of the developer's `verify` to a call whose outcome was unknown."""
        if answer is None:
            return None
        if answer is False:
            self.failure = msgspec.structs.replace(
                failure, took_effect=TookEffect.NO, evidence=(*failure.evidence, VERIFIED_NOT_EXECUTED)
            )
            return self.failure
        self.note = self.prompt.verified_note(self.tool.name)
        self.use_answer(answer, Recovery(remedy=Remedy.RETRY, source=VERIFY), started_at, started)
        return VERIFIED_EXECUTED

    def _run_prerequisite(self, prerequisite: PrerequisiteCall) -> str:
        """Make a prerequisite call. Return why it failed, or an empty string."""
        call = self._prepare_prerequisite(prerequisite)
        if isinstance(call, str):
            return call
        if call.wrapped.is_async:
            return f"the prerequisite {prerequisite.tool} is async and {self.tool.name} is not"
        with self._in_prerequisite():
            execute_plan(call)
        return self._end_prerequisite(call, prerequisite)

    async def _arun_prerequisite(self, prerequisite: PrerequisiteCall) -> str:
        import asyncio  # lazy: async callers have loaded it

        call = self._prepare_prerequisite(prerequisite)
        if isinstance(call, str):
            return call
        with self._in_prerequisite():
            await (aexecute_plan(call) if call.wrapped.is_async else asyncio.to_thread(execute_plan, call))
        return self._end_prerequisite(call, prerequisite)

    @contextlib.contextmanager
    def _in_prerequisite(self) -> Iterator[None]:
        """Mark the call inside as a prerequisite. Its error is recorded with it."""
        token = self.capture.in_prerequisite.set(True)
        try:
            yield
        except Exception:  # noqa: BLE001 - the call that needs it is not made then
            return
        finally:
            reset(self.capture.in_prerequisite, token)

    def _prepare_prerequisite(self, prerequisite: PrerequisiteCall) -> CallExecution | str:
        assert self.capture.find_tool is not None
        wrapped: WrappedFunction | None = self.capture.find_tool(prerequisite.tool)
        if wrapped is None:
            return f"the prerequisite {prerequisite.tool} is not a tool of this process"
        if wrapped.options.destructive or wrapped.is_stream or wrapped.is_async_stream:
            return f"the prerequisite {prerequisite.tool} is destructive or streams, so it is not called automatically"
        call = prepare_call(wrapped, self.capture, self.run, (), prerequisite.arguments)
        call.answers_model = True  # the note of this call mentions it
        call.limits.can_block = True  # the program did not ask for it
        return call

    def _end_prerequisite(self, call: CallExecution, prerequisite: PrerequisiteCall) -> str:
        if call.failure is not None:
            return f"the prerequisite {prerequisite.tool} failed"
        self.prerequisites += (prerequisite,)
        return ""


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
    call = CallExecution(run, None, None, False, wrapped, rules, args, kwargs, must_check=must_check, **options)
    call.prepare()
    return call


def begin_call(
    wrapped: WrappedFunction, capture: CaptureContext, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> CallExecution:
    """Begin a call. The wrapper makes its first attempt; if `success_record` is None, the player does, after checks."""
    try:
        call = _begin_first_attempt(wrapped, capture, args, kwargs)
        if call is not None:
            return call
    except Exception as error:  # noqa: BLE001 - inlined guard: the player makes the call
        capture.log_internal_error("Starting a call", error)
    run = current_run(capture)
    is_standalone = run is None
    if run is None:
        run = ActiveRun(capture, options=wrapped.rules(capture, None).run_options)
        run.is_implicit = True
    return prepare_call(wrapped, capture, run, args, kwargs, is_standalone=is_standalone)


def _begin_first_attempt(
    wrapped: WrappedFunction, capture: CaptureContext, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> CallExecution | None:
    """Begin the first attempt; None if the call needs a check before it is made. On the path of every call."""
    scope: CallScope | None = capture.current_scope.get()
    rules = wrapped.default_rules
    run: ActiveRun | None
    if scope is None:
        if rules is None or rules.capture is not capture:
            if wrapped.needs_precheck:
                return None
            rules = wrapped.rules(capture, None)
        if rules.tool_limits.needs_admission_check:
            return None
        run = outer = parent = None
        is_retrying, is_standalone, standalone_run = rules.is_retried, True, rules.standalone_run
        number: int | None = 1
        try:
            run_id = pooled_run_id()
        except IndexError:
            run_id = new_id()
    else:
        run = scope.known_run or scope.run
        if rules is None or rules.capture is not capture or run.options is not NO_OPTIONS:
            if wrapped.needs_precheck:
                return None
            rules = wrapped.rules(capture, run.options)
        if rules.tool_limits.needs_admission_check:
            return None
        outer = scope if scope.is_retrying else scope.outer
        is_retrying = rules.is_retried and (outer is None or not outer.is_retrying)
        standalone_run = None
        if run.is_open:
            is_standalone = False
            parent = scope.number
            if not run.has_started:
                run.start()  # a standalone call, whose run now contains more than itself
        else:
            is_standalone, parent, run = True, None, ActiveRun(rules.capture, "", rules.run_options)
        # Calls inside an unrecorded call are children of its parent.
        number = parent if rules.is_off and not run.capture.is_recording_off else next(run.numbers)
        run_id = run.id
    capture, template = rules.capture, rules.template
    positional = args[1:] if wrapped.is_method else args
    journal = None
    if len(positional) <= template.safe_positional_count:
        journal = _encode_simple_values(positional, kwargs, template.recordable_names)
    if is_retrying:
        rules.tool_limits.first_attempts += 1
    record = SuccessRecord(template, run_id, number or 0, parent, capture.clock(), positional, kwargs, standalone_run)
    call = CallExecution(run, number, outer, is_retrying, wrapped, rules, args, kwargs, record, journal, is_standalone)
    if journal is None:
        snapshot_arguments(call, record)
    if run is not None and run.has_failures and not is_standalone:
        call.facts = run.call_facts(receiver=wrapped.receiver(args))
    if capture.listeners and not rules.is_off:
        call.run.start()
        capture.publish_safely(StepStarted(call._first_step()))
    return call


def _encode_simple_values(
    positional: Sequence[Any], kwargs: Mapping[str, Any], recordable_names: Collection[str]
) -> list[Any] | None:
    """Encode values like `journal_values`, for most calls: immutable ones under harmless names. None for others."""
    values: list[Any] = []
    for value in positional:
        if type(value) is str:
            values.append([len(value)])
        elif type(value) in SHAREABLE_TYPES:
            values.append(value)
        else:
            return None
    for name, value in kwargs.items():
        if name not in recordable_names:
            return None
        if type(value) is str:
            values += name, [len(value)]
        elif type(value) in SHAREABLE_TYPES:
            values += name, value
        else:
            return None
    return values


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
