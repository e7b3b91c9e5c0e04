"""Runs and their attempts, as text for people.

Everything foreign passes `clean` on its way here: a terminal obeys what it is shown.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from mulligan import calls, figures
from mulligan.failure import Remedy
from mulligan.figures import Cell
from mulligan.records import Change, History, Link, Recovery, Run, Step
from mulligan.report.tables import ago as ago
from mulligan.report.tables import columns as columns
from mulligan.report.tables import count as count
from mulligan.report.tables import duration as duration
from mulligan.report.tables import line as line

MARKS = {"success": "+", "failure": "x", "cancelled": "-", "refused": "-"}


def runs(histories: Sequence[History], now: int) -> Iterator[str]:
    """The newest runs, a line each."""
    totals = figures.stats(histories).total
    told = ", ".join(f"{number} {status}" for status, number in totals.runs.items() if number)
    yield f"{count(len(histories), 'run')}: {told}. {totals.recovered} of {_failed(totals)} failed calls overcome."
    yield ""
    rows = [("run", "status", "calls", "attempts", "when", "agent", "worst failure")]
    for history in histories:
        joined = [call for call in calls.joined(history.steps) if call.first.type != "run"]
        rows.append(
            (
                history.run.id[:12],
                status_word(history),
                str(len(joined)),
                str(sum(len(call.steps) for call in joined)),
                ago(history.run.started, now),
                line(history.run.agent or "-", 24),
                line(_worst(history), 60),
            )
        )
    yield from columns(rows, right=(2, 3))


def _failed(totals: Cell) -> int:
    return totals.recovered + totals.given_up


def status_word(history: History) -> str:
    status = calls.status(history.run, history.steps, history.links)
    return status if history.run.end is not None else f"{status}, running"


def _worst(history: History) -> str:
    """The failure a reader should look at first: one that was given up, else the first."""
    linked = {link.failed for link in history.links}
    failed = [call for call in calls.joined(history.steps) if call.has_failed]
    open_first = sorted(failed, key=lambda call: call.has_succeeded or call.id in linked)
    if not open_first or open_first[0].failure is None:
        return "-"
    return f"{open_first[0].failure.kind} in {open_first[0].name}"


def run(history: History, now: int) -> Iterator[str]:
    """One run: what came of it, and the timeline of every attempt."""
    about = history.run
    joined = calls.joined(history.steps)
    own = [call for call in joined if call.first.type != "run"]
    failed = [call for call in own if call.has_failed]
    linked = {link.failed: link for link in history.links}
    overcome = sum(call.has_succeeded or call.id in linked for call in failed)
    waited = sum(call.waited for call in own)
    yield f"{about.id} {status_word(history)}: {_verdict(own, failed, overcome, waited)}"
    yield ""
    yield from columns(_about(about, now))
    yield ""
    begin = about.started
    end = max([about.ended or begin, *(step.started + int(step.seconds * 1000) for step in history.steps)])
    for call in joined:
        yield from _call(call, linked.get(call.id), begin, end)


def _verdict(own: list[calls.Call], failed: list[calls.Call], overcome: int, waited: float) -> str:
    told = f"{count(len(own), 'call')} in {count(sum(len(call.steps) for call in own), 'attempt')}"
    if failed:
        told += f", {overcome} of {len(failed)} failed calls overcome"
    return f"{told}, {duration(waited)} spent waiting." if waited else f"{told}."


def _about(about: Run, now: int) -> Iterator[tuple[str, str]]:
    yield "agent", line(about.agent or "-")
    if about.version:
        yield "version", line(about.version)
    if about.environment:
        yield "environment", line(about.environment)
    if about.context:
        yield "context", line(about.context)
    if about.parent:
        yield "parent", line(about.parent)
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(about.started / 1000))
    lasted = f", lasted {duration((about.ended - about.started) / 1000)}" if about.ended else ""
    yield "started", f"{when} ({ago(about.started, now)}){lasted}"


BAR = 30
INDENT = " " * (BAR + 9)
"""Under the bar: what is said of an attempt begins where its mark stands."""


def _call(call: calls.Call, link: Link | None, begin: int, end: int) -> Iterator[str]:
    is_overcome = link is not None and link.failed != link.overcame
    ending = f"overcome by call {link.overcame}" if link is not None and is_overcome else call.ending
    if call.first.type == "run":
        ending = "the run's own failure"
    told = f"{line(call.name or '-', 40)} ({call.first.type}), {ending}"
    if len(call.steps) == 1 and call.first.outcome == "success":
        yield f"{call.id:>5}  {_bar(call.first, begin, end)}  {told}, {duration(call.first.seconds)}"
        return
    yield f"{call.id:>5}  {'':{BAR}}  {told}"
    for step in call.steps:
        if step.after is not None:
            yield f"{INDENT}> {_recovery(step.after)}"
        yield f"{'':5}  {_bar(step, begin, end)}  {MARKS[step.outcome]} {_attempt(step, step is call.last)}"
        if step.failure is not None and step.failure.message:
            yield f"{INDENT}  {line(step.failure.message, 160)}"
    if link is not None and is_overcome and link.changes:
        yield f"{INDENT}> what changed: {_changes(link.changes)}"
    elif link is not None and is_overcome and link.between:
        yield f"{INDENT}> what came between: {line(', '.join(link.between))}"


def _bar(step: Step, begin: int, end: int) -> str:
    """When the attempt was under way, on a line as long as the run."""
    span = max(1, end - begin)
    left = min(BAR - 1, (step.started - begin) * BAR // span)
    length = max(1, min(BAR - left, round(step.seconds * 1000 * BAR / span)))
    return "." * left + ("#" if step.has_failed else "=") * length + "." * (BAR - left - length)


def _attempt(step: Step, is_last: bool) -> str:
    told = duration(step.seconds)
    if step.failure is None:
        return told if step.outcome == "success" else f"{told}  {step.outcome}"
    ran = {"no": "did not run", "yes": "ran", "unknown": "may have run"}[step.failure.ran.value]
    # What could have helped, where nothing more was done, would read as if it had been.
    remedy = "" if is_last and step.failure.remedy in (Remedy.WAIT, Remedy.REPAIR) else step.failure.remedy.value
    return f"{told}  {step.failure.kind}, {ran}" + (f", remedy: {remedy}" if remedy else "")


def _recovery(recovery: Recovery) -> str:
    told = [f"waited {duration(recovery.seconds)}"] if recovery.seconds else []
    if recovery.changes:
        told.append(
            f"changed {_changes(recovery.changes)} (from the {recovery.source}, {recovery.confidence:.0%} sure)"
        )
    return ", ".join(told) or recovery.remedy.value


def _changes(changes: Sequence[Change]) -> str:
    return ", ".join(_change(each) for each in changes)


def _change(changed: Change) -> str:
    before, after = line(repr(changed.before), 40), line(repr(changed.after), 40)
    if changed.how == "drop":
        return f"{line(changed.path, 40)} dropped"
    return f"{line(changed.path, 40)} {before} -> {after}"
