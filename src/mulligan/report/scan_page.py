"""HTML page of scan findings: self-contained, without scripts, in light and dark mode.

Every text is escaped where it is inserted. As a second defense, the content security policy allows only the style of
the page, by its hash: text that bypassed the escaping could not run, load or send anything.
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Iterable, Iterator
from html import escape
from pathlib import Path

from mulligan.report.findings import Findings, FixFinding, PatternFinding, SpiralFinding, ToolFinding
from mulligan.report.scan_text import format_date, format_rough_duration, summarize_findings
from mulligan.report.tables import format_count

NO_BREAK_SPACE = "\u00a0"


def render_page(findings: Findings, now: int, sources_text: str = "") -> str:
    """Render the complete HTML document."""
    style = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    return "".join(
        (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n',
            '<meta name="referrer" content="no-referrer">\n',
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n',
            f"<title>mulligan scan, {_format_date(now)}</title>\n<style>{style}</style>\n</head>\n<body>\n",
            *_render_header(findings, now),
            "<main id=main>\n",
            *_render_body(findings, sources_text),
            "</main>\n</body>\n</html>\n",
        )
    )


def _render_body(findings: Findings, sources_text: str) -> Iterator[str]:
    agents = ", ".join(_escape(agent_finding.agent) for agent_finding in findings.agents[:4]) + (
        " and more" if len(findings.agents) > 4 else ""
    )
    period = _format_period(findings.first_seen_at, findings.last_seen_at)
    summary_line = " · ".join(
        part
        for part in (period, f"{findings.sessions:,} session{'' if findings.sessions == 1 else 's'}", agents)
        if part
    )
    yield f'<h1>Failures</h1><span class="quiet">{summary_line}</span>\n'
    yield f'<p class="lead">{_escape(summarize_findings(findings))}</p>\n'
    yield from _render_cards(findings)
    if findings.failures:
        yield '<div class="two">\n'
        yield from _render_days(findings)
        yield from _render_kinds(findings)
        yield "</div>\n"
    if findings.fixes:
        yield from _render_fixes(findings.fixes)
    if findings.spirals:
        yield from _render_spirals(findings.spirals)
    if findings.patterns:
        yield from _render_patterns(findings.patterns)
    yield from _render_tools(findings.tools)
    yield from _render_footer(findings, sources_text)


def _render_header(findings: Findings, now: int) -> Iterator[str]:
    links = [("kinds", "Kinds", findings.failures), ("helped", "Recoveries", len(findings.fixes))]
    links += [("spirals", "Spirals", len(findings.spirals)), ("patterns", "Patterns", len(findings.patterns))]
    links += [("tools", "Tools", len(findings.tools))]
    yield '<a class="skip" href="#main">Skip to the findings</a>\n'
    yield '<header><b>mulligan</b><nav aria-label="On this page">'
    yield from (f'<a href="#{id}">{name}</a>' for id, name, is_shown in links if is_shown)
    yield f"</nav><time>scanned {_format_date(now)}</time></header>\n"


def _render_cards(findings: Findings) -> Iterator[str]:
    first_try_successes = findings.calls - findings.failures
    later = f"{_format_percent(first_try_successes + findings.recovered, findings.calls)} final success"
    compacted = (
        f"in {findings.compacted_sessions:,} compacted sessions"
        if findings.compacted_sessions
        else "no compacted sessions"
    )
    share = f"{_format_percent(findings.failures, findings.calls)} of {findings.calls:,}"
    yield '<div class="cards">\n'
    yield _render_card("Failed calls", f"{findings.failures:,}", share, "bad")
    yield _render_card(
        "Recovered calls",
        _format_percent(findings.recovered, findings.failures),
        f"{findings.recovered:,} of {findings.failures:,}",
        "good",
    )
    yield _render_card(
        "Repeated after compaction",
        f"{findings.repeats_after_compaction:,}",
        compacted,
        "bad" if findings.repeats_after_compaction else "",
    )
    yield _render_card(
        "Time lost", format_rough_duration(findings.failure_seconds), "failed calls and time until the next call"
    )
    yield _render_card("First-try success", _format_percent(first_try_successes, findings.calls), later)
    yield "</div>\n"


def _render_card(name: str, value: str, detail: str, css_class: str = "") -> str:
    class_attribute = f' class="{css_class}"' if css_class else ""
    return f'<div class="card"><p>{name}</p><strong{class_attribute}>{value}</strong><small>{detail}</small></div>\n'


CHART_WIDTH, PLOT_HEIGHT, AXIS_WIDTH, MAX_BAR_WIDTH = 700, 236, 46, 48
MAX_OPEN_ROWS = 10
"""Rows shown at first; the others are in a collapsed table."""


def _render_days(findings: Findings) -> Iterator[str]:
    unrecovered = sum(day_finding.unrecovered for day_finding in findings.days)
    recovered = sum(day_finding.recovered for day_finding in findings.days)
    yield f"<section><h2>Failures by day<small>{_describe_days(len(findings.days))}</small></h2>\n"
    if not unrecovered + recovered:
        yield '<p class="quiet">The logs have no timestamps.</p></section>\n'
        return
    swatch = '<svg viewBox="0 0 12 12" aria-hidden="true">{}</svg>'
    yield '<ul class="legend"><li>' + swatch.format('<rect width="12" height="12" fill="url(#hatch)"/>')
    yield f"recovered {recovered:,}</li><li>" + swatch.format('<rect class="lost" width="12" height="12"/>')
    yield f"unrecovered {unrecovered:,}</li></ul>\n"
    if findings.undated:
        undated = format_count(findings.undated, "failure")
        yield f'<p class="quiet">Not shown: {undated} without a timestamp.</p>\n'
    yield from _render_chart(findings)
    yield "<details><summary>Show as table</summary><table><thead><tr><th>Day</th>"
    yield '<th class="n">Calls</th><th class="n">Recovered</th><th class="n">Unrecovered</th></tr></thead><tbody>'
    for day_finding in findings.days:
        yield f'<tr><td>{_escape(day_finding.day)}</td><td class="n">{day_finding.calls:,}</td>'
        yield f'<td class="n">{day_finding.recovered:,}</td><td class="n">{day_finding.unrecovered:,}</td></tr>'
    yield "</tbody></table></details></section>\n"


def _render_chart(findings: Findings) -> Iterator[str]:
    max_failures = max(day_finding.recovered + day_finding.unrecovered for day_finding in findings.days)
    step = next(candidate_step for candidate_step in _axis_steps() if candidate_step * 4 >= max_failures)
    top = step * -(-max_failures // step)
    slot_width = (CHART_WIDTH - AXIS_WIDTH) / len(findings.days)
    yield f'<svg viewBox="0 0 {CHART_WIDTH} {PLOT_HEIGHT + 30}" role="img" '
    yield 'aria-label="Failures by day, in the table below">\n'
    yield '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    yield '<rect class="won" width="6" height="6"/><path class="stripe" d="M0 0V6"/></pattern></defs>\n'
    for value in range(0, top + 1, step):
        y = _format_number(PLOT_HEIGHT + 8 - PLOT_HEIGHT * value / top)
        yield f'<path class="grid" d="M{AXIS_WIDTH} {y}H{CHART_WIDTH}"/>'
        yield f'<text class="tick" x="{AXIS_WIDTH - 6}" y="{y}" dy="4" text-anchor="end">{value:,}</text>\n'
    for index, day_finding in enumerate(findings.days):
        bar_width = min(slot_width * 0.72, MAX_BAR_WIDTH)
        x = AXIS_WIDTH + slot_width * index + (slot_width - bar_width) / 2
        recovered_height, unrecovered_height = (
            PLOT_HEIGHT * day_finding.recovered / top,
            PLOT_HEIGHT * day_finding.unrecovered / top,
        )
        tooltip = (
            f"{day_finding.day}: {day_finding.recovered:,} recovered, {day_finding.unrecovered:,} unrecovered, "
            f"{day_finding.calls:,} calls"
        )
        yield f"<g><title>{_escape(tooltip)}</title>"
        x_attributes = f'x="{_format_number(x)}" width="{_format_number(bar_width)}"'
        recovered_y = PLOT_HEIGHT + 8 - recovered_height
        yield f'<rect fill="url(#hatch)" {x_attributes} y="{_format_number(recovered_y)}" '
        yield f'height="{_format_number(recovered_height)}"/>'
        yield f'<rect class="lost" {x_attributes} y="{_format_number(recovered_y - unrecovered_height)}" '
        yield f'height="{_format_number(unrecovered_height)}"/></g>\n'
        if index % max(1, -(-len(findings.days) // 8)) == 0:
            when = time.strptime(day_finding.day, "%Y-%m-%d")
            label = f"{when.tm_mday} {time.strftime('%b', when)}"
            yield f'<text class="tick" x="{_format_number(x + bar_width / 2)}" y="{PLOT_HEIGHT + 24}" '
            yield f'text-anchor="middle">{label}</text>\n'
    yield "</svg>\n"


def _axis_steps() -> Iterator[int]:
    size = 1
    while True:
        yield from (size, 2 * size, 5 * size)
        size *= 10


def _render_kinds(findings: Findings) -> Iterator[str]:
    max_failures = max(kind_finding.failures for kind_finding in findings.kinds)
    yield '<section id="kinds"><h2>Failures by kind</h2><table><thead><tr><th>Type / code</th>'
    yield '<th class="n">Failures</th><th class="w hide"></th></tr></thead><tbody>\n'
    for kind_finding in findings.kinds[:MAX_OPEN_ROWS]:
        type, _, code = kind_finding.kind.partition("/")
        yield f'<tr><td title="main tool: {_escape(kind_finding.tool)}">'
        yield f'<span class="tag">{_escape(type)}</span> {_escape(code)}</td>'
        yield f'<td class="n">{kind_finding.failures:,}</td>'
        yield f'<td class="hide">{_render_bar(kind_finding.failures / max_failures)}</td></tr>\n'
    yield "</tbody></table>"
    if len(findings.kinds) > MAX_OPEN_ROWS:
        yield f'<p class="quiet">and {len(findings.kinds) - MAX_OPEN_ROWS} more</p>'
    yield "</section>\n"


def _render_table(head: str, rows: list[str]) -> Iterator[str]:
    """Render a table. Rows after the first ones are collapsed."""
    yield f"<table><thead><tr>{head}</tr></thead><tbody>\n"
    yield from rows[:MAX_OPEN_ROWS]
    yield "</tbody></table>"
    if len(rows) > MAX_OPEN_ROWS:
        yield f"<details><summary>{len(rows) - MAX_OPEN_ROWS} more</summary>"
        yield f"<table><thead><tr>{head}</tr></thead><tbody>\n"
        yield from rows[MAX_OPEN_ROWS:]
        yield "</tbody></table></details>"
    yield "</section>\n"


def _render_patterns(patterns: Iterable[PatternFinding]) -> Iterator[str]:
    yield '<section id="patterns"><h2>Patterns'
    yield "<small>failures of one tool with one message template, most unrecovered first</small>"
    yield "</h2>"
    head = (
        '<th>Pattern</th><th class="n c">Failures</th><th class="n c hide">Sessions</th><th class="n c">Recovered</th>'
    )
    head += '<th class="n c hide">Repeated</th><th class="n c">Unrecovered</th>'
    yield from _render_table(head, [_pattern_row(finding) for finding in patterns])


def _pattern_row(finding: PatternFinding) -> str:
    when = (
        format_date(finding.first_seen_at)
        if format_date(finding.first_seen_at) == format_date(finding.last_seen_at)
        else f"{format_date(finding.first_seen_at)} to {format_date(finding.last_seen_at)}"
    )
    return (
        f'<tr><td>{_format_message(finding.message)}<br><span class="tag">{_escape(finding.kind)}</span> '
        f'<span class="quiet">{_escape(finding.tool)} · {when}</span></td>'
        f'<td class="n">{finding.failures:,}</td><td class="n hide">{finding.sessions:,}</td>'
        f'<td class="n">{_format_percent(finding.recovered, finding.failures)}</td>'
        f'<td class="n hide">{finding.repeats_after_compaction:,}</td>'
        f'<td class="n">{_format_unrecovered(finding.unrecovered)}</td></tr>\n'
    )


def _render_fixes(fixes: Iterable[FixFinding]) -> Iterator[str]:
    yield '<section id="helped"><h2>Recoveries<small>what differed when a failed call succeeded</small></h2>'
    head = '<th class="f">Failure</th><th>Recovery</th><th class="n c">Count</th><th class="w hide"></th>'
    yield from _render_table(head, [_fix_row(finding) for finding in fixes])


def _fix_row(finding: FixFinding) -> str:
    change = ""
    if finding.before or finding.after:
        change = (
            f'<br><code class="was">{_escape(finding.before)}</code> → <code class="is">{_escape(finding.after)}</code>'
        )
    return (
        f'<tr><td>{_escape(finding.tool)}<br><span class="tag">{_escape(finding.kind)}</span></td>'
        f"<td>{_escape(finding.action)}{change}</td>"
        f'<td class="n">{finding.successes:,} of {finding.failures:,}</td>'
        f'<td class="hide">{_render_bar(finding.successes / max(1, finding.failures))}</td></tr>\n'
    )


def _render_spirals(spirals: Iterable[SpiralFinding]) -> Iterator[str]:
    yield '<section id="spirals"><h2>Worst spirals'
    yield "<small>one strategy that failed repeatedly in one session</small></h2>"
    head = '<th>Failure</th><th class="f">Attempts</th><th class="n c">Duration</th>'
    yield from _render_table(head, [_spiral_row(finding) for finding in spirals])


def _spiral_row(finding: SpiralFinding) -> str:
    shown_count = min(finding.failures, 24)
    more = f" +{finding.failures - shown_count}" if finding.failures > shown_count else ""
    end = f"<i>✓</i></span><br>{_escape(finding.recovered_by)}" if finding.recovered_by else "</span><br>unrecovered"
    where = " · ".join(
        _escape(part)
        for part in (finding.tool, finding.project or finding.agent, format_date(finding.started_at))
        if part
    )
    return (
        f'<tr><td>{_format_message(finding.message)}<br><span class="tag">{_escape(finding.kind)}</span> '
        f'<span class="quiet">{where}</span></td>'
        f'<td><span class="marks" title="{finding.failures} failures">{"✕" * shown_count}{more}{end}</td>'
        f'<td class="n">{_format_spent_time(finding.duration_seconds)}</td></tr>\n'
    )


def _render_tools(tools: Iterable[ToolFinding]) -> Iterator[str]:
    yield '<section id="tools"><h2>Tools</h2>'
    head = '<th>Tool</th><th class="n">Calls</th><th>First-try success</th><th class="hide">Final success</th>'
    head += '<th class="n">Failed</th><th class="n">Unrecovered</th><th class="n hide">Time lost</th>'
    yield from _render_table(head, [_tool_row(finding) for finding in tools])


def _tool_row(finding: ToolFinding) -> str:
    first = (finding.calls - finding.failures) / max(1, finding.calls)
    final = first + finding.recovered / max(1, finding.calls)
    return (
        f'<tr><td>{_escape(finding.tool)}</td><td class="n">{finding.calls:,}</td><td>{_render_share(first)}</td>'
        f'<td class="hide">{_render_share(first, final)}</td><td class="n">{finding.failures:,}</td>'
        f'<td class="n">{_format_unrecovered(finding.failures - finding.recovered)}</td>'
        f'<td class="n hide">{_format_spent_time(finding.failure_seconds)}</td></tr>\n'
    )


def _format_message(message: str) -> str:
    return f"<code>{_escape(message) or '(no message)'}</code>"


def _format_unrecovered(count: int) -> str:
    return f'<span class="bad">{count:,}</span>' if count else "0"


def _format_spent_time(seconds: float) -> str:
    return format_rough_duration(seconds) if seconds else "-"


def _describe_days(days: int) -> str:
    return f"last {days} days" if days > 1 else ""


def _render_footer(findings: Findings, sources_text: str) -> Iterator[str]:
    yield f"<footer><p>{_escape(sources_text)}. </p>" if sources_text else "<footer>"
    if findings.user_rejected or findings.cancelled:
        yield f"<p>Not counted as failures: {findings.user_rejected:,} calls rejected by the user, "
        yield f"{findings.cancelled:,} cancelled or skipped after a concurrent failure.</p>"
    yield "<p><b>Recovered</b>: the same call, or a similar one, succeeded later in the session. "
    yield "<b>Repeated</b>: occurred before a compaction and again after it. <b>Time lost</b>: time in failed calls "
    yield "and from each to the next call, without pauses of more than five minutes.</p>"
    yield "<p>Recognized secrets and personal data are redacted on this page. It loads nothing and runs no script. "
    yield "<code>mulligan scan</code> generated it on this machine.</p></footer>\n"


def _render_bar(share: float) -> str:
    return (
        '<svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true"><rect class="track" '
        'width="100" height="8" rx="1"/>'
        f'<rect class="fill" width="{_format_number(100 * share)}" height="8" rx="1"/></svg>'
    )


def _render_share(first: float, final: float | None = None) -> str:
    """Render a ratio as a bar and a percentage. The recovered part is hatched."""
    more = ""
    if final is not None and final > first:
        x, width = _format_number(100 * first), _format_number(100 * (final - first))
        more = f'<rect fill="url(#hatch)" x="{x}" width="{width}" height="8"/>'
    value = first if final is None else final
    return (
        '<div class="share"><svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">'
        '<rect class="track" width="100" height="8"/>'
        f'<rect class="fill" width="{_format_number(100 * first)}" height="8"/>{more}'
        f'</svg><span class="quiet">{100 * value:.1f}{NO_BREAK_SPACE}%</span></div>'
    )


def _format_percent(part: int, total: int) -> str:
    return f"{100 * part / total:.1f}{NO_BREAK_SPACE}%" if total else "-"


def _format_date(timestamp: int) -> str:
    return time.strftime("%d %b %Y", time.gmtime(timestamp / 1000)).lstrip("0") if timestamp else "-"


def _format_period(first: int, last: int) -> str:
    if not first or not last:
        return ""
    return (
        _format_date(first)
        if _format_date(first) == _format_date(last)
        else f"{_format_date(first)} to {_format_date(last)}"
    )


def _format_number(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")


def _escape(text: object) -> str:
    return escape(str(text), quote=True)
