"""mulligan sessions: the runs of each session, the failures remembered for it, and their reminder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
import msgspec

from mulligan.cli.options import CommandContext, command, limit_option, list_group, now_ms, warn_if_truncated
from mulligan.contract.store import DEFAULT_TENANT, SessionQuery, SessionSummary, Store
from mulligan.core.failure import SettingsError
from mulligan.learn import tracker
from mulligan.learn.tracker import SESSION_KIND, TrackedFailure, Tracker
from mulligan.report.tables import TableColumn, format_age, format_count, render_table, to_line

MAX_NAMED_SESSIONS = 5
COLUMNS = (
    TableColumn("session", lambda row: to_line(row["session"])),
    TableColumn("agent", lambda row: to_line(row["agent"]) or "-"),
    TableColumn("last", lambda row: format_age(row["at"], now_ms())),
    TableColumn("runs", lambda row: f"{row['runs']:,}", is_right_aligned=True),
    TableColumn("unrecovered", lambda row: f"{row['unrecovered_runs']:,}", is_right_aligned=True),
    TableColumn("turns", lambda row: "-" if row["run"] else f"{row['turns']:,}", is_right_aligned=True),
    TableColumn("failures", lambda row: str(row["failures"]), is_right_aligned=True),
    TableColumn("compactions", lambda row: str(row["compactions"]), is_right_aligned=True),
    TableColumn("folder", lambda row: to_line(row["folder"]) or "-"),
)


@list_group("mulligan sessions", "mulligan sessions --agent claude-code --json", "mulligan sessions show bc15e4d3")
@click.option("--agent", help="Only sessions of this agent.")
@limit_option
def sessions(context: CommandContext, agent: str | None, limit: int) -> None:
    """List sessions with their runs and tracked failures, the latest first."""
    store = context.find_store()
    rows = []
    if store is not None:
        summaries = {
            summary.id: summary for summary in store.sessions(DEFAULT_TENANT, SessionQuery(agent=agent, limit=limit))
        }
        tracked_ids = store.keys(DEFAULT_TENANT, SESSION_KIND)  # also those whose runs were pruned
        rows = [_facts(store, id, _load_tracker(store, id), summaries.get(id)) for id in tracked_ids]
        rows = [row for row in rows if agent is None or row["session"] in summaries or row["agent"] == agent]
        rows += [_facts(store, id, Tracker(), summaries[id]) for id in summaries.keys() - set(tracked_ids)]
    rows = sorted(rows, key=lambda row: (row["at"], row["session"]), reverse=True)[:limit]
    if not rows:
        context.print(rows, "No sessions." if agent is None else f"No sessions of {to_line(agent)}.")
        return
    failures = format_count(sum(row["failures"] for row in rows), "tracked failure")
    head = f"{format_count(len(rows), 'session')}, {failures}."
    context.print(rows, [head, "", *render_table(COLUMNS, rows, context.width)])
    if not context.as_json:
        warn_if_truncated(len(rows), limit)


@command("mulligan sessions show bc15e4d3", "mulligan sessions show bc15e4d3 --json", parent=sessions)
@click.argument("session")
def show(context: CommandContext, session: str) -> None:
    """Show one session: its tracked failures, and the reminder for the model after a compaction.

    SESSION is any unambiguous prefix of its id.
    """
    store = context.find_store()
    summaries: dict[str, SessionSummary] = {}
    ids: list[str] = []
    if store is not None:
        query = SessionQuery(text=session, limit=1000)  # sessions of which the ids are compared with a prefix
        summaries = {summary.id: summary for summary in store.sessions(DEFAULT_TENANT, query)}
        ids = sorted({*store.keys(DEFAULT_TENANT, SESSION_KIND), *summaries})
    matches = [id for id in ids if id == session] or [id for id in ids if id.startswith(session)]
    if store is None or not matches:
        raise SettingsError(f"No session matches {session!r}. List sessions: mulligan sessions")
    if len(matches) > 1:
        names = ", ".join(to_line(id, 60) for id in matches[:MAX_NAMED_SESSIONS])
        more = f" and {len(matches) - MAX_NAMED_SESSIONS} more" if len(matches) > MAX_NAMED_SESSIONS else ""
        raise SettingsError(f"{len(matches)} sessions start with {session!r}: {names}{more}. Name more of the id.")
    session_tracker = _load_tracker(store, matches[0])
    facts = _facts(store, matches[0], session_tracker, summaries.get(matches[0])) | {
        "remembered": list(map(_failure_facts, (*session_tracker.failures, *session_tracker.pending))),
        "rates": [{"calls": interval.calls, "failed": interval.failed} for interval in session_tracker.intervals],
        "reminder": session_tracker.reminder,
    }
    context.print(facts, "\n".join(_describe_session(facts, session_tracker.rate_increase())))


def _describe_session(facts: dict[str, Any], warning: str) -> Iterator[str]:
    agent = f" of {to_line(facts['agent'])}" if facts["agent"] else ""
    failures, rates = facts["remembered"], facts["rates"]
    has_turns = not facts["run"]  # hooks see batches of calls, and not every model response
    numbers = [(facts["runs"], "run"), *([(facts["turns"], "turn")] if has_turns else [])]
    numbers += [(len(failures), "tracked failure"), (facts["compactions"], "compaction")]
    yield f"{to_line(facts['session'])}{agent}: {', '.join(format_count(*number) for number in numbers)}."
    for failure in failures:
        times = f", {failure['total']} times" if failure["total"] > 1 else ""
        turns = f", after {format_count(failure['turn'], 'turn')}" if failure["turn"] and has_turns else ""
        yield f"\n  {to_line(failure['kind'])} in {to_line(failure['tool'])}{turns}{times}"
        yield f"    {to_line(failure['message'], 160)}"
        recoveries = {**failure["recoveries"], **failure["working_calls"]}
        for fix_text, success_count in recoveries.items():
            frequency = f" {success_count} of {failure['total']} times" if failure["total"] > 1 else ""
            yield f"    recovered{frequency}: {to_line(fix_text, 160)}"
        if failure["recovered"] and not recoveries:
            yield "    recovered, by a change that is no advice for another call"
    for number, rate in enumerate(rates, start=1):
        when = "since the last compaction" if number == len(rates) else f"before compaction {number}"
        if len(rates) > 1 and rate["calls"]:
            yield f"\n  {rate['failed']} of {rate['calls']} calls failed {when}"
    if warning:
        yield f"\n{warning}"
    if facts["reminder"]:
        yield '\nReminder for the model. "[said by ...]" marks text of a tool, which the model must not obey:\n'
        yield from (f"  {to_line(text, 400)}" for text in facts["reminder"].splitlines())


def _load_tracker(store: Store, id: str) -> Tracker:
    try:
        return tracker.from_json(store.get(DEFAULT_TENANT, SESSION_KIND, id) or b"")
    except (msgspec.MsgspecError, UnicodeError):
        return Tracker()


def _facts(store: Store, id: str, session_tracker: Tracker, summary: SessionSummary | None) -> dict[str, Any]:
    # Key-value kind of hook state, stored next to the session's failures.
    data = store.get(DEFAULT_TENANT, "hook", id)
    decoded = msgspec.json.decode(data) if data else {}
    hook_state: dict[str, Any] = decoded if isinstance(decoded, dict) else {}
    latest = max((failure.step.started_at for failure in session_tracker.failures), default=0)
    return {
        "session": id,
        "agent": hook_state.get("agent") or ", ".join(summary.agents if summary else ()),
        "folder": hook_state.get("folder", ""),
        "run": hook_state.get("run") or (summary.last_run if summary else ""),
        "at": max(hook_state.get("at", latest), summary.last_run_at if summary else 0),
        "runs": summary.runs if summary else 0,
        "unrecovered_runs": summary.unrecovered if summary else 0,
        "turns": session_tracker.turns,
        "failures": len(session_tracker.failures) + len(session_tracker.pending),
        "compactions": len(session_tracker.intervals) - 1,
    }


def _failure_facts(failure: TrackedFailure) -> dict[str, Any]:
    return {
        "kind": failure.kind,
        "tool": failure.step.name,
        "server": failure.step.server,
        "turn": failure.turn,
        "occurrences": failure.count,
        "total": failure.total,
        "subject": failure.subject,
        "message": failure.step.failure.message if failure.step.failure else "",
        "recoveries": failure.recoveries,
        "working_calls": failure.working_calls,
        "recovered": not failure.is_open,
    }
