"""Text rendering of scan findings: summary, kinds, recoveries and worst spirals."""

from __future__ import annotations

import time
from collections.abc import Iterator

from mulligan.report.findings import Findings
from mulligan.report.terminal import columns, count, line

KINDS = 10
FIXES = 8
SPIRALS = 5


def lines(found: Findings) -> Iterator[str]:
    """Render the findings. The first line is the summary."""
    yield answer(found)
    if not found.calls:
        return
    if len(found.agents) > 1:
        yield ""
        rows = [("sessions", "calls", "failed", "", "agent")]
        for each in found.agents[:KINDS]:
            share = percent(each.failures, each.calls)
            rows.append((f"{each.sessions:,}", f"{each.calls:,}", f"{each.failures:,}", share, line(each.agent, 40)))
        yield from columns(rows, right=(0, 1, 2, 3))
    if found.failures:
        yield ""
        yield from _kinds(found)
        costs = list(_costs(found))
        yield from ["", *costs] if costs else []
    if found.fixes:
        yield ""
        yield "What overcame them:"
        yield ""
        yield from _fixes(found)
    if found.spirals:
        yield ""
        yield "The worst spirals, the same failure again and again in one session:"
        yield ""
        yield from _spirals(found)


def answer(found: Findings) -> str:
    """Return the summary of the findings in one sentence."""
    if not found.calls:
        return "No calls of any tool were found."
    where = f"{count(found.calls, 'call')} in {count(found.sessions, 'session')}"
    if not found.failures:
        return f"None of {where} failed."
    told = f"{percent(found.failures, found.calls)} of {where} failed: "
    told += (
        f"{found.overcome:,} of {count(found.failures, 'failure')} {'was' if found.overcome == 1 else 'were'} overcome"
    )
    if found.again:
        told += f", {found.again:,} came again after a compaction"
    return f"{told}."


def percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def lasted(seconds: float) -> str:
    """Format a duration with one rounded unit."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def day(moment: int) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(moment / 1000)) if moment else "-"


def _kinds(found: Findings) -> Iterator[str]:
    rows = [["failures", "overcome", "again", "kind", "most often in"]]
    rows += [
        [f"{each.failures:,}", f"{each.overcome:,}", f"{each.again:,}", line(each.kind, 40), line(each.tool, 40)]
        for each in found.kinds[:KINDS]
    ]
    if not found.again:  # omit a column of zeros
        rows = [[*row[:2], *row[3:]] for row in rows]
    yield from columns(rows, right=(0, 1, 2) if found.again else (0, 1))
    more = len(found.kinds) - KINDS
    if more > 0:
        yield f"  and {count(more, 'more kind')}: --json has them all"


def _costs(found: Findings) -> Iterator[str]:
    if found.seconds:
        yield f"{lasted(found.seconds)} went into failing: the failed calls, and thinking what to do next."
    aside = [f"{found.refused:,} that you refused"] if found.refused else []
    aside += [f"{found.cancelled:,} stopped, mostly with a sibling that failed"] if found.cancelled else []
    if aside:
        yield f"Not counted as failures: {' and '.join(aside)}."
    (calls, failed), (later, failed_later) = found.before, found.after
    if min(calls, later) >= 50 and (failed or failed_later):
        yield (
            f"{count(found.compacted, 'session')} had a compaction: {percent(failed, calls)} of calls failed before "
            f"it, {percent(failed_later, later)} after."
        )


def _fixes(found: Findings) -> Iterator[str]:
    rows = [("worked", "", "of", "tool", "kind", "what helped")]
    for each in found.fixes[:FIXES]:
        kind = each.kind.partition("/")[2] or each.kind
        rows.append(
            (
                f"{each.worked:,}",
                "of",
                f"{each.failures:,}",
                line(each.tool, 24),
                line(kind, 24),
                line(each.fix, 60),
            )
        )
    rows[0] = ("times", "", "", *rows[0][3:])
    yield from columns(rows, right=(0, 2))


def _spirals(found: Findings) -> Iterator[str]:
    rows = []
    for each in found.spirals[:SPIRALS]:
        where = line(each.project or each.agent, 24)
        rows.append(
            (
                f"{each.failures} times",
                f"in {lasted(each.seconds)}" if each.seconds else "",
                day(each.started),
                where,
                f"{line(each.tool, 24)}, {line(each.kind, 40)}: {line(each.message, 60)}",
            )
        )
        ended = f"overcome by: {line(each.ended, 60)}" if each.ended else "never overcome"
        rows.append(("", "", "", "", ended))
    yield from columns(rows, right=(0, 1))
