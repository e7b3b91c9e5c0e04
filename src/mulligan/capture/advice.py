"""Suggests repairs for a failed call on request, by the same rules as recovery."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import msgspec

from mulligan.classify.classifier import classify
from mulligan.classify.taxonomy import TOOL_INVALID_ARGUMENTS
from mulligan.failure import Failure, Kind, Ran, Remedy, SettingsError, one_of
from mulligan.records import Effects, Fix, Outcome, Step
from mulligan.recover.policy import Policy
from mulligan.recover.repair import Suggestion, suggest
from mulligan.recover.schema import pinned
from mulligan.recover.tool import Mode, Seen, Tool

MOST = 200
"""Earlier calls of a run that are considered, the latest."""
_WHY = {
    Remedy.WAIT: "waiting is what may help",
    Remedy.COMPRESS: "the conversation is too long",
    Remedy.STOP: "only a person can help",
}


Match = Callable[[str, Failure, str, Mapping[str, Any]], Failure]
"""Returns the failure that a store has recorded for the text of an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Suggested calls after a failure, the most likely first, and why there is no better one."""

    kind: Kind
    suggestions: tuple[Suggestion, ...] = ()
    why: str = ""
    """Why there is no suggestion, or why the first is not applied automatically."""

    @property
    def abstained(self) -> bool:
        return not self.suggestions


def advise(
    tool: str,
    arguments: Mapping[str, Any],
    error: object,
    *,
    classify: Callable[..., Failure] = classify,
    schema: Mapping[str, Any] | None = None,
    tools: Mapping[str, Mapping[str, Any] | None] | None = None,
    run: Iterable[Any] = (),
    privileged: Iterable[str] = (),
    released: Iterable[str] = (),
    effects: Effects | None = None,
    destructive: bool = False,
    mode: Mode = "repair",
    policy: Policy | None = None,
    recall: Callable[[str, str, Failure, Mapping[str, Any], str], Sequence[Fix]] | None = None,
    key: str = "",
    match: Match | None = None,
) -> Advice:
    """Suggest repairs for one failed call, as if the tool were wrapped with these options.

    Without `effects`, the tool counts as "once". A rejection of its arguments then counts as one before execution, like
    an `AgentError` of its developer.
    """
    for name, value, choices in (("effects", effects or "once", get_args(Effects)), ("mode", mode, get_args(Mode))):
        one_of(name, value, choices)
    failure = error if isinstance(error, Failure) else _failure(error, tool, arguments, classify)
    if isinstance(error, str) and match is not None:
        failure = match(tool, failure, error, arguments)
    if effects is None and failure.kind == TOOL_INVALID_ARGUMENTS and failure.ran is Ran.UNKNOWN:
        failure = msgspec.structs.replace(failure, ran=Ran.NO)
    about = Tool(
        name=tool,
        key=key,
        effects=effects or "once",
        mode=mode,
        schema=lambda: schema,
        privileged=frozenset(privileged),
        released=frozenset(released),
        destructive=destructive,
    )
    known = dict(tools or {})
    if schema is not None and known:
        known.setdefault(tool, schema)
    seen = [_seen(each) for each in list(run)[-MOST:]]
    confidence = (policy or Policy()).confidence
    digest = pinned(schema).digest if schema else ""
    fixes = recall(tool, key, failure, arguments, digest) if recall is not None else ()
    made = suggest(arguments, failure, about, seen, tools=known, confidence=confidence, known=fixes)
    why = made[0].why if made else _WHY.get(failure.remedy, "nothing known would mend it")
    if not failure.counts:
        why = "it is not a failure"
    return Advice(kind=failure.kind, suggestions=tuple(made), why=why)


def _failure(error: object, tool: str, arguments: Mapping[str, Any], classify: Callable[..., Failure]) -> Failure:
    if isinstance(error, str):
        return classify(source="tool", text=error, tool=tool, arguments=arguments)
    return classify(error, source="tool", tool=tool, arguments=arguments)


def _seen(call: Any) -> Seen:
    """Convert an earlier call of the run from a step or a dictionary."""
    if isinstance(call, Seen):
        return call
    if isinstance(call, Step):
        told = call.result if call.failure is None else call.failure.message
        return Seen(call.name, call.arguments, call.outcome, told)
    if not isinstance(call, Mapping) or not isinstance(call.get("tool"), str):
        raise SettingsError(f"an earlier call is {{tool, arguments, outcome, result or error}}, got {call!r:.80}.")
    failed = call.get("error") is not None and call.get("outcome") is None
    outcome: Outcome = call.get("outcome") or ("failure" if failed else "success")
    if outcome not in get_args(Outcome):
        raise SettingsError(f"outcome is {', '.join(get_args(Outcome))}, got {outcome!r:.80}.")
    told = call.get("error") if outcome == "failure" else call.get("result")
    return Seen(call["tool"], call.get("arguments"), outcome, told)
