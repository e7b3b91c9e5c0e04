"""Suggests repairs for a failed call on request, by the same rules as recovery."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import msgspec

from mulligan.classify.classifier import classify
from mulligan.classify.kinds import TOOL_INVALID_ARGUMENTS
from mulligan.core.failure import Failure, Kind, Remedy, SettingsError, TookEffect, require_choice
from mulligan.core.records import Effects, Fix, Outcome, Step
from mulligan.recover.policy import EarlierCall, Mode, Policy, Suggestion, Tool
from mulligan.recover.schema import compile_schema

MAX_EARLIER_CALLS = 200
"""Earlier calls of a run that are considered, the latest."""
_NO_SUGGESTION_REASONS = {
    Remedy.RETRY: "a retry may help, not a repair",
    Remedy.COMPRESS: "the conversation exceeds the context window",
    Remedy.STOP: "a person must act",
}


Match = Callable[[str, Failure, str, Mapping[str, Any]], Failure]
"""Returns the failure that a store has recorded for the text of an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuggestionResult:
    """Suggested calls after a failure, the most likely first, and why there is no better one."""

    kind: Kind
    suggestions: tuple[Suggestion, ...] = ()
    reason: str = ""
    """Why there is no suggestion, or why the first is not applied automatically."""

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
    tools: Mapping[str, Mapping[str, Any] | None] | None = None,
    run: Iterable[Any] = (),
    privileged: Iterable[str] = (),
    unprivileged: Iterable[str] = (),
    effects: Effects | None = None,
    destructive: bool = False,
    mode: Mode = "repair",
    policy: Policy | None = None,
    recall: Callable[[str, str, Failure, Mapping[str, Any], str], Sequence[Fix]] | None = None,
    key: str = "",
    match: Match | None = None,
) -> SuggestionResult:
    """Suggest repairs for one failed call, as if the tool were wrapped with these options.

    Without `effects`, the tool counts as "once". A rejection of its arguments then counts as one before execution, like
    an `AgentError` of its developer.
    """
    for name, value, choices in (("effects", effects or "once", get_args(Effects)), ("mode", mode, get_args(Mode))):
        require_choice(name, value, choices)
    from mulligan.recover.repair import suggest  # lazy: needed for failures only

    failure = error if isinstance(error, Failure) else _failure(error, tool, arguments, classify)
    if isinstance(error, str) and match is not None:
        failure = match(tool, failure, error, arguments)
    if effects is None and failure.kind == TOOL_INVALID_ARGUMENTS and failure.took_effect is TookEffect.UNKNOWN:
        failure = msgspec.structs.replace(failure, took_effect=TookEffect.NO)
    tool_rules = Tool(
        name=tool,
        key=key,
        effects=effects or "once",
        mode=mode,
        schema=lambda: schema,
        privileged=frozenset(privileged),
        unprivileged=frozenset(unprivileged),
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
        arguments, failure, tool_rules, earlier_calls, tools=schemas_by_tool, min_confidence=confidence, fixes=fixes
    )
    reason = suggestions[0].reason if suggestions else _NO_SUGGESTION_REASONS.get(failure.remedy, "no repair found")
    if not failure.is_failure:
        reason = "the result is not a failure"
    return SuggestionResult(kind=failure.kind, suggestions=tuple(suggestions), reason=reason)


def _failure(error: object, tool: str, arguments: Mapping[str, Any], classify: Callable[..., Failure]) -> Failure:
    if isinstance(error, str):
        return classify(source="tool", text=error, tool=tool, arguments=arguments)
    return classify(error, source="tool", tool=tool, arguments=arguments)


def _to_earlier_call(call: Any) -> EarlierCall:
    """Convert an earlier call of the run from a step or a dictionary."""
    if isinstance(call, EarlierCall):
        return call
    if isinstance(call, Step):
        result_or_error = call.result if call.failure is None else call.failure.message
        return EarlierCall(call.name, call.arguments, call.outcome, result_or_error)
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
