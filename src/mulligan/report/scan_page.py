"""HTML page of scan findings: self-contained, without scripts, in light and dark mode.

`page.html` is its template. Every text is escaped where it is inserted. As a second defense, the content security
policy allows only the style of the page, by its hash: text that bypassed the escaping could not run, load or send
anything.
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

from mulligan.report.scan_report import (
    DayFinding,
    Findings,
    FixFinding,
    PatternFinding,
    SpiralFinding,
    ToolFinding,
)
from mulligan.report.scan_text import format_date, format_percent, format_rough_duration, summarize_findings
from mulligan.report.tables import format_count

NO_BREAK_SPACE = "\u00a0"
MAX_OPEN_ROWS = 10
"""Rows shown at first; the others are in a collapsed table."""
MAX_MARKS = 24
"""Failures of a spiral that are shown as marks."""


def render_page(findings: Findings, now: int, sources_text: str = "") -> str:
    """Render the complete HTML document."""
    folder = Path(__file__).parent
    style = (folder / "page.css").read_text(encoding="utf-8")
    shown_sections = [(section, rows) for section, rows in _list_sections(findings) if rows]
    return Template((folder / "page.html").read_text(encoding="utf-8")).substitute(
        style=style,
        digest=base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
        date=_format_day(now),
        links="".join(f'<a href="#{section.id}">{section.link}</a>' for section, _ in shown_sections),
        sources=" · ".join(filter(None, _describe_sources(findings))),
        summary=_escape(summarize_findings(findings)),
        cards="".join(_render_cards(findings)),
        sections="".join(_render_section(section, rows) for section, rows in shown_sections),
        read="".join(_describe_reading(findings, sources_text)),
    )


class _PageColumn(NamedTuple):
    title: str
    cell: Callable[[Any], str]
    css: str = ""


class _PageSection(NamedTuple):
    id: str
    link: str
    title: str
    note: str
    columns: tuple[_PageColumn, ...]


def _list_sections(findings: Findings) -> list[tuple[_PageSection, Sequence[Any]]]:
    dated_days = findings.days[::-1] if any(day.recovered + day.unrecovered for day in findings.days) else ()
    return [
        (_kinds_section(findings), findings.kinds),
        (_days_section(findings), dated_days),
        (FIXES, findings.fixes),
        (SPIRALS, findings.spirals),
        (PATTERNS, findings.patterns),
        (TOOLS, findings.tools),
    ]


def _render_section(section: _PageSection, rows: Sequence[Any]) -> str:
    note = f"<small>{section.note}</small>" if section.note else ""
    table = _render_table(section.columns, rows[:MAX_OPEN_ROWS])
    if len(rows) > MAX_OPEN_ROWS:
        more = _render_table(section.columns, rows[MAX_OPEN_ROWS:])
        table += f"<details><summary>{len(rows) - MAX_OPEN_ROWS} more</summary>{more}</details>"
    return f'<section id="{section.id}"><h2>{section.title}{note}</h2>{table}</section>\n'


def _render_table(columns: Sequence[_PageColumn], rows: Sequence[Any]) -> str:
    def css(column: _PageColumn) -> str:
        return f' class="{column.css}"' if column.css else ""

    head = "".join(f"<th{css(column)}>{column.title}</th>" for column in columns)
    body = "".join(
        f"<tr>{''.join(f'<td{css(column)}>{column.cell(row)}</td>' for column in columns)}</tr>\n" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table>"


def _describe_sources(findings: Findings) -> Iterator[str]:
    days = dict.fromkeys(_format_day(time) for time in (findings.first_seen_at, findings.last_seen_at) if time)
    yield " to ".join(days)
    yield format_count(findings.sessions, "session")
    names = [_escape(finding.agent) for finding in findings.agents]
    yield ", ".join(names[:4]) + (" and more" if len(names) > 4 else "")


def _render_cards(findings: Findings) -> Iterator[str]:
    calls, failures, recovered = findings.calls, findings.failures, findings.recovered
    compacted = format_count(findings.compacted_sessions, "compacted session") if findings.compacted_sessions else ""
    repeats = findings.repeats_after_compaction
    lost_time = format_rough_duration(findings.failure_seconds)
    final = f"{_percent(calls - failures + recovered, calls)} final success"
    for name, value, detail, css in (
        ("Failed calls", f"{failures:,}", f"{_percent(failures, calls)} of {calls:,}", "bad"),
        ("Recovered calls", _percent(recovered, failures), f"{recovered:,} of {failures:,}", "good"),
        (
            "Repeated after compaction",
            f"{repeats:,}",
            f"in {compacted}" if compacted else "no compacted sessions",
            "bad" if repeats else "",
        ),
        ("Time lost", lost_time, "failed calls and time until the next call", ""),
        ("First-try success", _percent(calls - failures, calls), final, ""),
    ):
        yield f'<div class="card"><p>{name}</p><strong class="{css}">{value}</strong><small>{detail}</small></div>\n'


def _describe_reading(findings: Findings, sources_text: str) -> Iterator[str]:
    if sources_text:
        yield f"<p>{_escape(sources_text)}.</p>\n"
    if findings.user_rejected or findings.cancelled:
        yield f"<p>Not counted as failures: {findings.user_rejected:,} calls rejected by the user, "
        yield f"{findings.cancelled:,} cancelled or skipped after a concurrent failure.</p>\n"


def _days_section(findings: Findings) -> _PageSection:
    """Return the section of failures by day: bars on one scale, the recovered part hatched."""
    max_failures = max((day.recovered + day.unrecovered for day in findings.days), default=0) or 1

    def bar_cell(day: DayFinding) -> str:
        parts = (LOST, day.unrecovered / max_failures), (HATCHED, day.recovered / max_failures)
        title = f"{day.day}: {day.recovered:,} recovered, {day.unrecovered:,} unrecovered, {day.calls:,} calls"
        return _render_bar(*parts, title=title)

    note = f"Not shown: {format_count(findings.undated, 'failure')} without a timestamp." if findings.undated else ""
    columns = (
        _PageColumn("Day", lambda day: _escape(day.day)),
        _PageColumn("Calls", lambda day: f"{day.calls:,}", "n hide"),
        _PageColumn("Recovered", lambda day: f"{day.recovered:,}", "n"),
        _PageColumn("Unrecovered", lambda day: f"{day.unrecovered:,}", "n"),
        _PageColumn("", bar_cell, "w"),
    )
    return _PageSection("days", "Days", "Failures by day", note, columns)


def _kinds_section(findings: Findings) -> _PageSection:
    max_failures = max((kind.failures for kind in findings.kinds), default=1)

    columns = (
        _PageColumn("Kind", lambda kind: _tag(kind.kind)),
        _PageColumn("Main tool", lambda kind: _escape(kind.tool)),
        _PageColumn("Failures", lambda kind: f"{kind.failures:,}", "n"),
        _PageColumn("", lambda kind: _render_bar((FILLED, kind.failures / max_failures)), "w hide"),
    )
    return _PageSection("kinds", "Kinds", "Failures by kind", "", columns)


def _failure_cell(finding: PatternFinding | SpiralFinding, *details: str) -> str:
    where = " · ".join(_escape(detail) for detail in details if detail)
    message = f"<code>{_escape(finding.message) or '(no message)'}</code>"
    return f'{message}<br>{_tag(finding.kind)} <span class="quiet">{where}</span>'


def _pattern_cell(finding: PatternFinding) -> str:
    days = dict.fromkeys(format_date(time) for time in (finding.first_seen_at, finding.last_seen_at))
    return _failure_cell(finding, finding.tool, " to ".join(days))


def _action_cell(finding: FixFinding) -> str:
    if not (finding.before or finding.after):
        return _escape(finding.action)
    before, after = _escape(finding.before), _escape(finding.after)
    return f'{_escape(finding.action)}<br><code class="was">{before}</code> → <code class="is">{after}</code>'


def _marks_cell(finding: SpiralFinding) -> str:
    marks = "✕" * min(finding.failures, MAX_MARKS)
    if finding.failures > MAX_MARKS:
        marks += f" +{finding.failures - MAX_MARKS}"
    marks += "<i>✓</i>" if finding.recovered_by else ""
    end = _escape(finding.recovered_by) or "unrecovered"
    return f'<span class="marks" title="{finding.failures} failures">{marks}</span><br>{end}'


def _unrecovered_cell(finding: PatternFinding | ToolFinding) -> str:
    count = finding.failures - finding.recovered
    return f'<span class="bad">{count:,}</span>' if count else "0"


def _spent_time(seconds: float) -> str:
    return format_rough_duration(seconds) if seconds else "-"


def _success_cell(finding: ToolFinding, recovered: int = 0) -> str:
    """Render a ratio as a bar and a percentage. The recovered part is hatched."""
    calls = max(1, finding.calls)
    successes = finding.calls - finding.failures
    bar = _render_bar((FILLED, successes / calls), (HATCHED, recovered / calls))
    percent = f"{100 * (successes + recovered) / calls:.1f}{NO_BREAK_SPACE}%"
    return f'<div class="share">{bar}<span class="quiet">{percent}</span></div>'


FILLED, LOST, HATCHED = 'class="fill"', 'class="lost"', 'fill="url(#hatch)"'
"""Attributes of the parts of a bar."""


def _render_bar(*parts: tuple[str, float], title: str = "") -> str:
    """Render a bar of parts, each with its attributes and its share of the width."""
    x, rectangles = 0.0, ""
    for attributes, share in parts:
        if share:
            rectangles += f'<rect {attributes} x="{_number(x)}" width="{_number(100 * share)}" height="8"/>'
            x += 100 * share
    label = f' role="img"><title>{_escape(title)}</title>' if title else ' aria-hidden="true">'
    track = '<rect class="track" width="100" height="8"/>'
    return f'<svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none"{label}{track}{rectangles}</svg>'


PATTERNS = _PageSection(
    "patterns", "Patterns", "Patterns", "failures of one tool with one message template, most unrecovered first",
    (
        _PageColumn("Pattern", _pattern_cell),
        _PageColumn("Failures", lambda finding: f"{finding.failures:,}", "n c"),
        _PageColumn("Sessions", lambda finding: f"{finding.sessions:,}", "n c hide"),
        _PageColumn("Recovered", lambda finding: _percent(finding.recovered, finding.failures), "n c"),
        _PageColumn("Repeated", lambda finding: f"{finding.repeats_after_compaction:,}", "n c hide"),
        _PageColumn("Unrecovered", _unrecovered_cell, "n c"),
    ),
)  # fmt: skip
FIXES = _PageSection(
    "helped", "Recoveries", "Recoveries", "what differed when a failed call succeeded",
    (
        _PageColumn("Failure", lambda finding: f"{_escape(finding.tool)}<br>{_tag(finding.kind)}", "f"),
        _PageColumn("Recovery", _action_cell),
        _PageColumn("Count", lambda finding: f"{finding.successes:,} of {finding.failures:,}", "n c"),
        _PageColumn("", lambda finding: _render_bar((FILLED, finding.successes / max(1, finding.failures))), "w hide"),
    ),
)  # fmt: skip
SPIRALS = _PageSection(
    "spirals", "Spirals", "Worst spirals", "one strategy that failed repeatedly in one session",
    (
        _PageColumn(
            "Failure",
            lambda finding: _failure_cell(
                finding, finding.tool, finding.project or finding.agent, format_date(finding.started_at)
            ),
        ),
        _PageColumn("Attempts", _marks_cell, "f"),
        _PageColumn("Duration", lambda finding: _spent_time(finding.duration_seconds), "n c"),
    ),
)  # fmt: skip
TOOLS = _PageSection(
    "tools", "Tools", "Tools", "",
    (
        _PageColumn("Tool", lambda finding: _escape(finding.tool)),
        _PageColumn("Calls", lambda finding: f"{finding.calls:,}", "n"),
        _PageColumn("First-try success", _success_cell),
        _PageColumn("Final success", lambda finding: _success_cell(finding, finding.recovered), "hide"),
        _PageColumn("Failed", lambda finding: f"{finding.failures:,}", "n"),
        _PageColumn("Unrecovered", _unrecovered_cell, "n"),
        _PageColumn("Time lost", lambda finding: _spent_time(finding.failure_seconds), "n hide"),
    ),
)  # fmt: skip


def _tag(text: str) -> str:
    return f'<span class="tag">{_escape(text)}</span>'


def _percent(part: int, total: int) -> str:
    return format_percent(part, total).replace(" ", NO_BREAK_SPACE)


def _format_day(timestamp: int) -> str:
    return time.strftime("%d %b %Y", time.gmtime(timestamp / 1000)).lstrip("0") if timestamp else "-"


def _number(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")


def _escape(text: object) -> str:
    return escape(str(text), quote=True)
