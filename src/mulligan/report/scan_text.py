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
        yield "Recoveries:"
        yield ""
        yield from _fix_lines(findings)
    if findings.spirals:
        yield ""
        yield "Worst spirals (one strategy that failed repeatedly in one session):"
        yield ""
        yield from _spiral_lines(findings)


def summarize_findings(findings: Findings) -> str:
    """Return the summary of the findings in one sentence."""
    if not findings.calls:
        return "No tool calls found."
    where = f"{format_count(findings.calls, 'call')} in {format_count(findings.sessions, 'session')}"
    if not findings.failures:
        return f"None of {where} failed."
    sentence = f"{format_percent(findings.failures, findings.calls)} of {where} failed: "
    sentence += f"{findings.recovered:,} of {format_count(findings.failures, 'failure')} recovered"
    if findings.repeats_after_compaction:
        sentence += f", {findings.repeats_after_compaction:,} repeated after a compaction"
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
    rows = [["failures", "recovered", "repeated", "kind", "main tool"]]
    rows += [
        [
            f"{finding.failures:,}",
            f"{finding.recovered:,}",
            f"{finding.repeats_after_compaction:,}",
            to_line(finding.kind, 40),
            to_line(finding.tool, 40),
        ]
        for finding in findings.kinds[:MAX_KINDS]
    ]
    if not findings.repeats_after_compaction:  # omit a column of zeros
        rows = [[*row[:2], *row[3:]] for row in rows]
    yield from render_columns(rows, right=(0, 1, 2) if findings.repeats_after_compaction else (0, 1))
    more = len(findings.kinds) - MAX_KINDS
    if more > 0:
        yield f"  and {format_count(more, 'more kind')}: use --json for all"


def _cost_lines(findings: Findings) -> Iterator[str]:
    if findings.failure_seconds:
        duration = format_rough_duration(findings.failure_seconds)
        yield f"Time lost: {duration} in failed calls and until the next call."
    exclusions = (
        [f"{format_count(findings.user_rejected, 'call')} rejected by the user"] if findings.user_rejected else []
    )
    exclusions += (
        [f"{findings.cancelled:,} cancelled or skipped after a concurrent failure"] if findings.cancelled else []
    )
    if exclusions:
        yield f"Not counted as failures: {', '.join(exclusions)}."
    (calls, failed), (later, failed_later) = findings.before_compaction, findings.after_compaction
    if min(calls, later) >= 50 and (failed or failed_later):
        yield (
            f"Failure rate in {format_count(findings.compacted_sessions, 'session')} with a compaction: "
            f"{format_percent(failed, calls)} before it, {format_percent(failed_later, later)} after."
        )


def _fix_lines(findings: Findings) -> Iterator[str]:
    rows = [("count", "", "", "tool", "kind", "recovery")]
    for finding in findings.fixes[:MAX_FIXES]:
        kind = finding.kind.partition("/")[2] or finding.kind
        rows.append(
            (
                f"{finding.successes:,}",
                "of",
                f"{finding.failures:,}",
                to_line(finding.tool, 24),
                to_line(kind, 24),
                to_line(finding.action, 60),
            )
        )
    yield from render_columns(rows, right=(0, 2))


def _spiral_lines(findings: Findings) -> Iterator[str]:
    rows = []
    for finding in findings.spirals[:MAX_SPIRALS]:
        where = to_line(finding.project or finding.agent, 24)
        rows.append(
            (
                f"{finding.failures} failures",
                f"in {format_rough_duration(finding.duration_seconds)}" if finding.duration_seconds else "",
                format_date(finding.started_at),
                where,
                f"{to_line(finding.tool, 24)}, {to_line(finding.kind, 40)}: {to_line(finding.message, 60)}",
            )
        )
        ending_text = f"recovered by: {to_line(finding.recovered_by, 60)}" if finding.recovered_by else "unrecovered"
        rows.append(("", "", "", "", ending_text))
    yield from render_columns(rows, right=(0, 1))
