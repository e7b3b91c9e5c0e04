"""What is said about a call that recovery could not save: the stop reason, the note on its exception, precedents."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mulligan.core.failure import Failure, Remedy, TookEffect
from mulligan.core.records import Precedent, Prerequisite, Recovery, RecoveryStop
from mulligan.prompt import Prompt
from mulligan.recover.plan import RecoveryFailed
from mulligan.recover.policy import PrerequisiteCall, Suggestion, Tool

MAX_STORED_SUGGESTIONS = 3
"""Suggestions that are stored with a stop reason, for the model or a person."""
MIN_SHOWN_CONFIDENCE = 0.5
"""Suggestions with a lower confidence are not shown to a model."""
NOTE_PREFIX = "mulligan:"
"""How the notes on an exception start."""
INTERNAL_ERROR = "recovery failed with an internal error, see the log"


def build_stop(reason: str, suggestions: Iterable[Suggestion], spiral: str) -> RecoveryStop:
    """Build the stop reason of an unrecovered call. Suggestions from memory are shown as precedents instead."""
    recoveries = tuple(
        Recovery(
            remedy=Remedy.REPAIR,
            changes=suggestion.changes,
            source=suggestion.source,
            confidence=suggestion.confidence,
        )
        for suggestion in suggestions
        if suggestion.changes and not suggestion.prerequisites and suggestion.source != "memory"
    )
    return RecoveryStop(reason=reason, suggestions=recoveries[:MAX_STORED_SUGGESTIONS], spiral=spiral)


def select_precedents(
    precedents: Sequence[Precedent], failure: Failure, tool: Tool, suggestions: Iterable[Suggestion]
) -> Sequence[Precedent]:
    """Return the precedents to show, or else what memory suggests by similar failures."""
    if failure.took_effect is TookEffect.UNKNOWN and not tool.is_retry_safe:
        # It may have executed: that others repeated the call is no advice to do it twice.
        precedents = [precedent for precedent in precedents if precedent.method != "retry"]
    return precedents or [
        precedent for suggestion in suggestions if (precedent := _to_precedent(suggestion)) is not None
    ]


def _to_precedent(suggestion: Suggestion) -> Precedent | None:
    """Return what memory suggests, although this very failure was never recovered, as a precedent."""
    record = suggestion.record
    is_exemplar = record is not None and record.type == "exemplar"
    if record is None or not record.showable or suggestion.confidence < MIN_SHOWN_CONFIDENCE:
        return None
    if record.similarity >= 1 and not is_exemplar:
        return None  # shown as a precedent of this failure
    return Precedent(
        method="prerequisite" if suggestion.prerequisites else "agent",
        changes=suggestion.changes,
        prerequisites=to_prerequisites(suggestion.prerequisites),
        successes=record.successes,
        occurrences=record.trials,
        similarity=0.0 if is_exemplar else record.similarity,
    )


def to_prerequisites(calls: Iterable[PrerequisiteCall]) -> tuple[Prerequisite, ...]:
    return tuple(Prerequisite(tool=call.tool, arguments=call.arguments) for call in calls)


def extend_note(
    note: str, prompt: Prompt, recovery_failed: RecoveryFailed, stop: RecoveryStop | None, repeat_note: str
) -> str:
    """Add what was suggested, and what worked before, to the note on an exception."""
    spiral = stop.spiral if stop is not None else ""
    suggestions = prompt.suggestions(stop.suggestions[:2]) if stop is not None else ()
    return "\n".join(
        [
            note,
            *filter(None, (repeat_note, spiral)),
            *(f"{NOTE_PREFIX} {suggestion}" for suggestion in suggestions),
            *(f"{NOTE_PREFIX} {prompt.precedent(precedent)}" for precedent in recovery_failed.precedents[:2]),
        ]
    )


def add_exception_note(error: Exception, note: str) -> None:
    """Add the note to an exception in place of an earlier one: some exceptions are raised again and again."""
    earlier_notes: list[str] = getattr(error, "__notes__", [])
    earlier_notes[:] = [earlier for earlier in earlier_notes if not earlier.startswith(NOTE_PREFIX)]
    try:
        error.add_note(note)
    except (AttributeError, TypeError):
        return  # some exceptions are frozen
