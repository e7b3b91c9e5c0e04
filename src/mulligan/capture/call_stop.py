"""Why recovery of a call has stopped, for its record, its note and the answer to the model."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from mulligan.capture.attempt import LastAttempt, PreparedCall
from mulligan.capture.limits import CallLimits
from mulligan.core.failure import Failure, Remedy
from mulligan.core.kinds import KINDS
from mulligan.core.records import Recovery, RecoveryStop
from mulligan.recover.plan import Move, RecoveryFailed, RetryLayer, StopMove
from mulligan.recover.policy import Suggestion
from mulligan.recover.target_state import TARGET_DOWN

INTERNAL_ERROR = "recovery failed with an internal error, see the log"


class CallStop(msgspec.Struct):
    """The end of a call that recovery could not handle."""

    prepared: PreparedCall
    attempt: LastAttempt
    limits: CallLimits
    recovery_failed: RecoveryFailed | None = None
    """The result of a plan that stopped."""
    record: RecoveryStop | None = None
    """What is stored of it."""
    is_cancelled: bool = False

    @property
    def failure(self) -> Failure | None:
        """The failure that recovery could not handle, or that of the last attempt."""
        return self.recovery_failed.failure if self.recovery_failed is not None else self.attempt.failure

    def read_move(self, move: Move | None, retry_layer: RetryLayer | None) -> RecoveryStop | None:
        """Return why recovery stops, if the move shows that it does. Count the call as unrecovered."""
        suggestions: Sequence[Suggestion] = ()
        failure, limits = self.attempt.failure, self.limits
        if failure is None:
            return None
        if isinstance(move, StopMove):
            _, reason, suggestions = move.arguments
        elif self.is_cancelled:
            self.record = RecoveryStop(reason="the call was cancelled")
            return self.record
        elif move is None:
            reason = self.recovery_failed.reason if self.recovery_failed else INTERNAL_ERROR
        else:
            return None
        with self.prepared.call.capture.guard("Recording the stop reason"):
            if TARGET_DOWN not in reason and limits.is_target_down():
                reason = f"{reason}; {TARGET_DOWN}"
            if retry_layer is not None:
                reason = self._name_retry_layer(reason, failure, retry_layer)
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
            self.record = RecoveryStop(
                reason=reason,
                suggestions=tuple(recoveries[:3]),
                spiral=limits.record_unrecovered(self.prepared.arguments, failure),
            )
        return self.record

    def _name_retry_layer(self, reason: str, failure: Failure, layer: RetryLayer) -> str:
        """Return the stop reason. If another layer retries, it names that one, and is logged once for each tool."""
        kind, tool = KINDS.get(str(failure.kind), failure.kind), self.prepared.tool
        if kind.remedy is not failure.remedy or kind.are_retries_exhausted:
            # An error that says itself that all retries failed is classified as one that no retry recovers.
            max_attempts = self.limits.retry_limits.attempts
            reason = layer.find_stop_reason(self.attempt.number + 1, max_attempts, is_retry=True)
        if reason.startswith(layer.name):
            self.prepared.call.capture.warn_once(
                tool.key,
                layer.name,
                "%s: %s. To let mulligan retry, turn those retries off. This message appears once per tool.",
                tool.name,
                reason,
            )
        return reason
