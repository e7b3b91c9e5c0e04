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

from mulligan.report.findings import Findings, FixFound, PatternFound, SpiralFound, ToolFound
from mulligan.report.scan_text import answer, day, lasted
from mulligan.report.tables import count

SPACE = "\u00a0"


def page(found: Findings, now: int, read: str = "") -> str:
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
            f"<title>mulligan scan, {_date(now)}</title>\n<style>{style}</style>\n</head>\n<body>\n",
            *_header(found, now),
            "<main id=main>\n",
            *_body(found, read),
            "</main>\n</body>\n</html>\n",
        )
    )


def _body(found: Findings, read: str) -> Iterator[str]:
    agents = ", ".join(_e(each.agent) for each in found.agents[:4]) + (" and more" if len(found.agents) > 4 else "")
    span = _span(found.first, found.last)
    about = " · ".join(
        each for each in (span, f"{found.sessions:,} session{'' if found.sessions == 1 else 's'}", agents) if each
    )
    yield f'<h1>What failed</h1><span class="quiet">{about}</span>\n'
    yield f'<p class="lead">{_e(answer(found))}</p>\n'
    yield from _cards(found)
    if found.failures:
        yield '<div class="two">\n'
        yield from _days(found)
        yield from _kinds(found)
        yield "</div>\n"
    if found.fixes:
        yield from _fixes(found.fixes)
    if found.spirals:
        yield from _spirals(found.spirals)
    if found.patterns:
        yield from _patterns(found.patterns)
    yield from _tools(found.tools)
    yield from _footer(found, read)


def _header(found: Findings, now: int) -> Iterator[str]:
    links = [("kinds", "Kinds", found.failures), ("helped", "What helped", len(found.fixes))]
    links += [("spirals", "Spirals", len(found.spirals)), ("patterns", "Patterns", len(found.patterns))]
    links += [("tools", "Tools", len(found.tools))]
    yield '<a class="skip" href="#main">To the findings</a>\n<header><b>mulligan</b><nav aria-label="On this page">'
    yield from (f'<a href="#{id}">{name}</a>' for id, name, there in links if there)
    yield f"</nav><time>scanned {_date(now)}</time></header>\n"


def _cards(found: Findings) -> Iterator[str]:
    worked = found.calls - found.failures
    later = f"{_percent(worked + found.overcome, found.calls)} in the end"
    compacted = (
        f"in {found.compacted:,} sessions that were compacted" if found.compacted else "no session was compacted"
    )
    share = f"{_percent(found.failures, found.calls)} of {found.calls:,}"
    yield '<div class="cards">\n'
    yield _card("Calls that failed", f"{found.failures:,}", share, "bad")
    yield _card(
        "Overcome", _percent(found.overcome, found.failures), f"{found.overcome:,} of {found.failures:,}", "good"
    )
    yield _card("Again after a compaction", f"{found.again:,}", compacted, "bad" if found.again else "")
    yield _card("Time spent failing", lasted(found.seconds), "failed calls, and thinking what next")
    yield _card("First-try success", _percent(worked, found.calls), later)
    yield "</div>\n"


def _card(name: str, figure: str, about: str, sort: str = "") -> str:
    marked = f' class="{sort}"' if sort else ""
    return f'<div class="card"><p>{name}</p><strong{marked}>{figure}</strong><small>{about}</small></div>\n'


CHART, PLOT, LEFT, WIDEST = 700, 236, 46, 48
ROWS = 10
"""Rows shown at first; the others are in a collapsed table."""


def _days(found: Findings) -> Iterator[str]:
    lost = sum(each.given_up for each in found.days)
    won = sum(each.overcome for each in found.days)
    yield f"<section><h2>Failures by day<small>{_few(len(found.days))}</small></h2>\n"
    if not lost + won:
        yield '<p class="quiet">The logs do not say when it was.</p></section>\n'
        return
    swatch = '<svg viewBox="0 0 12 12" aria-hidden="true">{}</svg>'
    yield '<ul class="legend"><li>' + swatch.format('<rect width="12" height="12" fill="url(#hatch)"/>')
    yield f"overcome {won:,}</li><li>" + swatch.format('<rect class="lost" width="12" height="12"/>')
    yield f"never overcome {lost:,}</li></ul>\n"
    if found.undated:
        yield f'<p class="quiet">Not shown: {count(found.undated, "failure")} of which the logs do not say when.</p>\n'
    yield from _chart(found)
    yield "<details><summary>Show as table</summary><table><thead><tr><th>Day</th>"
    yield '<th class="n">Calls</th><th class="n">Overcome</th><th class="n">Never overcome</th></tr></thead><tbody>'
    for each in found.days:
        yield f'<tr><td>{_e(each.day)}</td><td class="n">{each.calls:,}</td>'
        yield f'<td class="n">{each.overcome:,}</td><td class="n">{each.given_up:,}</td></tr>'
    yield "</tbody></table></details></section>\n"


