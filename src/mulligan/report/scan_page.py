"""HTML page of scan findings: self-contained, without scripts, in light and dark mode.

`page.html` is its template. Every text is escaped where it is inserted. As a second defense, the content security
policy allows only the style of the page, by its hash: text that bypassed the escaping could not run, load or send
anything.
"""

from __future__ import annotations

import base64
import hashlib
import re
import time
from collections.abc import Callable, Iterator, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

from mulligan.report.scan_report import Findings, PatternFinding, SpiralFinding, ToolFinding
from mulligan.report.scan_text import format_date, format_percent, format_rough_duration, summarize_findings
from mulligan.report.tables import format_count

MAX_OPEN_ROWS = 10
"""Rows shown at first; the others are in a collapsed table."""
MAX_MARKS = 24
"""Failures of a spiral that are shown as marks."""
FILLED, LOST, HATCHED = 'class="fill"', 'class="lost"', 'fill="url(#hatch)"'
"""Attributes of the parts of a bar."""

HOME_FOLDERS = r"(?:/home|/Users|\b[A-Za-z]:\\Users)[/\\][^/\\\s<>&'\"]+"
"""Home folders of any machine, in HTML."""

PageColumn = tuple[str, Callable[[Any], str], str]
"""Title, HTML of a cell, and CSS classes."""


class PageSection(NamedTuple):
    """A table of the page. A section without rows is left out."""

    id: str
    link: str
    title: str
    note: str
    rows: Sequence[Any]
    columns: Sequence[PageColumn]


def render_page(findings: Findings, now: int, sources_text: str = "", home: str = "") -> str:
    """Render the complete HTML document. Home folders become `~`: they name a person, and the page may be shared."""
    folder = Path(__file__).parent
    style = (folder / "page.css").read_text(encoding="utf-8")
    sections = [section for section in _list_sections(findings) if section.rows]
    return Template((folder / "page.html").read_text(encoding="utf-8")).substitute(
        style=style,
        digest=base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
        date=_format_day(now),
        links="".join(f'<a href="#{section.id}">{section.link}</a>' for section in sections),
        sources=_hide_homes(" · ".join(filter(None, _describe_sources(findings))), home),
        summary=escape(summarize_findings(findings)),
        cards="".join(_render_cards(findings)),
        sections=_hide_homes("".join(map(_render_section, sections)), home),
        read="".join(_describe_reading(findings, sources_text)),
    )


def _hide_homes(text: str, home: str) -> str:
    own_home = [re.escape(escape(home)) + r"(?![\w.-])"] if len(home) > 1 else []
    return re.sub("|".join([*own_home, HOME_FOLDERS]), "~", text)


