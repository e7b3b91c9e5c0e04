"""Scan of session logs: runs in, findings out, with bounded memory.

Calls rejected by the user, and calls skipped because a concurrent call failed, are counted separately. Untrusted text
is redacted when the findings are built, before it can be printed or stored.

The counts are made while reading and not in a store: storing every call of a log takes longer than reading it
(`benchmarks/scan.py`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar

from mulligan.contract import counters
from mulligan.core import calls
from mulligan.core.records import Change, History, Record, Step
from mulligan.redaction import Redactor, sanitize
from mulligan.report.spirals import MAX_PAUSE_SECONDS, SessionSpiral, SpiralCollector, describe_recovery, find_new_value

MAX_TRACKED_ENTRIES = 5_000
"""Maximum number of distinct agents, tools, patterns and so on; others count toward the totals only."""
MAX_ROWS = 20
"""Maximum number of rows in a list."""
MAX_SHOWN_DAYS = 30
DAY_MS = 86_400_000


class AgentFinding(Record, frozen=True):
    agent: str
    sessions: int
    calls: int
    failures: int


class KindFinding(Record, frozen=True):
    """Counts of one kind of failure, and the tool where it is most frequent."""

    kind: str
    remedy: str
    failures: int
    recovered: int
    repeats_after_compaction: int
    tool: str


class ToolFinding(Record, frozen=True):
    tool: str
    calls: int
    failures: int
    recovered: int
    failure_seconds: float
    """Time spent in failed calls of this tool."""
    suspected: int = 0
    """Results that look like a failure; not counted as failures."""


class PatternFinding(Record, frozen=True):
    """Failures of one tool with one fingerprint."""

    tool: str
    kind: str
    fingerprint: str
    message: str
    failures: int
    sessions: int
    recovered: int
    repeats_after_compaction: int
    first_seen_at: int
    last_seen_at: int


class FixFinding(Record, frozen=True):
    """How failures of one kind recovered for one tool, and how often."""

    tool: str
    kind: str
    action: str
    successes: int
    failures: int
    """All failures of this kind and tool, recovered or not."""
    before: str = ""
    after: str = ""


class SpiralFinding(Record, frozen=True):
    """One strategy that failed repeatedly in one session."""

    run: str
    agent: str
    project: str
    started_at: int
    tool: str
    kind: str
    message: str
    failures: int
    duration_seconds: float
    """Time from the first to the last failure, without pauses."""
    recovered_by: str
    """How the last failure recovered; empty if it did not."""


class DayFinding(Record, frozen=True):
    day: str
    calls: int
    recovered: int
    unrecovered: int


class Findings(Record, frozen=True):
    """All findings of a scan. A call that failed and succeeded at a later attempt is one recovered failure."""

    sessions: int = 0
    compacted_sessions: int = 0
    """Sessions whose conversation was compacted."""
    calls: int = 0
    failures: int = 0
    recovered: int = 0
    repeats_after_compaction: int = 0
    """Failures that occurred before a compaction and again after it."""
    failure_seconds: float = 0.0
    """Time in failed calls and between each of them and the next call."""
    user_rejected: int = 0
    """Calls rejected by the user; not counted as failures."""
    cancelled: int = 0
    """Calls cancelled, or skipped because a concurrent call failed; not counted as failures."""
    suspected: int = 0
    """Results that look like a failure although nothing says so; not counted as failures."""
    before_compaction: tuple[int, int] = (0, 0)
    """Number of calls and failures before the first compaction, in sessions that have one."""
    after_compaction: tuple[int, int] = (0, 0)
    first_seen_at: int = 0
    last_seen_at: int = 0
    agents: tuple[AgentFinding, ...] = ()
    kinds: tuple[KindFinding, ...] = ()
    tools: tuple[ToolFinding, ...] = ()
    patterns: tuple[PatternFinding, ...] = ()
    fixes: tuple[FixFinding, ...] = ()
    spirals: tuple[SpiralFinding, ...] = ()
    days: tuple[DayFinding, ...] = ()
    undated: int = 0
    """Failures without a timestamp in the log."""


Key = TypeVar("Key", bound=Hashable)
Row = TypeVar("Row", bound=Record)


class _Groups(dict[Key, Counter[str]]):
    """Counters by key, of a bounded number of keys, each with the example that came first."""

    def __init__(self) -> None:
        self.examples: dict[Key, Any] = {}

    def count(self, key: Key, counts: Iterable[str] | dict[str, Any], example: Any = None) -> None:
        group = self.get(key)
        if group is None:
            if len(self) >= MAX_TRACKED_ENTRIES:
                return
            group = self[key] = Counter()
            self.examples[key] = example
        group.update(counts)

    def to_rows(
        self,
        row_type: type[Row],
        rank_key: Callable[[Counter[str]], Any],
        limit: int | None = MAX_ROWS,
        **fields: Callable[[Key], Any],
    ) -> tuple[Row, ...]:
        """Build the first rows by rank. `fields` are functions of the key; the other fields are counters."""
        ranked = sorted(self.items(), key=lambda item: (rank_key(item[1]), item[0]))
        counted_names = [name for name in row_type.__struct_fields__ if name not in fields]
        return tuple(
            row_type(**{name: build(key) for name, build in fields.items()}, **_pick(counts, *counted_names))
            for key, counts in ranked[:limit]
        )


class LogScan:
    """Incremental aggregation of runs."""

    def __init__(self) -> None:
        self._totals: Counter[str] = Counter()
        self._first_seen_at = self._last_seen_at = 0
        self._agents: _Groups[str] = _Groups()
        self._kinds: _Groups[str] = _Groups()
        self._tools: _Groups[str] = _Groups()
        self._kind_tools: _Groups[tuple[str, str]] = _Groups()
        self._patterns: _Groups[tuple[str, str]] = _Groups()
        self._fixes: _Groups[tuple[str, str, str]] = _Groups()
        self._days: _Groups[int] = _Groups()
        self._spirals = SpiralCollector()

    def add(self, history: History) -> None:
        run = history.run
        self._first_seen_at = min(self._first_seen_at or run.started_at, run.started_at)
        self._last_seen_at = max(self._last_seen_at, run.ended_at or run.started_at)
        # Most calls have one attempt, so grouping steps into calls is skipped where possible.
        last_steps = [step for step in history.steps if step.type != "run"]
        if any(step.call != step.seq for step in last_steps):
            last_steps = [call.last for call in calls.group_attempts(last_steps)]
        for name, call_count in Counter([step.name for step in last_steps]).items():
            self._tools.count(name, {"calls": call_count})
        for day, call_count in Counter([step.started_at // DAY_MS for step in last_steps]).items():
            if day:
                self._days.count(day, {"calls": call_count})
        for step in last_steps:
            if step.outcome == "blocked" and (step.failure is None or step.failure.kind.is_user_rejection):
                self._totals["user_rejected"] += 1
            elif step.outcome in ("blocked", "cancelled"):
                self._totals["cancelled"] += 1
            if step.suspected is not None:
                self._totals["suspected"] += 1
                self._tools.count(step.name, {"suspected": 1})
        ids = {step.call for step in history.steps if step.failure is not None and step.has_failed}
        failed_steps = [step for step in history.steps if step.call in ids and step.type != "run"]
        failed_calls = calls.group_attempts(failed_steps) if ids else []
        counts = {"sessions": 1, "calls": len(last_steps), "failures": len(failed_calls)}
        self._totals.update(counts)
        self._agents.count(run.agent, counts)
        if history.compactions:
            self._totals["compacted_sessions"] += 1
            boundary = min(compaction.at for compaction in history.compactions)
            for step in last_steps:
                side = "before" if step.started_at < boundary else "after"
                self._totals[f"calls {side}"] += 1
                self._totals[f"failures {side}"] += step.call in ids
        if failed_calls:
            self._count_failures(history, failed_calls)

    def _count_failures(self, history: History, failed_calls: list[calls.Call]) -> None:
        links = history.links_by_call
        repeated_ids = counters.find_repeated_calls(history, failed_calls)
        counted_patterns: set[tuple[str, str]] = set()
        for call in failed_calls:
            step = next(step for step in reversed(call.steps) if step.has_failed)
            failure = step.failure
            if failure is None:
                continue
            kind, link = str(failure.kind), links.get(call.id)
            is_recovered = call.is_recovered(link)
            counts = {"recovered": int(is_recovered), "repeats_after_compaction": int(call.id in repeated_ids)}
            self._totals.update(counts)
            counts["failures"] = 1
            self._tools.count(call.name, counts)
            self._kinds.count(kind, counts, example=failure)
            self._kind_tools.count((kind, call.name), counts)
            if call.first.started_at:
                self._days.count(call.first.started_at // DAY_MS, {"recovered" if is_recovered else "unrecovered": 1})
            else:
                self._totals["undated"] += 1
            pattern = (call.name, failure.fingerprint)
            self._patterns.count(pattern, counts | {"sessions": int(pattern not in counted_patterns)}, example=step)
            counted_patterns.add(pattern)
            if times := self._patterns.get(pattern):
                times["first_seen_at"] = min(times["first_seen_at"] or step.started_at, step.started_at)
                times["last_seen_at"] = max(times["last_seen_at"], step.started_at)
            if link is not None:
                action = describe_recovery(link, failure.kind)
                self._fixes.count((call.name, kind, action), {"successes": 1}, example=link.changes)
        self._count_lost_time(history)
        self._spirals.add(history, links)

    def _count_lost_time(self, history: History) -> None:
        """Add the time in failed calls and from each to the next call. Overlaps are counted once."""
        steps = sorted((step for step in history.steps if step.started_at), key=lambda step: step.started_at)
        counted_until = 0
        for index, step in enumerate(steps):
            if not step.has_failed:
                continue
            # Maximum counted duration of one call: a longer call waited for a permission prompt
            ended_at = step.started_at + round(min(step.duration_seconds, 600.0) * 1000)
            following = steps[index + 1].started_at if index + 1 < len(steps) else ended_at
            if 0 < following - ended_at <= MAX_PAUSE_SECONDS * 1000:
                ended_at = following
            lost_ms = max(0, ended_at - max(step.started_at, counted_until))
            counted_until = max(counted_until, ended_at)
            self._totals["failure_ms"] += lost_ms
            self._tools.count(step.name, {"failure_ms": lost_ms})

    def build_findings(self, redactor: Redactor) -> Findings:
        """Build the findings so far, with secrets redacted."""
        totals, text = self._totals, _FindingSanitizer(redactor)
        main_tools: dict[str, str] = {}
        for kind, tool in sorted(self._kind_tools, key=lambda key: -self._kind_tools[key]["failures"]):
            main_tools.setdefault(kind, tool)
        patterns, fixes = self._patterns.examples, self._fixes.examples
        return Findings(
            **_pick(
                totals, "sessions", "compacted_sessions", "calls", "failures", "recovered",
                "repeats_after_compaction", "user_rejected", "cancelled", "suspected", "undated",
            ),
            failure_seconds=totals["failure_ms"] / 1000,
            before_compaction=(totals["calls before"], totals["failures before"]),
            after_compaction=(totals["calls after"], totals["failures after"]),
            first_seen_at=self._first_seen_at,
            last_seen_at=self._last_seen_at,
            agents=self._agents.to_rows(AgentFinding, lambda counts: -counts["calls"], agent=text.to_name),
            kinds=self._kinds.to_rows(
                KindFinding,
                lambda counts: -counts["failures"],
                limit=None,
                kind=text.to_name,
                remedy=lambda kind: self._kinds.examples[kind].remedy.value,
                tool=lambda kind: text.to_name(main_tools.get(kind, "")),
            ),
            tools=self._tools.to_rows(
                ToolFinding,
                lambda counts: (-counts["failures"], -counts["calls"]),
                tool=text.to_name,
                failure_seconds=lambda tool: self._tools[tool]["failure_ms"] / 1000,
            ),
            patterns=self._patterns.to_rows(
                PatternFinding,
                lambda counts: (counts["recovered"] - counts["failures"], -counts["failures"]),
                tool=lambda key: text.to_name(key[0]),
                kind=lambda key: text.to_name(str(patterns[key].failure.kind)),
                fingerprint=lambda key: text.to_name(key[1]),
                message=lambda key: text.to_message(patterns[key]),
            ),
            fixes=self._fixes.to_rows(
                FixFinding,
                lambda counts: -counts["successes"],
                tool=lambda key: text.to_name(key[0]),
                kind=lambda key: text.to_name(key[1]),
                action=lambda key: text.to_text(key[2], 120),
                failures=self._count_fixable,
                before=lambda key: text.to_values(fixes[key])[0],
                after=lambda key: text.to_values(fixes[key])[1],
            ),
            spirals=tuple(_spiral_finding(spiral, text) for spiral in self._spirals.worst_spirals()),
            days=self._day_findings(),
        )  # fmt: skip

    def _count_fixable(self, fix: tuple[str, str, str]) -> int:
        """Return the number of failures of the tool and kind of a fix, at least those that it recovered."""
        tool, kind, _ = fix
        failures = self._kind_tools[kind, tool]["failures"] if (kind, tool) in self._kind_tools else 0
        return max(self._fixes[fix]["successes"], failures)

    def _day_findings(self) -> tuple[DayFinding, ...]:
        """Return the counts of the last days up to the latest one, without gaps."""
        last = max(self._days, default=0)
        days = range(max(min(self._days, default=1), last - MAX_SHOWN_DAYS + 1), last + 1)
        names = [time.strftime("%Y-%m-%d", time.gmtime(day * (DAY_MS // 1000))) for day in days]
        counts = [_pick(self._days.get(day, Counter()), "calls", "recovered", "unrecovered") for day in days]
        return tuple(DayFinding(day=name, **numbers) for name, numbers in zip(names, counts, strict=True))


def _pick(counts: Counter[str], *names: str) -> dict[str, Any]:
    return {name: counts[name] for name in names}


def _spiral_finding(spiral: SessionSpiral, text: _FindingSanitizer) -> SpiralFinding:
    run, failure = spiral.run, spiral.last.failure
    project = run.metadata.get("project") if run.metadata else None
    recovery = describe_recovery(spiral.link, failure.kind) if spiral.link and failure else ""
    return SpiralFinding(
        run=text.to_name(run.id),
        agent=text.to_name(run.agent),
        project=text.to_name(project if isinstance(project, str) else ""),
        started_at=spiral.first.started_at,
        tool=text.to_name(spiral.last.name),
        kind=text.to_name(str(failure.kind)) if failure else "",
        message=text.to_message(spiral.last),
        failures=spiral.size,
        duration_seconds=round(spiral.seconds, 3),
        recovered_by=text.to_text(recovery, 120),
    )


class _FindingSanitizer:
    """Redaction and sanitization of untrusted text in findings."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor

    def to_text(self, text: str, limit: int) -> str:
        return " ".join(sanitize(self._redactor.text(text[:10_000]), limit).split())

    def to_name(self, name: str) -> str:
        return self.to_text(name, 80)

    def to_message(self, step: Step) -> str:
        """Return the sanitized message of a failure. Secrets found in the arguments are redacted in it too."""
        if step.failure is None:
            return ""
        message, _ = self._redactor.record(step.failure.message[:10_000], step.arguments)
        return " ".join(sanitize(message, 200).split())

    def to_values(self, changes: tuple[Change, ...]) -> tuple[str, str]:
        """Return the values before and after if exactly one argument changed, else two empty texts."""
        change = find_new_value(changes)
        if change is None:
            return "", ""
        redacted = self._redactor.record({change.path: change.before}, {change.path: change.after})
        before, after = (self.to_text(str(next(iter(arguments.values()))), 80) for arguments in redacted)
        return (before, after) if before != after else ("", "")