def _chart(found: Findings) -> Iterator[str]:
    most = max(each.overcome + each.given_up for each in found.days)
    step = next(each for each in _steps() if each * 4 >= most)
    top = step * -(-most // step)
    wide = (CHART - LEFT) / len(found.days)
    yield f'<svg viewBox="0 0 {CHART} {PLOT + 30}" role="img" aria-label="Failures by day, in the table below">\n'
    yield '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    yield '<rect class="won" width="6" height="6"/><path class="stripe" d="M0 0V6"/></pattern></defs>\n'
    for value in range(0, top + 1, step):
        y = _f(PLOT + 8 - PLOT * value / top)
        yield f'<path class="grid" d="M{LEFT} {y}H{CHART}"/><text class="tick" x="{LEFT - 6}" y="{y}" dy="4" '
        yield f'text-anchor="end">{value:,}</text>\n'
    for place, each in enumerate(found.days):
        thick = min(wide * 0.72, WIDEST)
        x = LEFT + wide * place + (wide - thick) / 2
        won, lost = PLOT * each.overcome / top, PLOT * each.given_up / top
        told = f"{each.day}: {each.overcome:,} overcome, {each.given_up:,} never, of {each.calls:,} calls"
        yield f"<g><title>{_e(told)}</title>"
        at = f'x="{_f(x)}" width="{_f(thick)}"'
        yield f'<rect fill="url(#hatch)" {at} y="{_f(PLOT + 8 - won)}" height="{_f(won)}"/>'
        yield f'<rect class="lost" {at} y="{_f(PLOT + 8 - won - lost)}" height="{_f(lost)}"/></g>\n'
        if place % max(1, -(-len(found.days) // 8)) == 0:
            when = time.strptime(each.day, "%Y-%m-%d")
            label = f"{when.tm_mday} {time.strftime('%b', when)}"
            yield f'<text class="tick" x="{_f(x + thick / 2)}" y="{PLOT + 24}" text-anchor="middle">{label}</text>\n'
    yield "</svg>\n"


def _steps() -> Iterator[int]:
    size = 1
    while True:
        yield from (size, 2 * size, 5 * size)
        size *= 10


def _kinds(found: Findings) -> Iterator[str]:
    most = max(each.failures for each in found.kinds)
    yield '<section id="kinds"><h2>Failures by kind</h2><table><thead><tr><th>Type / code</th>'
    yield '<th class="n">Failures</th><th class="w hide"></th></tr></thead><tbody>\n'
    for each in found.kinds[:ROWS]:
        type, _, code = each.kind.partition("/")
        yield f'<tr><td title="most often in {_e(each.tool)}"><span class="tag">{_e(type)}</span> {_e(code)}</td>'
        yield f'<td class="n">{each.failures:,}</td><td class="hide">{_bar(each.failures / most)}</td></tr>\n'
    yield "</tbody></table>"
    if len(found.kinds) > ROWS:
        yield f'<p class="quiet">and {len(found.kinds) - ROWS} more</p>'
    yield "</section>\n"


def _listed(head: str, rows: list[str]) -> Iterator[str]:
    """Render a table. Rows after the first ones are collapsed."""
    yield f"<table><thead><tr>{head}</tr></thead><tbody>\n"
    yield from rows[:ROWS]
    yield "</tbody></table>"
    if len(rows) > ROWS:
        yield f"<details><summary>{len(rows) - ROWS} more</summary><table><thead><tr>{head}</tr></thead><tbody>\n"
        yield from rows[ROWS:]
        yield "</tbody></table></details>"
    yield "</section>\n"


def _patterns(patterns: Iterable[PatternFound]) -> Iterator[str]:
    yield '<section id="patterns"><h2>Patterns<small>one failure of one tool, the least overcome first</small>'
    yield "</h2>"
    head = (
        '<th>Pattern</th><th class="n c">Failures</th><th class="n c hide">Sessions</th><th class="n c">Overcome</th>'
    )
    head += '<th class="n c hide">Again</th><th class="n c">Never</th>'
    yield from _listed(head, [_pattern(each) for each in patterns])


def _pattern(each: PatternFound) -> str:
    when = day(each.first) if day(each.first) == day(each.last) else f"{day(each.first)} to {day(each.last)}"
    return (
        f'<tr><td>{_said(each.message)}<br><span class="tag">{_e(each.kind)}</span> '
        f'<span class="quiet">{_e(each.tool)} · {when}</span></td>'
        f'<td class="n">{each.failures:,}</td><td class="n hide">{each.sessions:,}</td>'
        f'<td class="n">{_percent(each.overcome, each.failures)}</td><td class="n hide">{each.again:,}</td>'
        f'<td class="n">{_never(each.given_up)}</td></tr>\n'
    )


def _fixes(fixes: Iterable[FixFound]) -> Iterator[str]:
    yield '<section id="helped"><h2>What helped<small>what was different when a failed call worked</small></h2>'
    head = '<th class="f">Failure</th><th>What helped</th><th class="n c">Times</th><th class="w hide"></th>'
    yield from _listed(head, [_fix(each) for each in fixes])


def _fix(each: FixFound) -> str:
    change = ""
    if each.before or each.after:
        change = f'<br><code class="was">{_e(each.before)}</code> → <code class="is">{_e(each.after)}</code>'
    return (
        f'<tr><td>{_e(each.tool)}<br><span class="tag">{_e(each.kind)}</span></td><td>{_e(each.fix)}{change}</td>'
        f'<td class="n">{each.worked:,} of {each.failures:,}</td>'
        f'<td class="hide">{_bar(each.worked / max(1, each.failures))}</td></tr>\n'
    )


def _spirals(spirals: Iterable[SpiralFound]) -> Iterator[str]:
    yield '<section id="spirals"><h2>Worst spirals<small>the same failure again and again in one session</small></h2>'
    head = '<th>What failed</th><th class="f">Attempts</th><th class="n c">Lasted</th>'
    yield from _listed(head, [_spiral(each) for each in spirals])


def _spiral(each: SpiralFound) -> str:
    shown = min(each.failures, 24)
    more = f" +{each.failures - shown}" if each.failures > shown else ""
    end = f"<i>✓</i></span><br>{_e(each.ended)}" if each.ended else "</span><br>never overcome"
    where = " · ".join(_e(part) for part in (each.tool, each.project or each.agent, day(each.started)) if part)
    return (
        f'<tr><td>{_said(each.message)}<br><span class="tag">{_e(each.kind)}</span> <span class="quiet">{where}</span>'
        f'</td><td><span class="marks" title="{each.failures} failures">{"✕" * shown}{more}{end}</td>'
        f'<td class="n">{_spent(each.seconds)}</td></tr>\n'
    )


def _tools(tools: Iterable[ToolFound]) -> Iterator[str]:
    yield '<section id="tools"><h2>Tools</h2>'
    head = '<th>Tool</th><th class="n">Calls</th><th>First-try success</th><th class="hide">In the end</th>'
    head += '<th class="n">Failed</th><th class="n">Never overcome</th><th class="n hide">Time in failing</th>'
    yield from _listed(head, [_tool(each) for each in tools])


def _tool(each: ToolFound) -> str:
    first = (each.calls - each.failures) / max(1, each.calls)
    final = first + each.overcome / max(1, each.calls)
    return (
        f'<tr><td>{_e(each.tool)}</td><td class="n">{each.calls:,}</td><td>{_share(first)}</td>'
        f'<td class="hide">{_share(first, final)}</td><td class="n">{each.failures:,}</td>'
        f'<td class="n">{_never(each.failures - each.overcome)}</td>'
        f'<td class="n hide">{_spent(each.seconds)}</td></tr>\n'
    )


def _said(message: str) -> str:
    return f"<code>{_e(message) or '(nothing was said)'}</code>"


def _never(count: int) -> str:
    return f'<span class="bad">{count:,}</span>' if count else "0"


def _spent(seconds: float) -> str:
    return lasted(seconds) if seconds else "-"


def _few(days: int) -> str:
    return f"the last {days} days" if days > 1 else ""


def _footer(found: Findings, read: str) -> Iterator[str]:
    yield f"<footer><p>{_e(read)}. </p>" if read else "<footer>"
    if found.refused or found.cancelled:
        yield f"<p>Not failures, and not counted: {found.refused:,} calls that you refused, {found.cancelled:,} that "
        yield "were stopped or not made because a sibling had failed.</p>"
    yield "<p><b>Overcome</b>: the same call, or one much like it, worked later in the session, whoever made it. "
    yield "<b>Again</b>: met before a compaction of the conversation and once more after it. <b>Time</b>: in failed "
    yield "calls, and from each to the next call; pauses of more than five minutes left out.</p>"
    yield "<p>Secrets and personal data that were recognised are not on this page. It loads nothing, runs no script, "
    yield "and was made on this machine by <code>mulligan scan</code>.</p></footer>\n"


def _bar(share: float) -> str:
    return (
        '<svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true"><rect class="track" '
        f'width="100" height="8" rx="1"/><rect class="fill" width="{_f(100 * share)}" height="8" rx="1"/></svg>'
    )


def _share(first: float, final: float | None = None) -> str:
    """Render a ratio as a bar and a percentage. The recovered part is hatched."""
    more = ""
    if final is not None and final > first:
        more = f'<rect fill="url(#hatch)" x="{_f(100 * first)}" width="{_f(100 * (final - first))}" height="8"/>'
    value = first if final is None else final
    return (
        '<div class="share"><svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="track" width="100" height="8"/><rect class="fill" width="{_f(100 * first)}" height="8"/>{more}'
        f'</svg><span class="quiet">{100 * value:.1f}{SPACE}%</span></div>'
    )


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}{SPACE}%" if whole else "-"


def _date(moment: int) -> str:
    return time.strftime("%d %b %Y", time.gmtime(moment / 1000)).lstrip("0") if moment else "-"


def _span(first: int, last: int) -> str:
    if not first or not last:
        return ""
    return _date(first) if _date(first) == _date(last) else f"{_date(first)} to {_date(last)}"


def _f(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")


def _e(text: object) -> str:
    return escape(str(text), quote=True)
