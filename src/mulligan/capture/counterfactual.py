"""Replays recorded failures: which action current rules and memory would take, compared with what recovered them.

Nothing is called. An action counts as correct only if the record shows the same call succeeding later. If nothing
recovered the failure, the result is undecided.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from mulligan.calls import Call, group_attempts, is_same_json
from mulligan.capture.advice import MOST, advise
from mulligan.failure import Failure, Remedy
from mulligan.records import Effects, Fix, History, Link, Replayed, Step, ordered
from mulligan.recover.policy import Policy
from mulligan.recover.repair import Suggestion

TOLD = 3
"""Suggestions that would be shown to the model."""
Known = Callable[[str, str, Failure, Mapping[str, Any], str, str], Sequence[Fix]]
"""Looks up fixes by tool, tool key, failure, arguments and schema digest. The last argument is a run to exclude, so
that a run cannot learn from itself."""
Schemas = Mapping[str, Mapping[str, Any] | None]


def replayed(
    history: History,
    *,
    policy: Policy,
    known: Known | None = None,
    tools: Schemas | None = None,
    effects: Effects | None = None,
) -> Iterator[Replayed]:
    """Yield, for each failed call of a run, the action that would follow its first failure today.

    `effects` applies to tools whose recorded side effects are unknown.
    """
    links = {link.failed: link for link in history.links}
    steps = ordered(history.steps)
    numbers = [step.seq for step in steps]
    made = group_attempts(steps)
    by_id = {call.id: call for call in made}
    for call in made:
        failed = next((step for step in call.steps if step.has_failed and step.failure is not None), None)
        if failed is None or failed.type not in ("tool", "retrieval") or not isinstance(failed.arguments, Mapping):
            continue
        link = links.get(call.id)
        by = by_id.get(link.overcame) if link is not None else None
        at = bisect_left(numbers, failed.seq)
        before = steps[max(0, at - MOST) : at]
        yield _One(failed, before, link, by, made, policy).replayed(known, tools or {}, effects)


class _One:
    """The replay of one failed call."""

    def __init__(
        self, failed: Step, before: list[Step], link: Link | None, by: Call | None, made: list[Call], policy: Policy
    ) -> None:
        self.failed, self.before, self.link, self.by, self.made, self.policy = failed, before, link, by, made, policy
        assert failed.failure is not None
        self.failure = failed.failure

    def replayed(self, known: Known | None, tools: Schemas, effects: Effects | None) -> Replayed:
        failed = self.failed
        effects = failed.effects or effects
        shared: dict[str, Any] = {
            "run": failed.run,
            "call": failed.call,
            "tool": failed.name,
            "kind": str(self.failure.kind),
            "overcome": self.by is not None,
        }
        if self.failure.remedy is Remedy.WAIT:
            wait = self.policy.wait(2, self.failure.retry_after, 0.5)
            if wait is not None and effects in ("none", "repeatable") and self.policy.attempts > 1:
                agrees = None if self.link is None else self.link.how == "retry"
                return Replayed(**shared, move="wait", agrees=agrees, confidence=0.5, **self._cost(wait, agrees))
            why = "it asked for longer than we would wait" if wait is None else "it is not known to be repeatable"
            return Replayed(**shared, why=why)
        advice = advise(
            failed.name,
            failed.arguments,
            self.failure,
            schema=tools.get(failed.name),
            tools=tools or None,
            run=self.before,
            effects=effects,
            policy=self.policy,
            recall=None if known is None else partial(_recalled, known, failed.run),
            key=failed.tool_key if failed.key or failed.server else "",
        )
        chosen = next((each for each in advice.suggestions if each.automatic), None)
        if chosen is not None and self.policy.attempts > 1:
            agrees = self._agrees(chosen)
            cost = self._cost(self.policy.wait(2, None, 0.5) or 0.0, agrees)
            return Replayed(**shared, move="repair", agrees=agrees, **_of(chosen), **cost)
        if advice.suggestions:
            told = advice.suggestions[:TOLD]
            right = next((each for each in told if self._agrees(each)), None)
            agrees = None if self.link is None else right is not None
            return Replayed(**shared, move="suggest", agrees=agrees, why=advice.why, **_of(right or told[0]))
        return Replayed(**shared, why=advice.why)

    def _agrees(self, suggestion: Suggestion) -> bool | None:
        """Return whether the recovering call matches the suggestion, after its prerequisites."""
        if self.link is None or self.by is None:
            return None
        if not (
            self.by.name == suggestion.tool and is_same_json(dict(self.by.last.arguments or {}), suggestion.arguments)
        ):
            return False
        between = [call for call in self.made if self.failed.call < call.id < self.by.id and call.has_succeeded]
        return all(any(_is(call, each.tool, each.arguments) for call in between) for each in suggestion.first)

    def _cost(self, wait: float, agrees: bool | None) -> dict[str, Any]:
        last = self.failed if self.by is None else self.by.last
        cost: dict[str, Any] = {"seconds": wait + last.seconds}
        if agrees and self.by is not None:
            since = [
                step for call in self.made for step in call.steps if self.failed.seq < step.seq <= self.by.last.seq
            ]
            cost["saved"] = max(0.0, (last.started - self.failed.started) / 1000)
            cost["calls"] = len(since)
            cost["tokens"] = sum(sum((step.tokens or {}).values()) for step in since)
        return cost


def _recalled(
    known: Known, run: str, tool: str, key: str, failure: Failure, arguments: Mapping[str, Any], schema: str
) -> Sequence[Fix]:
    return known(tool, key, failure, arguments, schema, run)


def _is(call: Call, tool: str, arguments: Mapping[str, Any]) -> bool:
    """Return whether a call matches a prerequisite. Numbers are compared by value, lists without order."""
    return call.name == tool and _loosely(call.last.arguments or {}) == _loosely(arguments)


def _loosely(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _loosely(each) for name, each in value.items()}
    return sorted(map(str, value)) if isinstance(value, list) else value


def _of(suggestion: Suggestion) -> dict[str, Any]:
    return {"source": suggestion.source, "fix": suggestion.fix, "confidence": round(suggestion.confidence, 4)}
