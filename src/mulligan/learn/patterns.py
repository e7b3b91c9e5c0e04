"""Failure patterns: the failures of one tool and fingerprint, and the decisions of people about a pattern.

Plain functions of records; the counters are in `store/pattern_counts.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec

from mulligan.classify.fingerprint import build_template
from mulligan.core.failure import UnsupportedOperationError
from mulligan.core.records import Example, Pattern, PatternState, Record, Step
from mulligan.store.base import DAY, PatternCommand, PatternQuery

MAX_SHOWN_AGENTS = 10
MAX_SHOWN_EXAMPLES = 5
"""Limit for a pattern shown to people; a pattern can have many more."""
MAX_MESSAGE_CHARS = 500
"""Length of the message stored with a pattern. The steps hold the full message."""


def order_of(step: Step) -> tuple[int, str, int]:
    """Return the sort key that decides which of two failures came first, independent of arrival order."""
    return step.started_at, step.run, step.seq


def start_of_day(time: int) -> int:
    return time // DAY * DAY


def extract_message_and_template(step: Step) -> tuple[str, str]:
    """Return the message of a failure and its template. Failures with the same template belong to the same pattern."""
    message = step.failure.message if step.failure else ""
    arguments = step.arguments if isinstance(step.arguments, Mapping) else None
    return message[:MAX_MESSAGE_CHARS], build_template(message, arguments)


# Decisions of people


class PatternDecision(Record, frozen=True):
    """The decision of a person about a pattern. Stored apart from the counters, which can be recomputed."""

    state: PatternState | None = None
    at: int = 0
    reopened: int = 0
    into: str | None = None


def apply_command(command: PatternCommand, before: PatternDecision, current: Pattern) -> PatternDecision:
    """Return the decision after a command. `current` is the pattern before the command."""
    match command.action:
        case "mute":
            return PatternDecision(state="muted", at=command.at, reopened=current.reopened, into=before.into)
        case "resolve":
            return PatternDecision(state="resolved", at=command.at, reopened=current.reopened, into=before.into)
        case "unmute" | "reopen":
            return PatternDecision(reopened=current.reopened, into=before.into)
        case "merge":
            return PatternDecision(state=before.state, at=before.at, reopened=before.reopened, into=command.into)
        case "split":
            return PatternDecision(state=before.state, at=before.at, reopened=before.reopened)


def resolve_command(
    command: PatternCommand, pattern_ids: Collection[str], decisions: Mapping[str, PatternDecision]
) -> tuple[PatternCommand, str] | None:
    """Return the command with complete ids, and the id of the pattern to change; None if there is no such pattern.

    A command for a merged pattern applies to the pattern it was merged into, except `split`, which applies to the
    merged one.
    """
    pattern = complete_id(command.pattern, pattern_ids)
    if pattern is None:
        return None
    if command.action == "split":
        return command, pattern
    pattern = find_merge_root(pattern, decisions)
    if command.action != "merge":
        return command, pattern
    if command.into is None:
        raise UnsupportedOperationError(
            "Merging needs two pattern ids: the pattern to merge and the pattern to merge it into."
        )
    into = complete_id(command.into, pattern_ids)
    if into is None:
        raise UnsupportedOperationError(f"No pattern {command.into}. List patterns: mulligan patterns")
    into = find_merge_root(into, decisions)
    if into == pattern:
        raise UnsupportedOperationError(f"{command.pattern} and {command.into} are already merged.")
    return msgspec.structs.replace(command, into=into), pattern


def complete_id(id: str, existing_ids: Collection[str]) -> str | None:
    """Return the existing id that equals this id or uniquely starts with it; None if there is none."""
    if id in existing_ids:
        return id
    matching_ids = [existing_id for existing_id in existing_ids if existing_id.startswith(id)]
    return matching_ids[0] if len(matching_ids) == 1 else None


def limit_details(pattern: Pattern, with_examples: bool = False) -> Pattern:
    """Return the pattern with its most frequent agents and, on request, its newest examples."""
    agents = dict(sorted(pattern.agents.items(), key=lambda item: (-item[1], item[0]))[:MAX_SHOWN_AGENTS])
    examples = sorted(pattern.examples, key=_newest)[:MAX_SHOWN_EXAMPLES] if with_examples else ()
    return msgspec.structs.replace(pattern, agents=agents, examples=tuple(examples))


def find_merge_root(id: str, decisions: Mapping[str, PatternDecision]) -> str:
    """Follow merges from a pattern. Return the id it is counted under, its own if it was not merged."""
    visited_ids = {id}
    while (
        (decision := decisions.get(id)) is not None and decision.into is not None and decision.into not in visited_ids
    ):
        id = decision.into
        visited_ids.add(id)
    return id


def merge_patterns(parts: Iterable[Pattern], decisions: Mapping[str, PatternDecision]) -> list[Pattern]:
    """Combine merged patterns and set the state of each resulting pattern."""
    patterns_by_id = {part.id: part for part in parts}
    groups: dict[str, list[Pattern]] = {
        id: [part] for id, part in patterns_by_id.items() if find_merge_root(id, decisions) == id
    }
    for id, part in patterns_by_id.items():
        root_id = find_merge_root(id, decisions)
        if root_id != id:
            # The target of a merge may have been deleted; then the merged pattern counts separately.
            groups.setdefault(root_id if root_id in patterns_by_id else id, []).append(part)
    return [_merge_group(id, group, decisions.get(id, PatternDecision())) for id, group in groups.items()]


def _merge_group(id: str, group: list[Pattern], decision: PatternDecision) -> Pattern:
    first, last = min(part.first_seen_at for part in group), max(part.last_seen_at for part in group)
    main = next(part for part in group if part.id == id)
    agents: dict[str, int] = {}
    days: dict[int, int] = {}
    for part in group:
        for agent, count in part.agents.items():
            agents[agent] = agents.get(agent, 0) + count
        for day, count in part.days.items():
            days[day] = days.get(day, 0) + count
    state, is_reopened = _state(decision, first, last)
    return Pattern(
        id=id,
        tool=main.tool,
        server=main.server,
        fingerprint=main.fingerprint,
        kind=main.kind,
        message=main.message,
        template=main.template,
        occurrences=sum(part.occurrences for part in group),
        recovered=sum(part.recovered for part in group),
        unrecovered=sum(part.unrecovered for part in group),
        runs=sum(part.runs for part in group),
        first_seen_at=first,
        last_seen_at=last,
        agents=agents,
        examples=tuple(example for part in group for example in part.examples),
        days=dict(sorted(days.items())),
        state=state,
        reopened=decision.reopened + is_reopened,
        merged=tuple(sorted(part.id for part in group if part.id != id)),
    )


def _newest(example: Example) -> tuple[int, str, int]:
    return -example.started_at, example.run, example.seq


def _state(decision: PatternDecision, first: int, last: int) -> tuple[PatternState, bool]:
    """Return the state, and whether the pattern occurred again after it was resolved."""
    if decision.state == "muted":
        return "muted", False
    if decision.state == "resolved" and last <= decision.at:
        return "resolved", False
    is_reopened = decision.state == "resolved"
    return ("new" if last - first < DAY and not is_reopened else "active"), is_reopened


def matches_query(pattern: Pattern, query: PatternQuery) -> bool:
    if pattern.state != query.state and (query.state is not None or pattern.state == "muted"):
        return False
    if query.text is not None and not contains_text(pattern, query.text):
        return False
    return (
        (query.tool is None or pattern.tool == query.tool)
        and (query.kind is None or matches_kind(pattern.kind, query.kind))
        and (query.agent is None or query.agent in pattern.agents)
        and (query.since is None or pattern.last_seen_at >= query.since)
        and (query.new_since is None or pattern.first_seen_at >= query.new_since)
    )


def contains_text(pattern: Pattern, text: str) -> bool:
    """Return whether tool, kind, message or template contain the text, ignoring case."""
    texts = (pattern.tool, pattern.kind, pattern.message, pattern.template)
    return text.casefold() in "\n".join(texts).casefold()


def matches_kind(kind: str, kind_filter: str) -> bool:
    """Return whether a kind matches the filter. A filter such as `tool/` matches all kinds of that type."""
    return kind.startswith(kind_filter) if kind_filter.endswith("/") else kind == kind_filter


def sort_patterns(patterns: Iterable[Pattern], query: PatternQuery) -> list[Pattern]:
    field = {"last_seen": "last_seen_at", "first_seen": "first_seen_at"}.get(query.order, query.order)
    ordered_patterns = sorted(patterns, key=lambda pattern: (-getattr(pattern, field), pattern.id))
    return ordered_patterns[: max(query.limit, 0)]
