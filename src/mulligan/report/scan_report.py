"""Scan of session logs: aggregates runs into findings, with bounded memory.

Calls rejected by the user, and calls skipped because a concurrent call failed, have a failure of type `none` and are
counted separately. Untrusted text is redacted when the findings are built, before it can be printed or stored.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from mulligan.core import calls
from mulligan.core.failure import Failure, Kind
from mulligan.core.records import Change, History, Link, Step
from mulligan.redaction import Redactor, sanitize
from mulligan.report.findings import (
    AgentFinding,
    DayFinding,
    Findings,
    FixFinding,
    KindFinding,
    PatternFinding,
    SpiralFinding,
    ToolFinding,
)
from mulligan.report.recovery_wording import IGNORED_ARGUMENTS, categorize_change, describe_recovery
from mulligan.report.spirals import MAX_PAUSE_SECONDS, SpiralCollector
from mulligan.store import counters

MAX_TRACKED_ENTRIES = 5_000
"""Maximum number of distinct patterns, tools and fixes; others count toward the totals only."""
MAX_ROWS = 20
"""Maximum number of rows in a list."""
MAX_CALL_SECONDS = 600.0
"""Maximum counted duration of one call: a longer call waited for a permission prompt."""
DAY_MS = 86_400_000
"""Milliseconds per day."""
MAX_TRACKED_DAYS = 3_000
"""Maximum number of distinct days."""


class _PatternCounts:
    __slots__ = (
        "example",
        "failures",
        "first_seen_at",
        "last_seen_at",
        "recovered",
        "repeats_after_compaction",
        "sessions",
    )

    def __init__(self, example: Step) -> None:
        self.example = example
        self.failures = self.recovered = self.repeats_after_compaction = self.sessions = 0
        self.first_seen_at = self.last_seen_at = example.started_at


class _FixCounts:
    __slots__ = ("example", "successes")

    def __init__(self, example: tuple[Change, ...]) -> None:
        self.example = example
        self.successes = 0


class LogScan:
    """Incremental aggregation of runs."""

    def __init__(self) -> None:
        self._totals: Counter[str] = Counter()
        self._failure_seconds = 0.0
        self._first_seen_at = self._last_seen_at = 0
        self._compaction_counts = [0, 0, 0, 0]
        self._agents: dict[str, Counter[str]] = {}
        self._kinds: dict[str, tuple[Failure, Counter[str]]] = {}
        self._kind_tools: Counter[tuple[str, str]] = Counter()
        self._tools: dict[str, Counter[str]] = {}
        self._tool_seconds: dict[str, float] = {}
        self._patterns: dict[tuple[str, str], _PatternCounts] = {}
        self._fixes: dict[tuple[str, str, str], _FixCounts] = {}
        self._days: dict[int, Counter[str]] = {}
        self._spirals = SpiralCollector()

    def add(self, history: History) -> None:
        run = history.run
        totals = self._totals
        totals["sessions"] += 1
        self._first_seen_at = min(self._first_seen_at or run.started_at, run.started_at)
        self._last_seen_at = max(self._last_seen_at, run.ended_at or run.started_at)
        agent = self._agents.setdefault(run.agent if len(self._agents) < MAX_TRACKED_ENTRIES else "", Counter())
        agent["sessions"] += 1
        # Most calls have one attempt, so grouping steps into calls is skipped where possible.
        last_steps = [step for step in history.steps if step.type != "run"]
        if any(step.call != step.seq for step in last_steps):
            last_steps = [call.last for call in calls.group_attempts(last_steps)]
        totals["calls"] += len(last_steps)
        agent["calls"] += len(last_steps)
        for name, call_count in Counter([step.name for step in last_steps]).items():
            self._tool_counts(name)["calls"] += call_count
        for day, call_count in Counter([step.started_at // DAY_MS for step in last_steps]).items():
            if day:
                self._day_counts(day)["calls"] += call_count
        failed = self._find_failed_calls(history, last_steps)
        if history.compactions:
            totals["compacted_sessions"] += 1
            self._count_around_compaction(
                last_steps, {call.id for call in failed}, min(compaction.at for compaction in history.compactions)
            )
        if failed:
            agent["failures"] += len(failed)
            self._count_failures(history, failed)

    def _find_failed_calls(self, history: History, last_steps: list[Step]) -> list[calls.Call]:
        """Return the calls with a failed attempt. Count rejected and cancelled calls, which are not failures."""
        for step in last_steps:
            if step.outcome == "success":
                continue
            if step.outcome == "blocked" and (step.failure is None or step.failure.kind.code == "user_rejected"):
                self._totals["user_rejected"] += 1
            elif step.outcome in ("blocked", "cancelled"):
                self._totals["cancelled"] += 1
        ids = {step.call for step in history.steps if step.failure is not None and step.has_failed}
        if not ids:
            return []
        failed_steps = [step for step in history.steps if step.call in ids and step.type != "run"]
        return calls.group_attempts(failed_steps)

    def _tool_counts(self, name: str) -> Counter[str]:
        counts = self._tools.get(name)
        if counts is None:
            counts = self._tools.setdefault(name if len(self._tools) < MAX_TRACKED_ENTRIES else "", Counter())
        return counts

    def _day_counts(self, day: int) -> Counter[str]:
        counts = self._days.get(day)
        if counts is None:
            counts = self._days[day] = Counter()
            if len(self._days) > MAX_TRACKED_DAYS:  # the oldest day is most likely a wrong clock
                del self._days[min(self._days)]
        return counts

    def _count_around_compaction(self, last_steps: list[Step], failed_ids: set[int], boundary: int) -> None:
        for step in last_steps:
            side = 0 if step.started_at < boundary else 2
            self._compaction_counts[side] += 1
            self._compaction_counts[side + 1] += step.call in failed_ids

    def _count_failures(self, history: History, failed_calls: list[calls.Call]) -> None:
        links = {link.failed_call: link for link in history.links}
        repeated_ids = counters.repeated(history, failed_calls)
        counted_patterns: set[tuple[str, str]] = set()
        for call in failed_calls:
            step = next(step for step in reversed(call.steps) if step.has_failed)
            failure = step.failure
            if failure is None:
                continue
            link = links.get(call.id)
            is_recovered = call.has_succeeded or link is not None
            key = (call.name, failure.fingerprint)
            is_repeat = call.id in repeated_ids
            increments = {"failures": 1, "recovered": int(is_recovered), "repeats_after_compaction": int(is_repeat)}
            self._totals.update(increments)
            self._tool_counts(call.name).update(increments)
            _, kind = self._kinds.setdefault(str(failure.kind), (failure, Counter()))
            kind.update(increments)
            if len(self._kind_tools) < MAX_TRACKED_ENTRIES or (str(failure.kind), call.name) in self._kind_tools:
                self._kind_tools[str(failure.kind), call.name] += 1
            if call.first.started_at:
                self._day_counts(call.first.started_at // DAY_MS)["recovered" if is_recovered else "unrecovered"] += 1
            else:
                self._totals["undated"] += 1
            pattern = self._patterns.get(key)
            if pattern is None and len(self._patterns) < MAX_TRACKED_ENTRIES:
                pattern = self._patterns[key] = _PatternCounts(step)
            if pattern is not None:
                pattern.failures += 1
                pattern.recovered += is_recovered
                pattern.repeats_after_compaction += is_repeat
                pattern.sessions += key not in counted_patterns
                pattern.first_seen_at = min(pattern.first_seen_at, step.started_at)
                pattern.last_seen_at = max(pattern.last_seen_at, step.started_at)
            counted_patterns.add(key)
            if link is not None:
                self._count_fix(call.name, failure.kind, link)
        self._count_lost_time(history)
        self._spirals.add(history, links)

    def _count_fix(self, tool: str, kind: Kind, link: Link) -> None:
        key = (tool, str(kind), describe_recovery(link, kind.code))
        fix_counts = self._fixes.get(key)
        if fix_counts is None and len(self._fixes) < MAX_TRACKED_ENTRIES:
            fix_counts = self._fixes[key] = _FixCounts(link.changes)
        if fix_counts is not None:
            fix_counts.successes += 1

    def _count_lost_time(self, history: History) -> None:
        """Add the time in failed calls and from each to the next call. Overlaps are counted once."""
        steps = sorted((step for step in history.steps if step.started_at), key=lambda step: step.started_at)
        counted_until = 0.0
        for index, step in enumerate(steps):
            if not step.has_failed:
                continue
            started_at = step.started_at / 1000
            ended_at = started_at + min(step.duration_seconds, MAX_CALL_SECONDS)
            following = steps[index + 1].started_at / 1000 if index + 1 < len(steps) else ended_at
            if 0 < following - ended_at <= MAX_PAUSE_SECONDS:
                ended_at = following
            lost_seconds = max(0.0, ended_at - max(started_at, counted_until))
            counted_until = max(counted_until, ended_at)
            self._failure_seconds += lost_seconds
            if step.name in self._tools:
                self._tool_seconds[step.name] = self._tool_seconds.get(step.name, 0.0) + lost_seconds

    def build_findings(self, redactor: Redactor) -> Findings:
        """Build the findings so far, with secrets redacted."""
        sanitizer = _FindingSanitizer(redactor)
        totals = self._totals
        return Findings(
            sessions=totals["sessions"],
            compacted_sessions=totals["compacted_sessions"],
            calls=totals["calls"],
            failures=totals["failures"],
            recovered=totals["recovered"],
            repeats_after_compaction=totals["repeats_after_compaction"],
            failure_seconds=round(self._failure_seconds, 3),
            user_rejected=totals["user_rejected"],
            cancelled=totals["cancelled"],
            before_compaction=(self._compaction_counts[0], self._compaction_counts[1]),
            after_compaction=(self._compaction_counts[2], self._compaction_counts[3]),
            first_seen_at=self._first_seen_at,
            last_seen_at=self._last_seen_at,
            agents=tuple(
                AgentFinding(
                    agent=sanitizer.sanitize_name(name),
                    sessions=counts["sessions"],
                    calls=counts["calls"],
                    failures=counts["failures"],
                )
                for name, counts in sorted(self._agents.items(), key=lambda item: (-item[1]["calls"], item[0]))[
                    :MAX_ROWS
                ]
            ),
            kinds=tuple(self._kind_findings(sanitizer)),
            tools=tuple(self._tool_findings(sanitizer)),
            patterns=tuple(self._pattern_findings(sanitizer)),
            fixes=tuple(self._fix_findings(sanitizer)),
            spirals=tuple(self._spiral_findings(sanitizer)),
            days=tuple(_day_findings(self._days)),
            undated=totals["undated"],
        )

    def _kind_findings(self, sanitizer: _FindingSanitizer) -> Iterator[KindFinding]:
        main_tool_by_kind: dict[str, str] = {}
        for (kind, tool), _ in self._kind_tools.most_common():
            main_tool_by_kind.setdefault(kind, tool)
        for name, (failure, counts) in sorted(self._kinds.items(), key=lambda item: (-item[1][1]["failures"], item[0])):
            yield KindFinding(
                kind=sanitizer.sanitize_name(name),
                remedy=failure.remedy.value,
                failures=counts["failures"],
                recovered=counts["recovered"],
                repeats_after_compaction=counts["repeats_after_compaction"],
                tool=sanitizer.sanitize_name(main_tool_by_kind.get(name, "")),
            )

    def _tool_findings(self, sanitizer: _FindingSanitizer) -> Iterator[ToolFinding]:
        ranked = sorted(self._tools.items(), key=lambda item: (-item[1]["failures"], -item[1]["calls"], item[0]))
        for name, counts in ranked[:MAX_ROWS]:
            yield ToolFinding(
                tool=sanitizer.sanitize_name(name),
                calls=counts["calls"],
                failures=counts["failures"],
                recovered=counts["recovered"],
                failure_seconds=round(self._tool_seconds.get(name, 0.0), 3),
            )

    def _pattern_findings(self, sanitizer: _FindingSanitizer) -> Iterator[PatternFinding]:
        def rank_key(item: tuple[tuple[str, str], _PatternCounts]) -> tuple[Any, ...]:
            return (item[1].recovered - item[1].failures, -item[1].failures, item[0])

        for (tool, fingerprint), pattern_counts in sorted(self._patterns.items(), key=rank_key)[:MAX_ROWS]:
            failure = pattern_counts.example.failure
            yield PatternFinding(
                tool=sanitizer.sanitize_name(tool),
                kind=sanitizer.sanitize_name(str(failure.kind)) if failure else "",
                fingerprint=sanitizer.sanitize_name(fingerprint),
                message=sanitizer.sanitize_message(pattern_counts.example),
                failures=pattern_counts.failures,
                sessions=pattern_counts.sessions,
                recovered=pattern_counts.recovered,
                repeats_after_compaction=pattern_counts.repeats_after_compaction,
                first_seen_at=pattern_counts.first_seen_at,
                last_seen_at=pattern_counts.last_seen_at,
            )

    def _fix_findings(self, sanitizer: _FindingSanitizer) -> Iterator[FixFinding]:
        ranked = sorted(self._fixes.items(), key=lambda item: (-item[1].successes, item[0]))
        for (tool, kind, action), fix_counts in ranked[:MAX_ROWS]:
            before, after = sanitizer.describe_change(fix_counts.example)
            yield FixFinding(
                tool=sanitizer.sanitize_name(tool),
                kind=sanitizer.sanitize_name(kind),
                action=sanitizer.sanitize_text(action, 120),
                successes=fix_counts.successes,
                failures=max(fix_counts.successes, self._kind_tools[kind, tool]),
                before=before,
                after=after,
            )

    def _spiral_findings(self, sanitizer: _FindingSanitizer) -> Iterator[SpiralFinding]:
        for spiral in self._spirals.worst_spirals():
            run, failure = spiral.run, spiral.last.failure
            project = run.metadata.get("project") if run.metadata else None
            yield SpiralFinding(
                run=sanitizer.sanitize_name(run.id),
                agent=sanitizer.sanitize_name(run.agent),
                project=sanitizer.sanitize_name(project if isinstance(project, str) else ""),
                started_at=spiral.first.started_at,
                tool=sanitizer.sanitize_name(spiral.last.name),
                kind=sanitizer.sanitize_name(str(failure.kind)) if failure else "",
                message=sanitizer.sanitize_message(spiral.last),
                failures=spiral.size,
                duration_seconds=round(spiral.seconds, 3),
                recovered_by=sanitizer.sanitize_text(
                    describe_recovery(spiral.link, failure.kind.code if failure else ""), 120
                )
                if spiral.link
                else "",
            )


def scan_histories(histories: Iterable[History], redactor: Redactor) -> Findings:
    """Return the findings of these runs."""
    scan = LogScan()
    for history in histories:
        scan.add(history)
    return scan.build_findings(redactor)


class _FindingSanitizer:
    """Redaction and sanitization of untrusted text in findings."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor

    def sanitize_text(self, text: str, limit: int) -> str:
        return " ".join(sanitize(self._redactor.text(text[:10_000]), limit).split())

    def sanitize_name(self, name: str) -> str:
        return self.sanitize_text(name, 80)

    def sanitize_message(self, step: Step) -> str:
        """Return the sanitized message of a failure. Secrets found in the arguments are redacted in it too."""
        if step.failure is None:
            return ""
        message, _ = self._redactor.record(step.failure.message[:10_000], step.arguments)
        return " ".join(sanitize(message, 200).split())

    def describe_change(self, changes: tuple[Change, ...]) -> tuple[str, str]:
        """Return the values before and after if exactly one argument changed, else two empty texts."""
        relevant_changes = [change for change in changes if change.path not in IGNORED_ARGUMENTS]
        if len(relevant_changes) != 1 or categorize_change(relevant_changes[0]) != "another":
            return "", ""
        change = relevant_changes[0]
        before, after = self._redactor.record({change.path: change.before}, {change.path: change.after})
        old, new = (
            self.sanitize_text(str(next(iter(redacted_argument.values()))), 80) for redacted_argument in (before, after)
        )
        return (old, new) if old != new else ("", "")


def _day_findings(days: dict[int, Counter[str]]) -> Iterator[DayFinding]:
    """Yield the counts of the last 30 days up to the latest one, without gaps."""
    if not days:
        return
    last = max(days)
    for day in range(max(min(days), last - 29), last + 1):
        counts = days.get(day, Counter())
        date = time.strftime("%Y-%m-%d", time.gmtime(day * (DAY_MS // 1000)))
        yield DayFinding(
            day=date, calls=counts["calls"], recovered=counts["recovered"], unrecovered=counts["unrecovered"]
        )
