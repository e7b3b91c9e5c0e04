"""Scan of session logs: aggregates runs into findings, with bounded memory.

Calls rejected by the user, and calls skipped because a concurrent call failed, have a failure of type `none` and are
counted separately. Untrusted text is redacted when the findings are built, before it can be printed or stored.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from mulligan import calls, figures
from mulligan.failure import Failure, Kind
from mulligan.records import Change, History, Link, Step
from mulligan.redaction import Redactor, clean
from mulligan.report.findings import (
    AgentFound,
    DayFound,
    Findings,
    FixFound,
    KindFound,
    PatternFound,
    SpiralFound,
    ToolFound,
)
from mulligan.report.overcame import COMMENTS, fix, sort_of
from mulligan.report.spirals import PAUSE, Spirals

PATTERNS = 5_000
"""Maximum number of distinct patterns, tools and fixes; others count toward the totals only."""
SHOWN = 20
"""Maximum number of rows in a list."""
CALL = 600.0
"""Maximum counted duration of one call: a longer call waited for a permission prompt."""
DAY = 86_400_000
"""Milliseconds per day."""
DAYS = 3_000
"""Maximum number of distinct days."""


class _Pattern:
    __slots__ = ("again", "example", "failures", "first", "last", "overcome", "sessions")

    def __init__(self, example: Step) -> None:
        self.example = example
        self.failures = self.overcome = self.again = self.sessions = 0
        self.first = self.last = example.started


class _Fix:
    __slots__ = ("example", "worked")

    def __init__(self, example: tuple[Change, ...]) -> None:
        self.example = example
        self.worked = 0


class Scan:
    """Incremental aggregation of runs."""

    def __init__(self) -> None:
        self._totals: Counter[str] = Counter()
        self._seconds = 0.0
        self._first = self._last = 0
        self._around = [0, 0, 0, 0]
        self._agents: dict[str, Counter[str]] = {}
        self._kinds: dict[str, tuple[Failure, Counter[str]]] = {}
        self._kind_tools: Counter[tuple[str, str]] = Counter()
        self._tools: dict[str, Counter[str]] = {}
        self._tool_seconds: dict[str, float] = {}
        self._patterns: dict[tuple[str, str], _Pattern] = {}
        self._fixes: dict[tuple[str, str, str], _Fix] = {}
        self._days: dict[int, Counter[str]] = {}
        self._spirals = Spirals()

    def add(self, history: History) -> None:
        run = history.run
        totals = self._totals
        totals["sessions"] += 1
        self._first = min(self._first or run.started, run.started)
        self._last = max(self._last, run.ended or run.started)
        agent = self._agents.setdefault(run.agent if len(self._agents) < PATTERNS else "", Counter())
        agent["sessions"] += 1
        # Most calls have one attempt, so grouping steps into calls is skipped where possible.
        ends = [step for step in history.steps if step.type != "run"]
        if any(step.call != step.seq for step in ends):
            ends = [call.last for call in calls.group_attempts(ends)]
        totals["calls"] += len(ends)
        agent["calls"] += len(ends)
        for name, times in Counter([step.name for step in ends]).items():
            self._tool(name)["calls"] += times
        for day, times in Counter([step.started // DAY for step in ends]).items():
            if day:
                self._day(day)["calls"] += times
        failed = self._unsuccessful(history, ends)
        if history.compactions:
            totals["compacted"] += 1
            self._compare(ends, {call.id for call in failed}, min(each.at for each in history.compactions))
        if failed:
            agent["failures"] += len(failed)
            self._failed(history, failed)

    def _unsuccessful(self, history: History, ends: list[Step]) -> list[calls.Call]:
        """Return the calls with a failed attempt. Count rejected and cancelled calls, which are not failures."""
        for step in ends:
            if step.outcome == "success":
                continue
            if step.outcome == "refused" and not (step.failure and step.failure.kind.code == "collateral"):
                self._totals["refused"] += 1
            elif step.outcome in ("refused", "cancelled"):
                self._totals["cancelled"] += 1
        ids = {step.call for step in history.steps if step.failure is not None and step.has_failed}
        if not ids:
            return []
        tried = [step for step in history.steps if step.call in ids and step.type != "run"]
        return calls.group_attempts(tried)

    def _tool(self, name: str) -> Counter[str]:
        known = self._tools.get(name)
        if known is None:
            known = self._tools.setdefault(name if len(self._tools) < PATTERNS else "", Counter())
        return known

    def _day(self, day: int) -> Counter[str]:
        known = self._days.get(day)
        if known is None:
            known = self._days[day] = Counter()
            if len(self._days) > DAYS:  # the oldest day is most likely a wrong clock
                del self._days[min(self._days)]
        return known

    def _compare(self, ends: list[Step], failed: set[int], boundary: int) -> None:
        for step in ends:
            side = 0 if step.started < boundary else 2
            self._around[side] += 1
            self._around[side + 1] += step.call in failed

    def _failed(self, history: History, failed: list[calls.Call]) -> None:
        links = {link.failed: link for link in history.links}
        repeated = figures.repeated(history, failed)
        met: set[tuple[str, str]] = set()
        for call in failed:
            step = next(step for step in reversed(call.steps) if step.has_failed)
            failure = step.failure
            if failure is None:
                continue
            link = links.get(call.id)
            is_overcome = call.has_succeeded or link is not None
            key = (call.name, failure.fingerprint)
            is_again = call.id in repeated
            counted = {"failures": 1, "overcome": int(is_overcome), "again": int(is_again)}
            self._totals.update(counted)
            self._tool(call.name).update(counted)
            _, kind = self._kinds.setdefault(str(failure.kind), (failure, Counter()))
            kind.update(counted)
            if len(self._kind_tools) < PATTERNS or (str(failure.kind), call.name) in self._kind_tools:
                self._kind_tools[str(failure.kind), call.name] += 1
            if call.first.started:
                self._day(call.first.started // DAY)["overcome" if is_overcome else "given_up"] += 1
            else:
                self._totals["undated"] += 1
            pattern = self._patterns.get(key)
            if pattern is None and len(self._patterns) < PATTERNS:
                pattern = self._patterns[key] = _Pattern(step)
            if pattern is not None:
                pattern.failures += 1
                pattern.overcome += is_overcome
                pattern.again += is_again
                pattern.sessions += key not in met
                pattern.first = min(pattern.first, step.started)
                pattern.last = max(pattern.last, step.started)
            met.add(key)
            if link is not None:
                self._fixed(call.name, failure.kind, link)
        self._lost_time(history)
        self._spirals.add(history, links)

    def _fixed(self, tool: str, kind: Kind, link: Link) -> None:
        key = (tool, str(kind), fix(link, kind.code))
        known = self._fixes.get(key)
        if known is None and len(self._fixes) < PATTERNS:
            known = self._fixes[key] = _Fix(link.changes)
        if known is not None:
            known.worked += 1

    def _lost_time(self, history: History) -> None:
        """Add the time in failed calls and from each to the next call. Overlaps are counted once."""
        steps = sorted((step for step in history.steps if step.started), key=lambda step: step.started)
        counted = 0.0
        for place, step in enumerate(steps):
            if not step.has_failed:
                continue
            begun = step.started / 1000
            ended = begun + min(step.seconds, CALL)
            following = steps[place + 1].started / 1000 if place + 1 < len(steps) else ended
            if 0 < following - ended <= PAUSE:
                ended = following
            lost = max(0.0, ended - max(begun, counted))
            counted = max(counted, ended)
            self._seconds += lost
            if step.name in self._tools:
                self._tool_seconds[step.name] = self._tool_seconds.get(step.name, 0.0) + lost

    def findings(self, redactor: Redactor) -> Findings:
        """Build the findings so far, with secrets redacted."""
        shown = _Shown(redactor)
        totals = self._totals
        return Findings(
            sessions=totals["sessions"],
            compacted=totals["compacted"],
            calls=totals["calls"],
            failures=totals["failures"],
            overcome=totals["overcome"],
            again=totals["again"],
            seconds=round(self._seconds, 3),
            refused=totals["refused"],
            cancelled=totals["cancelled"],
            before=(self._around[0], self._around[1]),
            after=(self._around[2], self._around[3]),
            first=self._first,
            last=self._last,
            agents=tuple(
                AgentFound(
                    agent=shown.name(name), sessions=each["sessions"], calls=each["calls"], failures=each["failures"]
                )
                for name, each in sorted(self._agents.items(), key=lambda item: (-item[1]["calls"], item[0]))[:SHOWN]
            ),
            kinds=tuple(self._kind_rows(shown)),
            tools=tuple(self._tool_rows(shown)),
            patterns=tuple(self._pattern_rows(shown)),
            fixes=tuple(self._fix_rows(shown)),
            spirals=tuple(self._spiral_rows(shown)),
            days=tuple(_days(self._days)),
            undated=totals["undated"],
        )

    def _kind_rows(self, shown: _Shown) -> Iterator[KindFound]:
        most: dict[str, str] = {}
        for (kind, tool), _ in self._kind_tools.most_common():
            most.setdefault(kind, tool)
        for name, (failure, each) in sorted(self._kinds.items(), key=lambda item: (-item[1][1]["failures"], item[0])):
            yield KindFound(
                kind=shown.name(name),
                remedy=failure.remedy.value,
                failures=each["failures"],
                overcome=each["overcome"],
                again=each["again"],
                tool=shown.name(most.get(name, "")),
            )

    def _tool_rows(self, shown: _Shown) -> Iterator[ToolFound]:
        ranked = sorted(self._tools.items(), key=lambda item: (-item[1]["failures"], -item[1]["calls"], item[0]))
        for name, each in ranked[:SHOWN]:
            yield ToolFound(
                tool=shown.name(name),
                calls=each["calls"],
                failures=each["failures"],
                overcome=each["overcome"],
                seconds=round(self._tool_seconds.get(name, 0.0), 3),
            )

    def _pattern_rows(self, shown: _Shown) -> Iterator[PatternFound]:
        def worst(item: tuple[tuple[str, str], _Pattern]) -> tuple[Any, ...]:
            return (item[1].overcome - item[1].failures, -item[1].failures, item[0])

        for (tool, fingerprint), each in sorted(self._patterns.items(), key=worst)[:SHOWN]:
            failure = each.example.failure
            yield PatternFound(
                tool=shown.name(tool),
                kind=shown.name(str(failure.kind)) if failure else "",
                fingerprint=shown.name(fingerprint),
                message=shown.message(each.example),
                failures=each.failures,
                sessions=each.sessions,
                overcome=each.overcome,
                again=each.again,
                first=each.first,
                last=each.last,
            )

    def _fix_rows(self, shown: _Shown) -> Iterator[FixFound]:
        ranked = sorted(self._fixes.items(), key=lambda item: (-item[1].worked, item[0]))
        for (tool, kind, told), each in ranked[:SHOWN]:
            before, after = shown.change(each.example)
            yield FixFound(
                tool=shown.name(tool),
                kind=shown.name(kind),
                fix=shown.text(told, 120),
                worked=each.worked,
                failures=max(each.worked, self._kind_tools[kind, tool]),
                before=before,
                after=after,
            )

    def _spiral_rows(self, shown: _Shown) -> Iterator[SpiralFound]:
        for spiral in self._spirals.worst():
            run, failure = spiral.run, spiral.last.failure
            project = run.metadata.get("project") if run.metadata else None
            yield SpiralFound(
                run=shown.name(run.id),
                agent=shown.name(run.agent),
                project=shown.name(project if isinstance(project, str) else ""),
                started=spiral.first.started,
                tool=shown.name(spiral.last.name),
                kind=shown.name(str(failure.kind)) if failure else "",
                message=shown.message(spiral.last),
                failures=spiral.size,
                seconds=round(spiral.seconds, 3),
                ended=shown.text(fix(spiral.link, failure.kind.code if failure else ""), 120) if spiral.link else "",
            )


def scanned(histories: Iterable[History], redactor: Redactor) -> Findings:
    """Return the findings of these runs."""
    scan = Scan()
    for history in histories:
        scan.add(history)
    return scan.findings(redactor)


class _Shown:
    """Redaction and sanitization of untrusted text in findings."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor

    def text(self, text: str, limit: int) -> str:
        return " ".join(clean(self._redactor.text(text[:10_000]), limit).split())

    def name(self, name: str) -> str:
        return self.text(name, 80)

    def message(self, step: Step) -> str:
        """Return the sanitized message of a failure. Secrets found in the arguments are redacted in it too."""
        if step.failure is None:
            return ""
        message, _ = self._redactor.record(step.failure.message[:10_000], step.arguments)
        return " ".join(clean(message, 200).split())

    def change(self, changes: tuple[Change, ...]) -> tuple[str, str]:
        """Return the values before and after if exactly one argument changed, else two empty texts."""
        told = [change for change in changes if change.path not in COMMENTS]
        if len(told) != 1 or sort_of(told[0]) != "another":
            return "", ""
        change = told[0]
        before, after = self._redactor.record({change.path: change.before}, {change.path: change.after})
        old, new = (self.text(str(next(iter(each.values()))), 80) for each in (before, after))
        return (old, new) if old != new else ("", "")


def _days(days: dict[int, Counter[str]]) -> Iterator[DayFound]:
    """Yield the counts of the last 30 days up to the latest one, without gaps."""
    if not days:
        return
    last = max(days)
    for day in range(max(min(days), last - 29), last + 1):
        each = days.get(day, Counter())
        told = time.strftime("%Y-%m-%d", time.gmtime(day * (DAY // 1000)))
        yield DayFound(day=told, calls=each["calls"], overcome=each["overcome"], given_up=each["given_up"])
