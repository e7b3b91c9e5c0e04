"""Text rendering of scan findings: summary, kinds, recoveries and worst spirals."""

from __future__ import annotations

import time
from collections.abc import Iterator

from mulligan.report.findings import Findings
from mulligan.report.run_text import format_count, render_columns, to_line

MAX_KINDS = 10
MAX_FIXES = 8
MAX_SPIRALS = 5


def render_findings(findings: Findings) -> Iterator[str]:
    """Render the findings. The first line is the summary."""
    yield summarize_findings(findings)
    if not findings.calls:
        return
    if len(findings.agents) > 1:
        yield ""
        rows = [("sessions", "calls", "failed", "", "agent")]
        for agent_finding in findings.agents[:MAX_KINDS]:
            share = format_percent(agent_finding.failures, agent_finding.calls)
            rows.append(
                (
                    f"{agent_finding.sessions:,}",
                    f"{agent_finding.calls:,}",
                    f"{agent_finding.failures:,}",
                    share,
                    to_line(agent_finding.agent, 40),
                )
            )
        yield from render_columns(rows, right=(0, 1, 2, 3))
    if findings.failures:
        yield ""
        yield from _kind_lines(findings)
        costs = list(_cost_lines(findings))
        yield from ["", *costs] if costs else []
    if findings.fixes:
        yield ""
        yield "What overcame them:"
        yield ""
        yield from _fix_lines(findings)
    if findings.spirals:
        yield ""
        yield "The worst spirals, the same failure again and again in one session:"
        yield ""
        yield from _spiral_lines(findings)


def summarize_findings(findings: Findings) -> str:
    """Return the summary of the findings in one sentence."""
    if not findings.calls:
        return "No calls of any tool were found."
    where = f"{format_count(findings.calls, 'call')} in {format_count(findings.sessions, 'session')}"
    if not findings.failures:
        return f"None of {where} failed."
    sentence = f"{format_percent(findings.failures, findings.calls)} of {where} failed: "
    verb = "was" if findings.overcome == 1 else "were"
    sentence += f"{findings.overcome:,} of {format_count(findings.failures, 'failure')} {verb} overcome"
    if findings.again:
        sentence += f", {findings.again:,} came again after a compaction"
    return f"{sentence}."


def format_percent(part: int, total: int) -> str:
    return f"{100 * part / total:.1f} %" if total else "-"


def format_rough_duration(seconds: float) -> str:
    """Format a duration with one rounded unit."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def format_date(timestamp: int) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(timestamp / 1000)) if timestamp else "-"


def _kind_lines(findings: Findings) -> Iterator[str]:
    rows = [["failures", "overcome", "again", "kind", "most often in"]]
    rows += [
        [
            f"{finding.failures:,}",
            f"{finding.overcome:,}",
            f"{finding.again:,}",
            to_line(finding.kind, 40),
            to_line(finding.tool, 40),
        ]
        for finding in findings.kinds[:MAX_KINDS]
    ]
    if not findings.again:  # omit a column of zeros
        rows = [[*row[:2], *row[3:]] for row in rows]
    yield from render_columns(rows, right=(0, 1, 2) if findings.again else (0, 1))
    more = len(findings.kinds) - MAX_KINDS
    if more > 0:
        yield f"  and {format_count(more, 'more kind')}: --json has them all"


def _cost_lines(findings: Findings) -> Iterator[str]:
    if findings.seconds:
        duration = format_rough_duration(findings.seconds)
        yield f"{duration} went into failing: the failed calls, and thinking what to do next."
    exclusions = [f"{findings.refused:,} that you refused"] if findings.refused else []
    exclusions += [f"{findings.cancelled:,} stopped, mostly with a sibling that failed"] if findings.cancelled else []
    if exclusions:
        yield f"Not counted as failures: {' and '.join(exclusions)}."
    (calls, failed), (later, failed_later) = findings.before, findings.after
    if min(calls, later) >= 50 and (failed or failed_later):
        yield (
            f"{format_count(findings.compacted, 'session')} had a compaction: {format_percent(failed, calls)} of calls "
            f"failed before it, {format_percent(failed_later, later)} after."
        )


def _fix_lines(findings: Findings) -> Iterator[str]:
    rows = [("worked", "", "of", "tool", "kind", "what helped")]
    for finding in findings.fixes[:MAX_FIXES]:
        kind = finding.kind.partition("/")[2] or finding.kind
        rows.append(
            (
                f"{finding.worked:,}",
                "of",
                f"{finding.failures:,}",
                to_line(finding.tool, 24),
                to_line(kind, 24),
                to_line(finding.fix, 60),
            )
        )
    rows[0] = ("times", "", "", *rows[0][3:])
    yield from render_columns(rows, right=(0, 2))


def _spiral_lines(findings: Findings) -> Iterator[str]:
    rows = []
    for finding in findings.spirals[:MAX_SPIRALS]:
        where = to_line(finding.project or finding.agent, 24)
        rows.append(
            (
                f"{finding.failures} times",
                f"in {format_rough_duration(finding.seconds)}" if finding.seconds else "",
                format_date(finding.started),
                where,
                f"{to_line(finding.tool, 24)}, {to_line(finding.kind, 40)}: {to_line(finding.message, 60)}",
            )
        )
        ending_text = f"overcome by: {to_line(finding.ended, 60)}" if finding.ended else "never overcome"
        rows.append(("", "", "", "", ending_text))
    yield from render_columns(rows, right=(0, 1))