def _list_sections(findings: Findings) -> Iterator[PageSection]:
    max_by_kind = max((kind.failures for kind in findings.kinds), default=1)
    yield PageSection("kinds", "Kinds", "Failures by kind", "", findings.kinds, (
        ("Kind", lambda row: _tag(row.kind), ""),
        ("Main tool", lambda row: escape(row.tool), ""),
        ("Failures", _number("failures"), "n"),
        ("", lambda row: _render_bar((FILLED, row.failures / max_by_kind)), "w hide"),
    ))  # fmt: skip
    max_by_day = max((day.recovered + day.unrecovered for day in findings.days), default=0)
    note = f"Not shown: {format_count(findings.undated, 'failure')} without a timestamp." if findings.undated else ""
    yield PageSection("days", "Days", "Failures by day", note, findings.days[::-1] if max_by_day else (), (
        ("Day", lambda row: escape(row.day), ""),
        ("Calls", _number("calls"), "n hide"),
        ("Recovered", _number("recovered"), "n"),
        ("Unrecovered", _number("unrecovered"), "n"),
        ("", lambda row: _render_bar(
            (LOST, row.unrecovered / max_by_day),
            (HATCHED, row.recovered / max_by_day),
            title=f"{row.day}: {row.recovered:,} recovered, {row.unrecovered:,} unrecovered, {row.calls:,} calls",
        ), "w"),
    ))  # fmt: skip
    note = "what differed when a failed call succeeded"
    yield PageSection("helped", "Recoveries", "Recoveries", note, findings.fixes, (
        ("Failure", lambda row: f"{escape(row.tool)}<br>{_tag(row.kind)}", "f"),
        ("Recovery", lambda row: escape(row.action) + (
            f'<br><code class="was">{escape(row.before)}</code> → <code class="is">{escape(row.after)}</code>'
            if row.before or row.after else ""
        ), ""),
        ("Count", lambda row: f"{row.successes:,} of {row.failures:,}", "n c"),
        ("", lambda row: _render_bar((FILLED, row.successes / max(1, row.failures))), "w hide"),
    ))  # fmt: skip
    note = "one strategy that failed repeatedly in one session"
    yield PageSection("spirals", "Spirals", "Worst spirals", note, findings.spirals, (
        ("Failure", lambda row: _failure_cell(
            row, row.tool, row.project or row.agent, format_date(row.started_at)
        ), ""),
        ("Attempts", _marks_cell, "f"),
        ("Duration", lambda row: _spent_time(row.duration_seconds), "n c"),
    ))  # fmt: skip
    note = "failures of one tool with one message template, most unrecovered first"
    yield PageSection("patterns", "Patterns", "Patterns", note, findings.patterns, (
        ("Pattern", lambda row: _failure_cell(
            row, row.tool, " to ".join(dict.fromkeys(map(format_date, (row.first_seen_at, row.last_seen_at))))
        ), ""),
        ("Failures", _number("failures"), "n c"),
        ("Sessions", _number("sessions"), "n c hide"),
        ("Recovered", lambda row: _percent(row.recovered, row.failures), "n c"),
        ("Repeated", _number("repeats_after_compaction"), "n c hide"),
        ("Unrecovered", _unrecovered_cell, "n c"),
    ))  # fmt: skip
    yield PageSection("tools", "Tools", "Tools", "", findings.tools, (
        ("Tool", lambda row: escape(row.tool), ""),
        ("Calls", _number("calls"), "n"),
        ("First-try success", _success_cell, ""),
        ("Final success", lambda row: _success_cell(row, row.recovered), "hide"),
        ("Failed", _number("failures"), "n"),
        ("Unrecovered", _unrecovered_cell, "n"),
        ("Time lost", lambda row: _spent_time(row.failure_seconds), "n hide"),
    ))  # fmt: skip


def _render_section(section: PageSection) -> str:
    note = f"<small>{section.note}</small>" if section.note else ""
    table = _render_table(section.columns, section.rows[:MAX_OPEN_ROWS])
    if more_rows := section.rows[MAX_OPEN_ROWS:]:
        more = _render_table(section.columns, more_rows)
        table += f"<details><summary>{len(more_rows)} more</summary>{more}</details>"
    return f'<section id="{section.id}"><h2>{section.title}{note}</h2>{table}</section>\n'


