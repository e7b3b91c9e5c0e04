"""Text rendering of runs and their attempts.

Untrusted text is sanitized, because terminals execute escape sequences.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, get_args

from mulligan import calls, figures
from mulligan.failure import Remedy
from mulligan.figures import Cell
from mulligan.links import derive_status
from mulligan.records import VERIFY, Change, End, Ending, History, Link, Recovery, Run, Status, Step
from mulligan.report.link_evidence import describe_evidence
from mulligan.report.tables import Column, pairs, table, wrapped
from mulligan.report.tables import ago as ago
from mulligan.report.tables import columns as columns
from mulligan.report.tables import count as count
from mulligan.report.tables import duration as duration
from mulligan.report.tables import line as line

MARKS = {"success": "+", "failure": "x", "cancelled": "-", "refused": "-"}


def runs(histories: Sequence[History], now: int, width: int | None = None) -> Iterator[str]:
    """Render a summary and one line per run."""
    totals = figures.stats(histories).total
    told = ", ".join(f"{totals.runs[status]} {status}" for status in get_args(Status) if totals.runs.get(status))
    failed = _failed(totals)
    overcome = f" {totals.recovered} of {count(failed, 'failed call')} overcome." if failed else ""
    yield f"{count(len(histories), 'run')}: {told}.{overcome}"
    yield ""
    yield from table(_columns(now), map(facts, histories), width)


CSV = ("id", "status", "running", "agent", "version", "environment", "calls", "attempts", "started", "worst")


def facts(history: History) -> dict[str, Any]:
    """Return the fields of a run for lists, CSV and JSON."""
    own = [call for call in calls.group_attempts(history.steps) if call.first.type != "run"]
    return {
        "id": history.run.id,
        "status": derive_status(history.run, history.steps, history.links),
        "running": history.run.end is None,
        "end": history.run.end,
        "agent": history.run.agent,
        "version": history.run.version,
        "environment": history.run.environment,
        "calls": len(own),
        "attempts": sum(len(call.steps) for call in own),
        "started": history.run.started,
        "worst": _worst(history),
    }


def summary(history: History) -> dict[str, Any]:
    """Return the JSON summary of a run with the outcome of each call."""
    joined = [call for call in calls.group_attempts(history.steps) if call.first.type != "run"]
    linked = {link.failed for link in history.links}
    return {
        "id": history.run.id,
        "status": derive_status(history.run, history.steps, history.links),
        "agent": history.run.agent,
        "started": history.run.started,
        "ended": history.run.ended,
        "end": history.run.end,
        "calls": [
            {
                "number": number,
                "call": call.id,
                "name": call.name,
                "type": call.first.type,
                "attempts": len(call.steps),
                "ending": call.ending,
                "kind": str(call.failure.kind) if call.failure else None,
                "overcome": call.has_succeeded or call.id in linked if call.has_failed else None,
                "why": call.last.ending.why if call.last.ending else None,
            }
            for number, call in enumerate(joined, start=1)
        ],
    }


def _columns(now: int) -> tuple[Column, ...]:
    return (
        Column("run", lambda fact: fact["id"][:12], keep=9, is_whole=True),
        Column("status", lambda fact: fact["status"] + _unended(fact["end"]), keep=8),
        Column("calls", lambda fact: str(fact["calls"]), True, 4),
        Column("attempts", lambda fact: str(fact["attempts"]), True, 2),
        Column("when", lambda fact: ago(fact["started"], now), keep=6),
        Column("agent", lambda fact: line(fact["agent"] or "-", 24), keep=5),
        Column("worst failure", lambda fact: line(fact["worst"] or "-", 60), keep=7),
    )


def _failed(totals: Cell) -> int:
    return totals.recovered + totals.given_up


def status_word(history: History) -> str:
    status = derive_status(history.run, history.steps, history.links)
    return status + _unended(history.run.end)


def _unended(end: End | None) -> str:
    """Return the status suffix of a run that is running or abandoned."""
    return ", running" if end is None else ", abandoned" if end == "abandoned" else ""


def _worst(history: History) -> str | None:
    """Describe the failure to look at first: the first unrecovered one, else the first one."""
    linked = {link.failed for link in history.links}
    failed = [call for call in calls.group_attempts(history.steps) if call.has_failed]
    open_first = sorted(failed, key=lambda call: call.has_succeeded or call.id in linked)
    if not open_first or open_first[0].failure is None:
        return None
    kind, name = open_first[0].failure.kind, open_first[0].name
    return f"{kind} in {name}" if name else str(kind)  # the failure of a run without an agent has no name


def run(history: History, now: int, width: int | None = None) -> Iterator[str]:
    """Render one run: result, details and the timeline of all attempts."""
    about = history.run
    joined = calls.group_attempts(history.steps)
    own = [call for call in joined if call.first.type != "run"]
    failed = [call for call in own if call.has_failed]
    linked = {link.failed: link for link in history.links}
    overcome = sum(call.has_succeeded or call.id in linked for call in failed)
    waited = sum(call.waited for call in own)
    yield from wrapped(f"{about.id} {status_word(history)}: {_verdict(own, failed, overcome, waited)}", width, "")
    yield ""
    yield from pairs(_about(about, now), width)
    yield ""
    begin = about.started
    end = max([about.ended or begin, *(step.started + int(step.seconds * 1000) for step in history.steps)])
    # Numbered consecutively: call ids are the step numbers of first attempts and have gaps.
    numbers = {call.id: number for number, call in enumerate(own, start=1)}
    frame = Frame(begin, end, BAR if width is None else min(BAR, max(6, width * 3 // 10)))
    for call in joined:
        for text in _call(call, numbers, linked.get(call.id), frame):
            yield from wrapped(text, width, "", " " * (frame.indent + 2))


def _verdict(own: list[calls.Call], failed: list[calls.Call], overcome: int, waited: float) -> str:
    made = sum(not step.is_unmade for call in own for step in call.steps)
    told = f"{count(len(own), 'call')} in {count(made, 'attempt')}"
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
    if about.traceparent:
        yield "trace", line(about.traceparent)
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(about.started / 1000))
    lasted = f", lasted {duration((about.ended - about.started) / 1000)}" if about.ended else ""
    yield "started", f"{when} ({ago(about.started, now)}){lasted}"


BAR = 30


class Frame(NamedTuple):
    """Time range of a run and the width of its timeline bar."""

    begin: int
    end: int
    bar: int

    @property
    def indent(self) -> int:
        """Column where the text of an attempt starts, after the bar."""
        return self.bar + 9

    def under(self, text: str) -> str:
        return " " * self.indent + text


def _call(call: calls.Call, numbers: dict[int, int], link: Link | None, frame: Frame) -> Iterator[str]:
    is_overcome = link is not None and link.failed != link.overcame
    by = numbers.get(link.overcame, link.overcame) if link is not None else 0
    ending = _overcome(link, by) if link is not None and is_overcome else call.ending
    if call.last.ending is not None and not is_overcome:
        # The stop reason is the most important fact, so it is part of the first line.
        ending = f"given up because {line(call.last.ending.why, 160)}"
        ending += ", with suggestions" if call.last.ending.offered else ""
    number = numbers.get(call.id, "")
    if call.first.type == "run":
        ending = "the run's own failure"
    told = f"{line(call.name or '-', 40)} ({call.first.type}), {ending}"
    if len(call.steps) == 1 and call.first.outcome == "success":
        yield f"{number:>5}  {_bar(call.first, frame)}  {told}, {duration(call.first.seconds)}"
        return
    yield f"{number:>5}  {'':{frame.bar}}  {told}"
    for step in call.steps:
        if step.after is not None:
            yield frame.under(f"> {_recovery(step.after)}")
        yield f"{'':5}  {_bar(step, frame)}  {MARKS[step.outcome]} {_attempt(step, step is call.last)}"
        if step.failure is not None and step.failure.message:
            yield frame.under(f"  {line(step.failure.message, 160)}")
    if call.last.ending is not None:
        yield from _ending(call.last.ending, frame, is_overcome)
    if link is not None and is_overcome and link.changes:
        yield frame.under(f"> what changed: {_changes(link.changes)}")
    elif link is not None and is_overcome and link.between:
        yield frame.under(f"> what came between: {line(', '.join(link.between))}")
    if link is not None and is_overcome:
        yield frame.under(f"> linked because: {describe_evidence(link)}")


def _overcome(link: Link, by: int) -> str:
    """Describe which later call recovered an unrecovered call, and whether the model made it."""
    return f"overcome by the model in call {by}" if link.how == "agent" else f"overcome by call {by}"


def _ending(ending: Ending, frame: Frame, is_overcome: bool) -> Iterator[str]:
    """Yield the stop reason if the first line lacks it, the spiral, and the remaining suggestions."""
    if is_overcome:
        yield frame.under(f"> not made again: {line(ending.why, 160)}")
    if ending.spiral:
        yield frame.under(f"> {line(ending.spiral, 160)}")
    for each in ending.offered:
        if each.changes:
            yield frame.under(
                f"> may work: {_changes(each.changes)} (from the {each.source}, {each.confidence:.0%} sure)"
            )


def _bar(step: Step, frame: Frame) -> str:
    """Render the time range of an attempt within the run as a text bar."""
    span = max(1, frame.end - frame.begin)
    left = min(frame.bar - 1, (step.started - frame.begin) * frame.bar // span)
    length = max(1, min(frame.bar - left, round(step.seconds * 1000 * frame.bar / span)))
    mark = "#" if step.has_failed else "=" if step.outcome == "success" else "-"
    return "." * left + mark * length + "." * (frame.bar - left - length)


def _attempt(step: Step, is_last: bool) -> str:
    told = duration(step.seconds)
    if step.is_unmade:
        return "not made"
    if step.failure is None:
        return told if step.outcome == "success" else f"{told}  {step.outcome}"
    ran = {"no": "did not run", "yes": "ran", "unknown": "may have run"}[step.failure.ran.value]
    # Omit retry and repair after the last attempt: they would read as if they had been done.
    remedy = "" if is_last and step.failure.remedy in (Remedy.WAIT, Remedy.REPAIR) else step.failure.remedy.value
    return f"{told}  {step.failure.kind}, {ran}" + (f", remedy: {remedy}" if remedy else "")


def _recovery(recovery: Recovery) -> str:
    if recovery.source == VERIFY:
        return "asked a check whether it had worked"
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
    if changed.how == "rename" and changed.path != calls.TOOL:
        return f"the name {line(changed.before, 40)} -> {line(changed.after, 40)}"
    if changed.before is None and changed.after is not None:  # the argument was missing
        return f"{line(changed.path, 40)}={after}"
    return f"{line(changed.path, 40)} {before} -> {after}"
