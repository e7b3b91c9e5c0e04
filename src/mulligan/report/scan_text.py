"""Text rendering of scan findings: summary, kinds, recoveries and worst spirals."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from mulligan.report.scan_report import Findings
from mulligan.report.tables import format_count, render_columns, to_line

MAX_KINDS = 10
MAX_FIXES = 8
MAX_SPIRALS = 5


def render_findings(findings: Findings) -> Iterator[str]:
    """Render the findings. The first line is the summary."""
    yield summarize_findings(findings)
    if len(findings.agents) > 1:
        rows: list[Sequence[str]] = [("sessions", "calls", "failed", "", "agent")]
        for agent in findings.agents[:MAX_KINDS]:
            numbers = (f"{number:,}" for number in (agent.sessions, agent.calls, agent.failures))
            rows.append((*numbers, format_percent(agent.failures, agent.calls), to_line(agent.agent, 40)))
        yield from ("", *render_columns(rows, right=(0, 1, 2, 3)))
    if findings.failures:
        yield from ("", *_kind_lines(findings))
        costs = list(_cost_lines(findings))
        yield from ["", *costs] if costs else []
    if findings.fixes:
        yield from ("", "Recoveries:", "")
        rows = [("count", "", "", "tool", "kind", "recovery")]
        for fix in findings.fixes[:MAX_FIXES]:
            kind = to_line(fix.kind.partition("/")[2] or fix.kind, 24)
            counts = f"{fix.successes:,}", "of", f"{fix.failures:,}"
            rows.append((*counts, to_line(fix.tool, 24), kind, to_line(fix.action, 60)))
        yield from render_columns(rows, right=(0, 2))
    if findings.spirals:
        yield from ("", "Worst spirals (one strategy that failed repeatedly in one session):", "")
        rows = []
        for spiral in findings.spirals[:MAX_SPIRALS]:
            duration = f"in {format_rough_duration(spiral.duration_seconds)}" if spiral.duration_seconds else ""
            session = format_date(spiral.started_at), to_line(spiral.project or spiral.agent, 24)
            failure = f"{to_line(spiral.tool, 24)}, {to_line(spiral.kind, 40)}: {to_line(spiral.message, 60)}"
            rows.append((f"{spiral.failures} failures", duration, *session, failure))
            recovery = f"recovered by: {to_line(spiral.recovered_by, 60)}" if spiral.recovered_by else "unrecovered"
            rows.append(("", "", "", "", recovery))
        yield from render_columns(rows, right=(0, 1))


def summarize_findings(findings: Findings) -> str:
    if not findings.calls:
        return "No tool calls found."
    where = f"{format_count(findings.calls, 'call')} in {format_count(findings.sessions, 'session')}"
    suspected = f" Suspected failures, not counted: {findings.suspected:,}." if findings.suspected else ""
    if not findings.failures:
        return f"None of {where} failed.{suspected}"
    sentence = f"{format_percent(findings.failures, findings.calls)} of {where} failed: "
    sentence += f"{findings.recovered:,} of {format_count(findings.failures, 'failure')} recovered"
    if findings.repeats_after_compaction:
        sentence += f", {findings.repeats_after_compaction:,} repeated after a compaction"
    return f"{sentence}.{suspected}"


def format_percent(part: int, total: int) -> str:
    return f"{100 * part / total:.1f} %" if total else "-"


def format_rough_duration(seconds: float) -> str:
    """Format a duration with one rounded unit."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"


def format_date(timestamp: int) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(timestamp / 1000)) if timestamp else "-"


def _kind_lines(findings: Findings) -> Iterator[str]:
    has_repeats = bool(findings.repeats_after_compaction)  # a column of zeros is omitted
    rows = [("failures", "recovered", *(["repeated"] if has_repeats else []), "kind", "main tool")]
    for kind in findings.kinds[:MAX_KINDS]:
        repeats = [f"{kind.repeats_after_compaction:,}"] if has_repeats else []
        rows.append(
            (f"{kind.failures:,}", f"{kind.recovered:,}", *repeats, to_line(kind.kind, 40), to_line(kind.tool, 40))
        )
    yield from render_columns(rows, right=range(len(rows[0]) - 2))
    if (more := len(findings.kinds) - MAX_KINDS) > 0:
        yield f"  and {format_count(more, 'more kind')}: use --json for all"


def _cost_lines(findings: Findings) -> Iterator[str]:
    if findings.failure_seconds:
        duration = format_rough_duration(findings.failure_seconds)
        yield f"Time lost: {duration} in failed calls and until the next call."
    exclusions = []
    if findings.user_rejected:
        exclusions.append(f"{format_count(findings.user_rejected, 'call')} rejected by the user")
    if findings.cancelled:
        exclusions.append(f"{findings.cancelled:,} cancelled or skipped after a concurrent failure")
    if exclusions:
        yield f"Not counted as failures: {', '.join(exclusions)}."
    (calls, failed), (later, failed_later) = findings.before_compaction, findings.after_compaction
    # Minimum number of calls before and after a compaction for a comparison of the two
    if min(calls, later) >= 50 and (failed or failed_later):
        yield (
            f"Failure rate in {format_count(findings.compacted_sessions, 'session')} with a compaction: "
            f"{format_percent(failed, calls)} before it, {format_percent(failed_later, later)} after."
        )
