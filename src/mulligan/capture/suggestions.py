"""Repairs on request, by the same rules as recovery: suggestions for one failed call, and the replay of recorded ones.

Nothing is called. A replay compares the action that current rules and memory would take with what recovered the call.
An action counts as correct only if the record shows the same call succeeding later. If nothing recovered the failure,
the result is undecided.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import msgspec

from mulligan.classify.classifier import classify
from mulligan.core import fork_safety
from mulligan.core.calls import Call, group_attempts, is_same_json
from mulligan.core.failure import Failure, Kind, Remedy, SettingsError, TookEffect, require_choice
from mulligan.core.records import Effects, Fix, History, Link, Outcome, ReplayResult, Step, ValueProfile, sort_steps
from mulligan.recover.policy import EarlierCall, Mode, Policy, Suggestion, Tool
from mulligan.recover.reflection import CalibratedReflection
from mulligan.recover.schema import compile_schema

MAX_EARLIER_CALLS = 200
"""Earlier calls of a run that are considered, the latest."""
_NO_SUGGESTION_REASONS = {
    Remedy.RETRY: "a retry may help, not a repair",
    Remedy.COMPRESS: "the conversation exceeds the context window",
    Remedy.STOP: "a person must act",
}


Schemas = Mapping[str, Mapping[str, Any] | None]
LookupFacts = Callable[[str, str, Failure, Mapping[str, Any]], Sequence[ValueProfile]]
"""Returns the facts about successful calls that a failed call contradicts, by tool, key, failure and arguments."""
Match = Callable[[str, Failure, str, Mapping[str, Any]], Failure]
"""Returns the failure that a store has recorded for the text of an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuggestionResult:
    """Suggested calls after a failure, the most likely first, and why there is no better one."""

    kind: Kind
    suggestions: tuple[Suggestion, ...] = ()
    reason: str = ""
    """Why there is no suggestion, or why the first is not applied automatically."""
    facts: tuple[ValueProfile, ...] = ()
    """What successful calls of the tool had in common, and this call has not. Never a reason to change a call alone."""

    @property
    def abstained(self) -> bool:
        return not self.suggestions


def suggest_repairs(
    tool: str,
    arguments: Mapping[str, Any],
    error: object,
    *,
    classify: Callable[..., Failure] = classify,
    schema: Mapping[str, Any] | None = None,
    tools: Schemas | None = None,
    run: Iterable[Any] = (),
    privileged: Iterable[str] = (),
    unprivileged: Iterable[str] = (),
    clamp: Iterable[str] = (),
    effects: Effects | None = None,
    destructive: bool = False,
    mode: Mode = "repair",
    policy: Policy | None = None,
    recall: Callable[[str, str, Failure, Mapping[str, Any], str], Sequence[Fix]] | None = None,
    key: str = "",
    match: Match | None = None,
    lookup_facts: LookupFacts | None = None,
    reflection: CalibratedReflection | None = None,
) -> SuggestionResult:
    """Suggest repairs for one failed call, as if the tool were wrapped with these options.

    Without `effects`, the tool counts as "once". A rejection of its arguments then counts as one before execution, like
    an `AgentError` of its developer.
    """
    for name, value, choices in (("effects", effects or "once", get_args(Effects)), ("mode", mode, get_args(Mode))):
        require_choice(name, value, choices)
    with fork_safety.import_lock:
        from mulligan.recover.repair import suggest  # lazy: needed for failures only

    if isinstance(error, Failure):
        failure = error
    elif isinstance(error, str):
        failure = classify(source="tool", text=error, tool=tool, arguments=arguments)
        failure = failure if match is None else match(tool, failure, error, arguments)
    else:
        failure = classify(error, source="tool", tool=tool, arguments=arguments)
    if effects is None and failure.kind.rejects_arguments and failure.took_effect is TookEffect.UNKNOWN:
        failure = msgspec.structs.replace(failure, took_effect=TookEffect.NO)
    tool_rules = Tool(
        name=tool,
        key=key,
        effects=effects or "once",
        mode=mode,
        schema=lambda: schema,
        privileged=frozenset(privileged),
        unprivileged=frozenset(unprivileged),
        clamp=frozenset(clamp),
        destructive=destructive,
    )
    schemas_by_tool = dict(tools or {})
    if schema is not None and schemas_by_tool:
        schemas_by_tool.setdefault(tool, schema)
    earlier_calls = [_to_earlier_call(call) for call in list(run)[-MAX_EARLIER_CALLS:]]
    confidence = (policy or Policy()).min_confidence
    digest = compile_schema(schema).digest if schema else ""
    fixes = recall(tool, key, failure, arguments, digest) if recall is not None else ()
    suggestions = suggest(
        arguments, failure, tool_rules, earlier_calls, tools=schemas_by_tool, min_confidence=confidence, fixes=fixes,
        reflection=reflection,
    )  # fmt: skip
    reason = suggestions[0].reason if suggestions else _NO_SUGGESTION_REASONS.get(failure.remedy, "no repair found")
    if not failure.is_failure:
        reason = "the result is not a failure"
    facts = tuple(lookup_facts(tool, key, failure, arguments)) if lookup_facts is not None else ()
    return SuggestionResult(kind=failure.kind, suggestions=tuple(suggestions), reason=reason, facts=facts)


