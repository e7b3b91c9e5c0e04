"""Replays recorded failures: which action current rules and memory would take, compared with what recovered them.

Nothing is called. An action counts as correct only if the record shows the same call succeeding later. If nothing
recovered the failure, the result is undecided.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mulligan.capture.suggestions import MAX_EARLIER_CALLS, suggest_repairs
from mulligan.core.calls import Call, group_attempts, is_same_json
from mulligan.core.failure import Failure, Remedy
from mulligan.core.records import Effects, Fix, History, Link, ReplayResult, Step, sort_steps
from mulligan.recover.policy import Policy, Suggestion

MAX_SHOWN_SUGGESTIONS = 3
"""Suggestions that would be shown to the model."""
FixRecall = Callable[..., Sequence[Fix]]
"""Looks up fixes by tool, tool key, failure, arguments and schema digest. The last argument is a run to exclude, so
that a run cannot learn from itself."""
Schemas = Mapping[str, Mapping[str, Any] | None]


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
    links = {link.failed_call: link for link in history.links}
    steps = sort_steps(history.steps)
    numbers = [step.seq for step in steps]
    calls = group_attempts(steps)
    by_id = {call.id: call for call in calls}
    for call in calls:
        failed = next((step for step in call.steps if step.has_failed and step.failure is not None), None)
        if (
            failed is None
            or failed.failure is None
            or failed.type not in ("tool", "retrieval")
            or not isinstance(failed.arguments, Mapping)
        ):
            continue
        link = links.get(call.id)
        recovering_call = by_id.get(link.recovering_call) if link is not None else None
        index = bisect_left(numbers, failed.seq)
        earlier_steps = steps[max(0, index - MAX_EARLIER_CALLS) : index]
        yield _FailureReplay(failed, failed.failure, earlier_steps, link, recovering_call, calls, policy).replay(
            recall_fixes, tools or {}, effects
        )


@dataclass(frozen=True, slots=True)
class _FailureReplay:
    """The replay of one failed call."""

    failed: Step
    failure: Failure
    earlier_steps: list[Step]
    link: Link | None
    recovering_call: Call | None
    calls: list[Call]
    policy: Policy

    def replay(self, recall_fixes: FixRecall | None, tools: Schemas, effects: Effects | None) -> ReplayResult:
        failed = self.failed
        effects = failed.effects or effects
        shared: dict[str, Any] = {
            "run": failed.run,
            "call": failed.call,
            "tool": failed.name,
            "kind": str(self.failure.kind),
            "recovered": self.recovering_call is not None,
        }
        if self.failure.remedy is Remedy.RETRY:
            wait = self.policy.compute_backoff(2, self.failure.retry_after, 0.5)
            if wait is not None and effects in ("none", "idempotent") and self.policy.attempts > 1:
                agrees = None if self.link is None else self.link.method == "retry"
                return ReplayResult(**shared, move="retry", agrees=agrees, confidence=0.5, **self._cost(wait, agrees))
            reason = (
                "Retry-After is above the maximum backoff"
                if wait is None
                else "the tool is not declared safe to repeat"
            )
            return ReplayResult(**shared, reason=reason)
        advice = suggest_repairs(
            failed.name,
            failed.arguments,
            self.failure,
            schema=tools.get(failed.name),
            tools=tools or None,
            run=self.earlier_steps,
            effects=effects,
            policy=self.policy,
            recall=None if recall_fixes is None else lambda *query: recall_fixes(*query, failed.run),
            key=failed.tool_key if failed.key or failed.server else "",
        )
        automatic_suggestion = next((suggestion for suggestion in advice.suggestions if suggestion.automatic), None)
        if automatic_suggestion is not None and self.policy.attempts > 1:
            agrees = self._agrees(automatic_suggestion)
            cost = self._cost(self.policy.compute_backoff(2, None, 0.5) or 0.0, agrees)
            return ReplayResult(
                **shared, move="repair", agrees=agrees, **_describe_suggestion(automatic_suggestion), **cost
            )
        if advice.suggestions:
            shown_suggestions = advice.suggestions[:MAX_SHOWN_SUGGESTIONS]
            right = next((suggestion for suggestion in shown_suggestions if self._agrees(suggestion)), None)
            agrees = None if self.link is None else right is not None
            return ReplayResult(
                **shared,
                move="suggest",
                agrees=agrees,
                reason=advice.reason,
                **_describe_suggestion(right or shown_suggestions[0]),
            )
        return ReplayResult(**shared, reason=advice.reason)

    def _agrees(self, suggestion: Suggestion) -> bool | None:
        """Return whether the recovering call matches the suggestion, after its prerequisites."""
        if self.link is None or self.recovering_call is None:
            return None
        if not (
            self.recovering_call.name == suggestion.tool
            and is_same_json(dict(self.recovering_call.last.arguments or {}), suggestion.arguments)
        ):
            return False
        between = [
            call for call in self.calls if self.failed.call < call.id < self.recovering_call.id and call.has_succeeded
        ]
        return all(
            any(_is_same_call(call, prerequisite.tool, prerequisite.arguments) for call in between)
            for prerequisite in suggestion.prerequisites
        )

    def _cost(self, wait: float, agrees: bool | None) -> dict[str, Any]:
        last = self.failed if self.recovering_call is None else self.recovering_call.last
        cost: dict[str, Any] = {"seconds": wait + last.duration_seconds}
        if agrees and self.recovering_call is not None:
            since = [
                step
                for call in self.calls
                for step in call.steps
                if self.failed.seq < step.seq <= self.recovering_call.last.seq
            ]
            cost["saved_seconds"] = max(0.0, (last.started_at - self.failed.started_at) / 1000)
            cost["calls"] = len(since)
            cost["tokens"] = sum(sum((step.tokens or {}).values()) for step in since)
        return cost


def _is_same_call(call: Call, tool: str, arguments: Mapping[str, Any]) -> bool:
    """Return whether a call matches a prerequisite. Numbers are compared by value, lists without order."""
    return call.name == tool and _normalize(call.last.arguments or {}) == _normalize(arguments)


def _normalize(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _normalize(member) for name, member in value.items()}
    return sorted(map(str, value)) if isinstance(value, list) else value


def _describe_suggestion(suggestion: Suggestion) -> dict[str, Any]:
    return {"source": suggestion.source, "fix_id": suggestion.fix_id, "confidence": round(suggestion.confidence, 4)}
