"""What memory knows about a failed call: precedents, facts and fixes, and which of them a model may read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from mulligan.capture.attempt import LastAttempt, PreparedCall
from mulligan.core import fork_safety
from mulligan.core.argument_comparison import differing_names, root_of
from mulligan.core.calls import is_changed_call
from mulligan.core.failure import Failure, TookEffect
from mulligan.core.holdout import REPAIR, is_fix_held_out, is_held_out
from mulligan.core.privileged_arguments import is_privileged
from mulligan.core.records import AdvisedFix, Fix, Precedent, Prerequisite, ValueProfile
from mulligan.recover.plan import MIN_SHOWN_CONFIDENCE, RecoveryFailed
from mulligan.recover.policy import PrerequisiteCall, Suggestion, Tool

MAX_ADVISED_PRECEDENTS = 3
"""What recovered the same failure before: so many does a model read."""


class CallMemory(msgspec.Struct):
    """Asks memory about the last attempt of a call, unless the tool does not use memory."""

    prepared: PreparedCall
    attempt: LastAttempt
    value_facts: tuple[ValueProfile, ...] = ()
    """What successful calls had in common, and this one has not."""
    held_out_fixes: tuple[str, ...] = ()
    """Learned fixes that the model is not told, so that their effect can be measured, by id."""
    is_repair_held_out: bool = False

    def lookup_precedents(
        self, failure: Failure, reason: str, suggestions: Sequence[Suggestion]
    ) -> Sequence[Precedent]:
        """Return the precedents to show when recovery stops.

        Held out is only what would be told, and nothing takes its place: else the two groups would not be alike.
        """
        tool, call, capture = self.prepared.tool, self.prepared.call, self.prepared.call.capture
        precedents = _select_precedents(self.find_precedents(failure), failure, tool, suggestions)
        precedents = precedents[:MAX_ADVISED_PRECEDENTS]
        share = capture.holdout if self._allows_holdout else 0.0
        trace = call.run.trace_id if share and precedents else ""
        held_out = [precedent for precedent in precedents if is_fix_held_out(precedent, trace, share)]
        self.held_out_fixes = tuple(precedent.fix for precedent in held_out)
        if capture.lookup_facts is not None and call.answers_model and tool.learn != "off":
            facts = capture.lookup_facts(tool.name, tool.key, failure, self.attempt.arguments)
            # What successful calls had in common often says the same as a fix.
            held_out_arguments = {root_of(change.path) for precedent in held_out for change in precedent.changes}
            tellable_facts = (fact for fact in facts if root_of(fact.argument) not in held_out_arguments)
            self.value_facts = _select_facts(tellable_facts, tool, suggestions)
        return [precedent for precedent in precedents if precedent not in held_out]

    @property
    def _allows_holdout(self) -> bool:
        """Whether help may be withheld from this call. A call that is not recorded would measure nothing."""
        call = self.prepared.call
        return call.wrapped.options.holdout and call.run.allows_holdout and not call.capture.is_recording_off

    def hold_out_repair(self) -> str:
        """Return why a repair is not made, if it is held out."""
        share = self.prepared.call.capture.holdout_repairs if self._allows_holdout else 0.0
        if share and is_held_out(share, self.prepared.call.run.trace_id, self.prepared.tool.key):
            self.is_repair_held_out = True
            return "the repair is held out, to measure the effect of repairs"
        return ""

    def find_precedents(self, failure: Failure) -> Sequence[Precedent]:
        """Return what recovered the same failure before.

        What this run has tried for the same call, and failed with, is left out. So is what the model has read after
        its last call, if it chose to change another argument: it would now read it about a call that differs in two.
        """
        tool, call, arguments = self.prepared.tool, self.prepared.call, self.attempt.arguments
        if tool.learn == "off":
            return ()
        precedents = call.capture.lookup_precedents(tool.name, tool.key, failure, arguments)
        failed_arguments = [
            earlier.arguments
            for earlier in (call.run.earlier_calls() if precedents else ())
            if earlier.tool == tool.name and earlier.outcome == "failure" and isinstance(earlier.arguments, Mapping)
        ]
        judge = call.run.judge
        failed_calls = judge.list_open_arguments(call.rules.template.tool_key)
        other_calls = [failed for failed in failed_calls if failed != arguments]
        other_names = differing_names(other_calls[-1], arguments) if other_calls else set()
        is_other_change = call.answers_model and len(other_names) == 1
        ignored_fixes = judge.list_advice(tool.name) if is_other_change else ()
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
        """Return what successful calls of the tool had in common."""
        tool, capture = self.prepared.tool, self.prepared.call.capture
        if tool.learn == "off" or capture.lookup_profiles is None:
            return ()
        return _select_facts(capture.lookup_profiles(tool.name, tool.key), tool, ())

    def lookup_fixes(self, failure: Failure, arguments: Mapping[str, Any]) -> Sequence[Fix]:
        tool, capture = self.prepared.tool, self.prepared.call.capture
        assert capture.lookup_fixes is not None
        schema = tool.schema()
        digest = ""
        if schema:
            with fork_safety.import_lock:
                from mulligan.recover.schema import compile_schema  # lazy: needed after a failure only
            digest = compile_schema(schema).digest
        return capture.lookup_fixes(tool.name, tool.key, failure, arguments, digest)

    def note_advice(self, recovery_failed: RecoveryFailed | None) -> None:
        """Note which fixes the answer or the note on the exception will tell."""
        precedents = recovery_failed.precedents if recovery_failed is not None else ()
        fixes = [precedent.fix for precedent in precedents[:MAX_ADVISED_PRECEDENTS] if precedent.fix]
        call = self.prepared.call
        number = call.number or 0
        advice = [AdvisedFix(number, fix) for fix in fixes]
        advice += [AdvisedFix(number, fix, held_out=True) for fix in self.held_out_fixes]
        if self.is_repair_held_out:
            advice.append(AdvisedFix(number, REPAIR, held_out=True))
        if advice:
            call.run.judge.note_advice(self.prepared.tool.name, advice)


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
        prerequisites=to_prerequisites(suggestion.prerequisites),
        successes=record.successes,
        occurrences=record.trials,
        similarity=0.0 if is_exemplar else record.similarity,
    )


def to_prerequisites(calls: Iterable[PrerequisiteCall]) -> tuple[Prerequisite, ...]:
    return tuple(Prerequisite(tool=call.tool, arguments=call.arguments) for call in calls)
