"""Starts the attempts of a call: checks, whether each may be made, and how the function is invoked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from mulligan.capture.attempt import LastAttempt, PreparedCall
from mulligan.capture.call_errors import CallBlockedError, SchemaMismatchError
from mulligan.capture.call_record import CallRecord
from mulligan.capture.call_scope import CallScope, RecoveryScope
from mulligan.capture.limits import CallLimits
from mulligan.capture.lost_call import find_lost_answer, identify_call
from mulligan.capture.player import Invocation
from mulligan.capture.value_recording import copy_data
from mulligan.classify.declared_errors import AgentError, InfraError
from mulligan.recover.plan import AttemptMove

if TYPE_CHECKING:
    from mulligan.recover.lost_answers import CallIdentity, LostAnswer


class InvocationBuilder(msgspec.Struct):
    """Starts an attempt and builds what the player invokes."""

    prepared: PreparedCall
    attempt: LastAttempt
    limits: CallLimits
    record: CallRecord
    is_admitted: bool = False
    """Whether the call was admitted: its first attempt alone can be blocked."""
    _identity: CallIdentity | None = None
    """What the last attempt asked for, if it matters that it is not asked for again."""

    @property
    def identity(self) -> CallIdentity:
        """What makes another call the same as the last attempt."""
        return self._identity or self._identify()

    def _identify(self) -> CallIdentity:
        return identify_call(self.prepared.call, self.attempt.passed, self.limits.requested_name)

    def find_lost_answer(self) -> LostAnswer | None:
        return find_lost_answer(self.prepared.call, self.attempt.passed, self.limits.requested_name)

    def start(self, move: AttemptMove) -> Invocation:
        """Start an attempt. Raises if it must not be made, before anything can execute."""
        attempt, call, prepared, limits = self.attempt, self.prepared.call, self.prepared, self.limits
        self.record.planned = attempt.ended_at = attempt.failure = attempt.metadata = None
        limits.was_executed = False
        if move.arguments is not attempt.arguments:
            call.argument_version += 1
        attempt.arguments, attempt.replacement, attempt.recovery = move.arguments, move.function, move.recovery
        attempt.recorded_arguments = None
        attempt.number += 1
        with call.capture.guard("Recording the start of a call"):
            self.record.record_start()
        self._enter_scope()
        attempt.started_at = call.capture.timer()
        if not self.is_admitted:
            self.is_admitted = True
            failure = None
            with call.capture.guard("The limits of a call"):
                failure = limits.admit_first(move.arguments, move.has_substitute)
            if failure is not None:
                raise CallBlockedError(failure)
        if prepared.form.must_check:
            call.wrapped.check(move.arguments)
        try:
            invocation = self._build_invocation(self.to_typed(move.arguments))
            self._refuse_repetition()
            if call.rules.has_effects:
                call.mark_effects()
            if attempt.number > 1 and call.enclosing is not None:
                call.add_retried_call(prepared.tool.name)
            return invocation
        except SchemaMismatchError as mismatch:
            # What a validator raised on purpose ends the attempt as if the tool had raised it.
            for error in filter(self._is_raised_on_purpose, mismatch.causes):
                return Invocation(_raise, (error,), {})
            raise

    def _enter_scope(self) -> None:
        """Make the scope of the attempt the current one, unless its start could not be recorded."""
        step, call, prepared = self.record.step, self.prepared.call, self.prepared
        if step is None:
            return
        policy, is_safe = prepared.policy, prepared.tool.is_retry_safe and prepared.tool.mode != "observe"
        scope_class = RecoveryScope if self.attempt.number > 1 else CallScope
        scope = scope_class(
            call.run,
            step.seq or step.parent,
            call.outer,
            is_safe and policy.allows_recovery and call.retrying_scope is None,
            enclosing=call,
        )
        deadline = None if call.wrapped.options.timeout is None else self.limits.deadline
        self.attempt.enter(call.capture, scope, deadline)

    def _refuse_repetition(self) -> None:
        """Find the same call whose answer was lost. Raises if a model asks for it again in our own loop.

        Before each attempt: a repair may lead to the same call.
        """
        with self.prepared.call.capture.guard("Looking for a lost answer of the same call"):
            self.limits.lost_answer = self.find_lost_answer()
            if not self.prepared.tool.is_retry_safe:
                self._identity = self._identify()  # now: the function may change its arguments
        if self.prepared.call.rules.mode != "observe":
            self.limits.refuse_repetition()

    def _is_raised_on_purpose(self, error: Exception) -> bool:
        # An iterator that ends inside a validator ends no iteration of the caller.
        is_control_flow = self.prepared.call.capture.is_control_flow(error) and not isinstance(
            error, StopIteration | StopAsyncIteration
        )
        return is_control_flow or isinstance(error, AgentError | InfraError)

    def to_typed(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the arguments for the function. Records, fingerprints and repairs use the JSON arguments."""
        return self.prepared.call.wrapped.convert(arguments) if self.prepared.form.has_json_arguments else arguments

    def _build_invocation(self, arguments: Mapping[str, Any]) -> Invocation:
        call, attempt, form = self.prepared.call, self.attempt, self.prepared.form
        attempt.passed = call.args, call.kwargs
        if call.wrapped.options.fresh_arguments:
            arguments = {name: copy_data(value) for name, value in arguments.items()}
        if arguments is not self.prepared.arguments:  # otherwise the call stays exactly as the caller made it
            positional, keywords = call.split_arguments(arguments)
            attempt.passed = tuple(positional), keywords
        function, open_stream = attempt.replacement or call.wrapped.function, form.open_stream
        if open_stream is not None:
            function = _compose(open_stream, function)
        function = self.limits.with_timeout(function)
        if form.adapt is not None:
            function = form.adapt(function)
        return Invocation(function, *attempt.passed)


def _raise(error: Exception) -> Any:
    try:
        raise error
    finally:
        del error  # an exception whose frames hold it would live too long


def _compose(outer: Callable[[Any], Any], inner: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: outer(inner(*args, **kwargs))
