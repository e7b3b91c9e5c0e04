"""The end of a call: why recovery has stopped, and what the model or the caller reads about it.

Notes on results and exceptions, and the answer about a failure.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from mulligan.capture.attempt import LastAttempt, PreparedCall
from mulligan.capture.call_memory import MAX_ADVISED_PRECEDENTS, CallMemory, to_prerequisites
from mulligan.capture.limits import CallLimits
from mulligan.core import fork_safety
from mulligan.core.calls import TOOL_NAME_PATH
from mulligan.core.failure import Failure, Remedy
from mulligan.core.kinds import KINDS
from mulligan.core.records import Change, Recovery, RecoveryStop
from mulligan.prompt import Prompt
from mulligan.recover.plan import BLOCKED, Move, RecoveryFailed, RetryLayer, StopMove
from mulligan.recover.policy import PrerequisiteCall, Suggestion
from mulligan.recover.target_state import TARGET_DOWN

INTERNAL_ERROR = "recovery failed with an internal error, see the log"
NOTE_PREFIX = "mulligan:"
"""Start of every note on an exception."""


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


class CallAnswer(msgspec.Struct):
    """Words the end of one call, with what recovery has done until then."""

    prepared: PreparedCall
    attempt: LastAttempt
    limits: CallLimits
    memory: CallMemory
    stop: CallStop
    changes: tuple[Change, ...] = ()
    """All repairs so far."""
    backoffs: tuple[float, ...] = ()
    prerequisites: tuple[PrerequisiteCall, ...] = ()
    note: str = ""
    """The note for the model about a call that succeeded only after a repair."""

    @property
    def prompt(self) -> Prompt:
        """Builds the texts for a model, without secrets of the call's arguments."""
        return self.prepared.call.capture.prompt.for_arguments(*self.all_arguments)

    @property
    def all_arguments(self) -> list[Mapping[str, Any]]:
        """The arguments of the first and the last attempt. Of a model call without the conversation, which it knows."""
        first, last = self.prepared.arguments, self.attempt.arguments
        attempts = [last] if first is last else [last, first]
        if self.prepared.call.wrapped.options.type != "model":
            return attempts
        with fork_safety.import_lock:
            from mulligan.core import conversation  # lazy: needed for models only
        return [
            {name: arguments[name] for name in arguments if name != conversation.conversation_argument(arguments)}
            for arguments in attempts
        ]

    def note_stop(self) -> None:
        """Add notes to the run about a call that recovery could not handle, unless its answer goes to a model."""
        call, record = self.prepared.call, self.stop.record
        if call.answers_model or record is None:
            return
        if record.spiral:
            call.run.add_note(record.spiral)
        if self.limits.is_note_new:  # once per streak: a poller would fill its run with notes
            name = self.prepared.tool.name
            call.run.add_note(self._repeat_note(name), until_success_of=name)

    def note_success(self) -> None:
        """Build the note about a call that succeeded, and add it to the run, unless its answer goes to a model."""
        call, name = self.prepared.call, self.prepared.tool.name
        notes = [self.repair_note(name) if self.changes else self.note]
        if self.prerequisites:
            notes.append(self.prompt.prerequisites_made(name, list(to_prerequisites(self.prerequisites))))
        notes.append(self.repeated_call_note(name))
        self.note = " ".join(filter(None, notes))
        if self.note and not call.answers_model:
            call.run.add_note(self.note)

    def add_exception_note(self, error: Exception) -> None:
        """Add the note to an exception in place of an earlier one: some exceptions are raised again and again."""
        failure = self.attempt.failure
        if self.prepared.call.retrying_scope is not None or failure is None:
            return  # the scope that retries adds its own note
        note = self._exception_note(self.stop.recovery_failed or RecoveryFailed(failure, INTERNAL_ERROR))
        earlier_notes: list[str] = getattr(error, "__notes__", [])
        earlier_notes[:] = [earlier for earlier in earlier_notes if not earlier.startswith(NOTE_PREFIX)]
        with contextlib.suppress(AttributeError, TypeError):  # some exceptions are frozen
            error.add_note(note)

    def _exception_note(self, recovery_failed: RecoveryFailed) -> str:
        """Build the note on an exception: the attempts, the stop reason, suggestions and precedents."""
        call, attempt, prompt = self.prepared.call, self.attempt, self.prompt
        failure, stop = recovery_failed.failure, self.stop.record
        note = prompt.exception_note(
            failure,
            attempts=0 if BLOCKED in failure.evidence else attempt.number,
            seconds=(attempt.ended_at or call.capture.timer()) - call.start_time,  # without our own work after it
            backoffs=self.backoffs,
            stop_reason=recovery_failed.reason if stop is None else stop.reason,
            run="" if call.capture.is_recording_off else call.run.id,
            show_run=call.capture.show_run,
        )
        lines = [note, self._repeat_note(self.prepared.tool.name)]
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

    def describe_failure(
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
        call, failure, stop = self.prepared.call, self.stop.failure, self.stop.record
        recovery_failed = self.stop.recovery_failed
        if not self.limits.was_executed:
            author = author or "mulligan"
        assert failure is not None
        return self.prompt.answer(
            failure,
            tool=author or tool,
            precedents=recovery_failed.precedents[:MAX_ADVISED_PRECEDENTS] if recovery_failed else (),
            names=names,
            all_names=all_names,
            shareable=shareable,
            has_effects=not self.prepared.tool.is_retry_safe,
            executed_call=call.executed_calls[0] if call.executed_calls else "",
            suggested=[
                suggestion
                for suggestion in (stop.suggestions if stop is not None else ())
                if all(change.path != TOOL_NAME_PATH for change in suggestion.changes)  # other names are in `names`
            ],
            spiral=stop.spiral if stop is not None else "",
            repeat_note=self._repeat_note(tool),
            facts=self.memory.value_facts,
            schema=self._read_schema() if failure.kind.rejects_arguments else None,
            arguments=self.attempt.arguments,
        )

    def _read_schema(self) -> Mapping[str, Any] | None:
        """Return the schema of the tool, or None if there is none or reading it fails."""
        with self.prepared.call.capture.guard("Reading a schema for a hint"):
            schema = self.prepared.tool.schema()
            return schema if isinstance(schema, Mapping) else None
        return None