def _render_table(columns: Sequence[PageColumn], rows: Sequence[Any]) -> str:
    styled_columns = [(title, cell, f' class="{css}"' if css else "") for title, cell, css in columns]
    head = "".join(f"<th{css}>{title}</th>" for title, _, css in styled_columns)
    body = "".join(
        f"<tr>{''.join(f'<td{css}>{cell(row)}</td>' for _, cell, css in styled_columns)}</tr>\n" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table>"


def _describe_sources(findings: Findings) -> Iterator[str]:
    yield " to ".join(dict.fromkeys(map(_format_day, filter(None, (findings.first_seen_at, findings.last_seen_at)))))
    yield format_count(findings.sessions, "session")
    names = [escape(finding.agent) for finding in findings.agents]
    yield ", ".join(names[:4]) + (" and more" if len(names) > 4 else "")


def _render_cards(findings: Findings) -> Iterator[str]:
    calls, failures, recovered = findings.calls, findings.failures, findings.recovered
    repeats, sessions = findings.repeats_after_compaction, findings.compacted_sessions
    compacted = f"in {format_count(sessions, 'compacted session')}" if sessions else "no compacted sessions"
    lost_time = format_rough_duration(findings.failure_seconds)
    final = f"{_percent(calls - failures + recovered, calls)} final success"
    suspected = f", {findings.suspected:,} suspected" if findings.suspected else ""
    for name, value, detail, css in (
        ("Failed calls", f"{failures:,}", f"{_percent(failures, calls)} of {calls:,}{suspected}", "bad"),
        ("Recovered calls", _percent(recovered, failures), f"{recovered:,} of {failures:,}", "good"),
        ("Repeated after compaction", f"{repeats:,}", compacted, "bad" if repeats else ""),
        ("Time lost", lost_time, "failed calls and time until the next call", ""),
        ("First-try success", _percent(calls - failures, calls), final, ""),
    ):
        yield f'<div class="card"><p>{name}</p><strong class="{css}">{value}</strong><small>{detail}</small></div>\n'


def _describe_reading(findings: Findings, sources_text: str) -> Iterator[str]:
    if sources_text:
        yield f"<p>{escape(sources_text)}.</p>\n"
    if findings.user_rejected or findings.cancelled:
        yield f"<p>Not counted as failures: {format_count(findings.user_rejected, 'call')} rejected by the user, "
        yield f"{findings.cancelled:,} cancelled or skipped after a concurrent failure.</p>\n"


def _number(field: str) -> Callable[[Any], str]:
    return lambda row: f"{getattr(row, field):,}"


def _failure_cell(finding: PatternFinding | SpiralFinding, *details: str) -> str:
    where = " · ".join(escape(detail) for detail in details if detail)
    message = f"<code>{escape(finding.message) or '(no message)'}</code>"
    return f'{message}<br>{_tag(finding.kind)} <span class="quiet">{where}</span>'


def _marks_cell(finding: SpiralFinding) -> str:
    marks = "✕" * min(finding.failures, MAX_MARKS)
    marks += f" +{finding.failures - MAX_MARKS}" if finding.failures > MAX_MARKS else ""
    marks += "<i>✓</i>" if finding.recovered_by else ""
    end = escape(finding.recovered_by) or "unrecovered"
    return f'<span class="marks" title="{finding.failures} failures">{marks}</span><br>{end}'


def _unrecovered_cell(finding: PatternFinding | ToolFinding) -> str:
    count = finding.failures - finding.recovered
    return f'<span class="bad">{count:,}</span>' if count else "0"


def _spent_time(seconds: float) -> str:
    return format_rough_duration(seconds) if seconds else "-"


def _success_cell(finding: ToolFinding, recovered: int = 0) -> str:
    """Render a ratio as a bar and a percentage. The recovered part is hatched."""
    calls, successes = max(1, finding.calls), finding.calls - finding.failures
    bar = _render_bar((FILLED, successes / calls), (HATCHED, recovered / calls))
    return f'<div class="share">{bar}<span class="quiet">{_percent(successes + recovered, calls)}</span></div>'


def _render_bar(*parts: tuple[str, float], title: str = "") -> str:
    """Render a bar of parts, each with its attributes and its share of the width."""
    x, rectangles = 0.0, ""
    for attributes, share in parts:
        if share:
            position, width = (f"{number:.1f}".removesuffix(".0") for number in (x, 100 * share))
            rectangles += f'<rect {attributes} x="{position}" width="{width}" height="8"/>'
            x += 100 * share
    label = f' role="img"><title>{escape(title)}</title>' if title else ' aria-hidden="true">'
    track = '<rect class="track" width="100" height="8"/>'
    return f'<svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none"{label}{track}{rectangles}</svg>'


def _tag(text: str) -> str:
    return f'<span class="tag">{escape(text)}</span>'


def _percent(part: int, total: int) -> str:
    return format_percent(part, total).replace(" ", "\u00a0")


def _format_day(timestamp: int) -> str:
    return time.strftime("%d %b %Y", time.gmtime(timestamp / 1000)).lstrip("0") if timestamp else "-"
