"""How an attempt has ended: its failure, if it raised or returned one, and what that says about further attempts."""

from __future__ import annotations

from typing import Any

import msgspec

from mulligan.capture.attempt import LastAttempt, PreparedCall
from mulligan.capture.call_errors import CallBlockedError, SchemaMismatchError
from mulligan.capture.call_origin import mark_exception
from mulligan.capture.limits import CallLimits
from mulligan.capture.run_judge import outcome_of
from mulligan.classify.fingerprint import compute_fingerprint
from mulligan.core import fork_safety
from mulligan.core.failure import INNER_EFFECTS, Failure, Remedy, TookEffect
from mulligan.core.kinds import TOOL_INVALID_ARGUMENTS
from mulligan.core.records import Outcome
from mulligan.recover.plan import RetryLayer

STREAM = object()
"""The result of a function that returned a stream: its attempt ends with the stream."""


class AttemptJudge(msgspec.Struct):
    """Ends the attempts of a call: classifies what they raised or returned, and informs the limits."""

    prepared: PreparedCall
    attempt: LastAttempt
    limits: CallLimits
    retry_layer: RetryLayer | None = None
    """What else retries the call that failed, above or below it."""

    def end_returned(self, result: Any) -> Failure | None:
        """End an attempt that returned. Return the failure that its result is; mostly there is none."""
        attempt, call = self.attempt, self.prepared.call
        attempt.error = attempt.failure = attempt.suspected = None
        attempt.result = result
        attempt.leave(call.capture)
        if result is STREAM:
            return None
        if attempt.ended_at is None:
            attempt.ended_at = call.capture.timer()
        checker = call.rules.result_checker
        if checker is not None:
            rejects = call.wrapped.options.rejection_statuses
            failure = checker.failure(call.capture, result, attempt.arguments, frozenset(rejects))
            if failure is None:
                attempt.suspected = checker.suspect(call.capture, result, attempt.arguments)
            else:
                attempt.failure = self._add_inner_effects(failure)
                if self.prepared.tool.mode == "repair":
                    repaired = checker.repair(result, attempt.arguments)
                    if repaired is not None:
                        attempt.metadata = {"repaired_output": attempt.failure.message}
                        attempt.failure, attempt.result = None, repaired
        self.limits.mark_executed()
        self.end("success" if attempt.failure is None else outcome_of(attempt.failure))
        if attempt.failure is not None:
            self._find_retry_layer(None)
        return attempt.failure

    def end_failed(self, error: Exception) -> Failure:
        attempt, call = self.attempt, self.prepared.call
        if attempt.ended_at is None:
            attempt.ended_at = call.capture.timer()
        attempt.leave(call.capture)
        attempt.error, attempt.result, attempt.suspected = error, None, None
        failure = attempt.failure = self._add_inner_effects(self._classify(error))
        mark_exception(error, call.run.id, call.number or 0)
        self.end(outcome_of(failure))
        self._find_retry_layer(error)
        return failure

    def end(self, outcome: Outcome) -> None:
        """Count the end of an attempt. It is recorded with the next move of the plan."""
        attempt, limits = self.attempt, self.limits
        if attempt.ended_at is None:
            attempt.ended_at = self.prepared.call.capture.timer()
        attempt.outcome = outcome
        if attempt.failure is not None and limits.was_executed:
            limits.has_executed_failure = True
        if outcome != "cancelled":
            with self.prepared.call.capture.guard("The limits of a call"):
                limits.record_result(
                    attempt.arguments,
                    attempt.failure,
                    attempt.replacement,
                    seconds=attempt.ended_at - attempt.started_at,
                    is_retry=attempt.recovery is not None and attempt.recovery.remedy is Remedy.RETRY,
                )

    def describe_inner_effects(self) -> str:
        """Return why a call inside the last attempt forbids to repeat it, or an empty string."""
        call = self.prepared.call
        if call.executed_calls:
            return f"{call.executed_calls[0]} may have executed inside this attempt"
        if call.retried_call and self.prepared.tool.is_retry_safe:
            return f"{call.retried_call} was retried inside this attempt"
        return ""

    def find_obstacle(self) -> str:
        # Asked again after the backoff: a task that the attempt has started may have executed a call since.
        return self.describe_inner_effects() or self.limits.find_obstacle()

    def _add_inner_effects(self, failure: Failure) -> Failure:
        """Return the failure of an attempt. If a call inside it may have executed, so may the attempt itself."""
        prepared, call = self.prepared, self.prepared.call
        if call.executed_calls:
            prepared.tool = msgspec.structs.replace(prepared.tool, effects="once")
            took_effect = TookEffect.UNKNOWN if failure.took_effect is TookEffect.NO else failure.took_effect
            return msgspec.structs.replace(
                failure, took_effect=took_effect, evidence=(*failure.evidence, INNER_EFFECTS)
            )
        if failure.took_effect is TookEffect.NO:
            call.withdraw_effects()
        return failure

    def _find_retry_layer(self, error: Exception | None) -> None:
        """Find out whether a retry library or a client retries this call too."""
        prepared, call = self.prepared, self.prepared.call
        self.retry_layer = None
        if prepared.tool.mode == "observe" or not prepared.policy.allows_recovery or not self.limits.was_executed:
            return
        with call.capture.guard("Looking for other retries of a call"):
            with fork_safety.import_lock:
                from mulligan.capture import retry_layers  # lazy: needed after a failure only
            if error is None:
                layer = retry_layers.find_decorator_below(call.wrapped.function)
            else:
                layer = retry_layers.find_layer_below(error)
            if layer is None and not call.answers_model:  # otherwise no caller gets the exception
                layer = retry_layers.find_layer_above(error)
            self.retry_layer = layer

    def _classify(self, error: Exception) -> Failure:
        if isinstance(error, CallBlockedError):
            return error.failure
        tool, wrapped, attempt = self.prepared.tool, self.prepared.call.wrapped, self.attempt
        facts: dict[str, Any] = {}
        if wrapped.options.rejection_statuses:
            facts["rejection_statuses"] = wrapped.options.rejection_statuses
        if wrapped.is_listed:
            facts["is_listed"] = True
        failure = self.prepared.call.capture.classify_safely(
            error,
            source=wrapped.options.type,
            tool=tool.name,
            arguments=attempt.arguments,
            category=wrapped.category,
            **facts,
        )
        if isinstance(error, SchemaMismatchError):
            return failure
        if not (_is_raised_by_call(error) and wrapped.signature.rejects_call(*attempt.passed)):
            self.limits.mark_executed()
            return failure
        return Failure.of(
            TOOL_INVALID_ARGUMENTS,
            failure.message,
            took_effect=TookEffect.NO,
            fingerprint=compute_fingerprint(TOOL_INVALID_ARGUMENTS, tool.name, failure.message, attempt.arguments),
            detail=failure.detail,
            exception=failure.exception,
            trace=failure.trace,
            evidence=("TypeError before the function began", *failure.evidence),
        )


def _is_raised_by_call(error: Exception) -> bool:
    """Return whether a TypeError was raised by the call of the function itself, not inside it."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if not isinstance(error, TypeError) or last is None:
        return False
    return str(last.tb_frame.f_globals.get("__name__")).startswith("mulligan.capture.")