def _to_earlier_call(call: Any) -> EarlierCall:
    """Convert an earlier call of the run from a step or a dictionary."""
    if isinstance(call, EarlierCall):
        return call
    if isinstance(call, Step):
        return EarlierCall.from_step(call)
    if not isinstance(call, Mapping) or not isinstance(call.get("tool"), str):
        raise SettingsError(
            f"Invalid earlier call {call!r:.80}. "
            "Use a Step or a dictionary with tool, arguments, outcome, and result or error."
        )
    failed = call.get("error") is not None and call.get("outcome") is None
    outcome: Outcome = call.get("outcome") or ("failure" if failed else "success")
    if outcome not in get_args(Outcome):
        raise SettingsError(
            f"Invalid outcome {outcome!r:.80} of an earlier call. Use one of {', '.join(get_args(Outcome))}."
        )
    result_or_error = call.get("error") if outcome == "failure" else call.get("result")
    return EarlierCall(call["tool"], call.get("arguments"), outcome, result_or_error)


FixRecall = Callable[..., Sequence[Fix]]
"""Looks up fixes by tool, tool key, failure, arguments and schema digest. The last argument is a run to exclude, so
that a run cannot learn from itself."""


def replay_failures(
    history: History,
    *,
    policy: Policy,
    recall_fixes: FixRecall | None = None,
    tools: Schemas | None = None,
    effects: Effects | None = None,
) -> Iterator[ReplayResult]:
    """Yield, for each failed call of a run, the action that would follow its first failure today.

    `effects` applies to tools whose recorded side effects are unknown.
    """
    steps = sort_steps(history.steps)
    calls = group_attempts(steps)
    calls_by_id = {call.id: call for call in calls}
    links = history.links_by_call
    for call in calls:
        failed = next((step for step in call.steps if step.has_failed and step.failure is not None), None)
        if failed is None or failed.type not in ("tool", "retrieval") or not isinstance(failed.arguments, Mapping):
            continue
        assert failed.failure is not None
        link = links.get(call.id)
        replay = _FailureReplay(failed, link, calls_by_id.get(link.recovering_call) if link else None, calls)
        index = bisect_left(steps, failed.seq, key=lambda step: step.seq)
        known_effects = failed.effects or effects
        if failed.failure.remedy is Remedy.RETRY:
            action = replay.replay_retry(failed.failure, policy, known_effects)
        else:
            advice = suggest_repairs(
                failed.name,
                failed.arguments,
                failed.failure,
                schema=(tools or {}).get(failed.name),
                tools=tools,
                run=steps[:index],
                effects=known_effects,
                policy=policy,
                recall=_exclude_run(recall_fixes, failed.run) if recall_fixes else None,
                key=failed.tool_key if failed.key or failed.server else "",
            )
            action = replay.replay_repair(advice, policy)
        yield ReplayResult(
            run=failed.run,
            call=failed.call,
            tool=failed.name,
            kind=str(failed.failure.kind),
            recovered=replay.recovering_call is not None,
            **action,
        )


