"""Failure patterns: counting the failures of one tool and fingerprint, and the decisions of people about a pattern.

Plain functions of records. The in-memory store counts all records on each query and the database stores keep running
counters; both return the same patterns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

import msgspec

from mulligan import calls
from mulligan.classify.fingerprint import template
from mulligan.failure import Unanswerable
from mulligan.records import Example, History, Pattern, PatternState, Record, Step, pattern_id
from mulligan.remember.store import DAY, Command, PatternQuery

AGENTS = 10
EXAMPLES = 5
"""Limit for a pattern shown to people; a pattern can have many more."""
MESSAGE = 500
"""Length of the message stored with a pattern. The steps hold the full message."""


class Sighting(msgspec.Struct, frozen=True):
    """A failed attempt, with the fields that its pattern counts."""

    step: Step
    agent: str
    is_overcome: bool

    @property
    def pattern(self) -> str:
        assert self.step.failure is not None
        return pattern_id(self.step.name, self.step.failure.fingerprint)


def is_sighting(step: Step) -> bool:
    return step.has_failed and step.failure is not None and bool(step.failure.fingerprint)


def sightings(history: History) -> Iterator[Sighting]:
    """Yield each failed attempt of a run.

    It counts as recovered if its call recovered, by a later attempt or by a later call.
    """
    linked = {link.failed for link in history.links}
    for call in calls.group_attempts(history.steps):
        if call.has_failed:
            is_overcome = call.has_succeeded or call.id in linked
            for step in call.steps:
                if is_sighting(step):
                    yield Sighting(step, history.run.agent, is_overcome)


class Tally:
    """Counters of one pattern. All are sums, except the first and last time and the message of the first failure."""

    def __init__(self, sighting: Sighting) -> None:
        step, failure = sighting.step, sighting.step.failure
        assert failure is not None
        self.tool, self.fingerprint = step.name, failure.fingerprint
        self.runs: set[str] = set()
        self.agents: dict[str, int] = {}
        self.days: dict[int, list[int]] = {}
        self.first = step
        self.last = step.started
        self.examples: list[Example] = []

    def add(self, sighting: Sighting, is_gone: bool = False) -> None:
        step = sighting.step
        self.runs.add(step.run)
        self.agents[sighting.agent] = self.agents.get(sighting.agent, 0) + 1
        day = self.days.setdefault(day_of(step.started), [0, 0])
        day[0] += 1
        day[1] += sighting.is_overcome
        if order_of(step) < order_of(self.first):
            self.first = step
        self.last = max(self.last, step.started)
        if not is_gone:  # only a stored step can serve as an example
            self.examples.append(Example(run=step.run, seq=step.seq, started=step.started))

    def pattern(self, since: int | None = None) -> Pattern:
        days = {day: sums for day, sums in sorted(self.days.items()) if since is None or day >= day_of(since)}
        count = sum(count for count, _ in days.values())
        overcome = sum(overcome for _, overcome in days.values())
        message, masked = worded(self.first)
        return Pattern(
            id=pattern_id(self.tool, self.fingerprint),
            tool=self.tool,
            server=self.first.server,
            fingerprint=self.fingerprint,
            kind=str(self.first.failure.kind) if self.first.failure else "",
            message=message,
            template=masked,
            count=count,
            overcome=overcome,
            given_up=count - overcome,
            runs=len(self.runs),
            first=self.first.started,
            last=self.last,
            agents=self.agents,
            examples=tuple(self.examples),
            days={day: count for day, (count, _) in days.items()},
        )


def order_of(step: Step) -> tuple[int, str, int]:
    """Return the sort key that decides which of two failures came first, independent of arrival order."""
    return step.started, step.run, step.seq


def day_of(time: int) -> int:
    return time // DAY * DAY


def worded(step: Step) -> tuple[str, str]:
    """Return the message of a failure and its template. Failures with the same template belong to the same pattern."""
    message = step.failure.message if step.failure else ""
    arguments = step.arguments if isinstance(step.arguments, Mapping) else None
    return message[:MESSAGE], template(message, arguments)


# Decisions of people


class Decision(Record, frozen=True):
    """The decision of a person about a pattern. Stored apart from the counters, which can be recomputed."""

    state: PatternState | None = None
    at: int = 0
    reopened: int = 0
    into: str | None = None


def decided(command: Command, before: Decision, current: Pattern) -> Decision:
    """Return the decision after a command. `current` is the pattern before the command."""
    match command.do:
        case "mute":
            return Decision(state="muted", at=command.at, reopened=current.reopened, into=before.into)
        case "resolve":
            return Decision(state="resolved", at=command.at, reopened=current.reopened, into=before.into)
        case "unmute" | "reopen":
            return Decision(reopened=current.reopened, into=before.into)
        case "merge":
            return Decision(state=before.state, at=before.at, reopened=before.reopened, into=command.into)
        case "split":
            return Decision(state=before.state, at=before.at, reopened=before.reopened)


def named(command: Command, known: Collection[str], decisions: Mapping[str, Decision]) -> tuple[Command, str] | None:
    """Return the command with complete ids, and the id of the pattern to change; None if there is no such pattern.

    A command for a merged pattern applies to the pattern it was merged into, except `split`, which applies to the
    merged one.
    """
    pattern = whole_id(command.pattern, known)
    if pattern is None:
        return None
    if command.do == "split":
        return command, pattern
    pattern = root(pattern, decisions)
    if command.do != "merge":
        return command, pattern
    if command.into is None:
        raise Unanswerable("merging takes two patterns: the one to count, and the one to count it with.")
    into = whole_id(command.into, known)
    if into is None:
        raise Unanswerable(f"there is no pattern {command.into}. `mulligan patterns` lists them.")
    into = root(into, decisions)
    if into == pattern:
        raise Unanswerable(f"{command.pattern} and {command.into} are one pattern already.")
    return msgspec.structs.replace(command, into=into), pattern


def whole_id(id: str, known: Collection[str]) -> str | None:
    """Return the existing id that equals this id or uniquely starts with it; None if there is none."""
    if id in known:
        return id
    meant = [each for each in known if each.startswith(id)]
    return meant[0] if len(meant) == 1 else None


def told(pattern: Pattern, with_examples: bool = False) -> Pattern:
    """Return the pattern with its most frequent agents and, on request, its newest examples."""
    agents = dict(sorted(pattern.agents.items(), key=lambda item: (-item[1], item[0]))[:AGENTS])
    examples = sorted(pattern.examples, key=_newest)[:EXAMPLES] if with_examples else ()
    return msgspec.structs.replace(pattern, agents=agents, examples=tuple(examples))


def root(id: str, decisions: Mapping[str, Decision]) -> str:
    """Follow merges from a pattern. Return the id it is counted under, its own if it was not merged."""
    met = {id}
    while (decision := decisions.get(id)) is not None and decision.into is not None and decision.into not in met:
        id = decision.into
        met.add(id)
    return id


def shown(parts: Iterable[Pattern], decisions: Mapping[str, Decision]) -> list[Pattern]:
    """Combine merged patterns and set the state of each resulting pattern."""
    own = {part.id: part for part in parts}
    groups: dict[str, list[Pattern]] = {id: [part] for id, part in own.items() if root(id, decisions) == id}
    for id, part in own.items():
        whole = root(id, decisions)
        if whole != id:
            # The target of a merge may have been deleted; then the merged pattern counts separately.
            groups.setdefault(whole if whole in own else id, []).append(part)
    return [_joined(id, group, decisions.get(id, Decision())) for id, group in groups.items()]


def _joined(id: str, group: list[Pattern], decision: Decision) -> Pattern:
    first, last = min(part.first for part in group), max(part.last for part in group)
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
        count=sum(part.count for part in group),
        overcome=sum(part.overcome for part in group),
        given_up=sum(part.given_up for part in group),
        runs=sum(part.runs for part in group),
        first=first,
        last=last,
        agents=agents,
        examples=tuple(example for part in group for example in part.examples),
        days=dict(sorted(days.items())),
        state=state,
        reopened=decision.reopened + is_reopened,
        merged=tuple(sorted(part.id for part in group if part.id != id)),
    )


def _newest(example: Example) -> tuple[int, str, int]:
    return -example.started, example.run, example.seq


def _state(decision: Decision, first: int, last: int) -> tuple[PatternState, bool]:
    """Return the state, and whether the pattern occurred again after it was resolved."""
    if decision.state == "muted":
        return "muted", False
    if decision.state == "resolved" and last <= decision.at:
        return "resolved", False
    is_reopened = decision.state == "resolved"
    return ("new" if last - first < DAY and not is_reopened else "active"), is_reopened


def is_asked(pattern: Pattern, query: PatternQuery) -> bool:
    if pattern.state != query.state and (query.state is not None or pattern.state == "muted"):
        return False
    if query.text is not None and not holds(pattern, query.text):
        return False
    return (
        (query.tool is None or pattern.tool == query.tool)
        and (query.kind is None or is_kind(pattern.kind, query.kind))
        and (query.agent is None or query.agent in pattern.agents)
        and (query.since is None or pattern.last >= query.since)
        and (query.new_since is None or pattern.first >= query.new_since)
    )


def holds(pattern: Pattern, text: str) -> bool:
    """Return whether tool, kind, message or template contain the text, ignoring case."""
    texts = (pattern.tool, pattern.kind, pattern.message, pattern.template)
    return text.casefold() in "\n".join(texts).casefold()


def is_kind(kind: str, asked: str) -> bool:
    """Return whether a kind matches the filter. A filter such as `tool/` matches all kinds of that type."""
    return kind.startswith(asked) if asked.endswith("/") else kind == asked


def in_order(patterns: Iterable[Pattern], query: PatternQuery) -> list[Pattern]:
    found = sorted(patterns, key=lambda pattern: (-getattr(pattern, query.order), pattern.id))
    return found[: max(query.limit, 0)]