def _exclude_run(recall_fixes: FixRecall, run: str) -> FixRecall:
    return lambda *query: recall_fixes(*query, run)


@dataclass(frozen=True, slots=True)
class _FailureReplay:
    failed: Step
    link: Link | None
    recovering_call: Call | None
    calls: list[Call]

    def replay_retry(self, failure: Failure, policy: Policy, effects: Effects | None) -> dict[str, Any]:
        wait = policy.compute_backoff(2, failure.retry_after, 0.5)
        if wait is None:
            return {"reason": "Retry-After is above the maximum backoff"}
        if effects not in ("none", "idempotent") or not policy.allows_recovery:
            return {"reason": "the tool is not declared safe to repeat"}
        agrees = None if self.link is None else self.link.method == "retry"
        return {"move": "retry", "agrees": agrees, "confidence": 0.5, **self._cost(wait, agrees)}

    def replay_repair(self, advice: SuggestionResult, policy: Policy) -> dict[str, Any]:
        # Suggestions that would be shown to the model.
        shown_suggestions = advice.suggestions[:3]
        if not shown_suggestions:
            return {"reason": advice.reason}
        automatic = next((suggestion for suggestion in advice.suggestions if suggestion.automatic), None)
        if automatic is not None and policy.allows_recovery:
            agrees = self._agrees(automatic)
            cost = self._cost(policy.compute_backoff(2, None, 0.5) or 0.0, agrees)
            action = {"move": "repair", "agrees": agrees, **cost}
            suggestion = automatic
        else:
            right = next((suggestion for suggestion in shown_suggestions if self._agrees(suggestion)), None)
            agrees = None if self.link is None else right is not None
            action = {"move": "suggest", "agrees": agrees, "reason": advice.reason}
            suggestion = right or shown_suggestions[0]
        return {
            **action,
            "source": suggestion.source,
            "fix_id": suggestion.fix_id,
            "confidence": round(suggestion.confidence, 4),
        }

    def _agrees(self, suggestion: Suggestion) -> bool | None:
        """Return whether the recovering call matches the suggestion, after its prerequisites."""
        recovering = self.recovering_call
        if recovering is None:
            return None
        if recovering.name != suggestion.tool or not is_same_json(
            dict(recovering.last.arguments or {}), suggestion.arguments
        ):
            return False
        between = [
            (call.name, _normalize(call.last.arguments or {}))
            for call in self.calls
            if self.failed.call < call.id < recovering.id and call.has_succeeded
        ]
        return all((call.tool, _normalize(call.arguments)) in between for call in suggestion.prerequisites)

    def _cost(self, wait: float, agrees: bool | None) -> dict[str, Any]:
        recovering = self.recovering_call
        last = self.failed if recovering is None else recovering.last
        cost: dict[str, Any] = {"seconds": wait + last.duration_seconds}
        if agrees and recovering is not None:
            steps = [step for call in self.calls for step in call.steps if self.failed.seq < step.seq <= last.seq]
            cost["saved_seconds"] = max(0.0, (last.started_at - self.failed.started_at) / 1000)
            cost["calls"] = len(steps)
            cost["tokens"] = sum(step.token_count for step in steps)
        return cost


def _normalize(value: Any) -> Any:
    """Normalize the arguments of a prerequisite: numbers are compared by value, lists without order."""
    if isinstance(value, Mapping):
        return {name: _normalize(member) for name, member in value.items()}
    return sorted(map(str, value)) if isinstance(value, list) else value
