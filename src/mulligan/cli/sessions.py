"""mulligan sessions: the failures remembered for each session, and their reminder."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from mulligan.cli.groups import CommandGroup
from mulligan.cli.lists import item_options, limit_option, warn_if_truncated
from mulligan.cli.options import (
    as_json,
    load_settings,
    now_ms,
    open_existing_store,
    print_json,
    print_lines,
    store_option,
    terminal_width,
)
from mulligan.core.failure import SettingsError
from mulligan.learn import tracker
from mulligan.learn.session import SESSION_KIND
from mulligan.learn.tracker import TrackedFailure, Tracker
from mulligan.report.tables import TableColumn, format_age, format_count, render_table, to_line
from mulligan.store.base import DEFAULT_TENANT, Store

HOOK_KIND = "hook"
"""Key-value kind of hook state, stored next to the session's failures."""


COLUMNS = (
    TableColumn("session", lambda row: to_line(row["session"])),
    TableColumn("agent", lambda row: to_line(row["agent"]) or "-"),
    TableColumn("last", lambda row: format_age(row["at"], now_ms())),
    TableColumn("turns", lambda row: f"{row['turns']:,}", is_right_aligned=True),
    TableColumn("failures", lambda row: str(row["failures"]), is_right_aligned=True),
    TableColumn("compactions", lambda row: str(row["compactions"]), is_right_aligned=True),
    TableColumn("folder", lambda row: to_line(row["folder"]) or "-"),
)


@click.group(
    cls=CommandGroup,
    invoke_without_command=True,
    subcommand_metavar="[COMMAND]",
    epilog="Examples:\n\n  mulligan sessions\n\n  mulligan sessions --agent claude-code --json\n\n  "
    "mulligan sessions show bc15e4d3",
)
@click.option("--agent", help="Only sessions of this agent.")
@limit_option
@store_option
@as_json
@click.pass_context
def sessions(context: click.Context, /, agent: str | None, limit: int, store: str | None, as_json: bool) -> None:
    """List sessions with tracked failures, the latest first."""
    if context.invoked_subcommand is not None:
        context.obj = store
        return
    existing_store = open_existing_store(load_settings(store))
    ids = existing_store.keys(DEFAULT_TENANT, SESSION_KIND) if existing_store is not None else []
    rows = [_facts(existing_store, id) for id in ids if existing_store is not None]
    rows = [row for row in rows if agent is None or row["agent"] == agent]
    rows = sorted(rows, key=lambda row: (row["at"], row["session"]), reverse=True)[:limit]
    if as_json:
        print_json(rows)
    elif rows:
        failures = sum(row["failures"] for row in rows)
        click.echo(f"{format_count(len(rows), 'session')}, {format_count(failures, 'tracked failure')}.\n")
        print_lines(render_table(COLUMNS, rows, terminal_width()))
        warn_if_truncated(len(rows), limit)
    else:
        click.echo("No sessions." if agent is None else f"No sessions of {to_line(agent)}.")


@sessions.command(epilog="Examples:\n\n  mulligan sessions show bc15e4d3\n\n  mulligan sessions show bc15e4d3 --json")
@click.argument("session")
@item_options
def show(context: click.Context, session: str, store: str | None, as_json: bool) -> None:
    """Show one session: its tracked failures, and the reminder for the model after a compaction.

    SESSION is any unambiguous prefix of its id.
    """
    existing_store = open_existing_store(load_settings(store or context.obj))
    session_ids = existing_store.keys(DEFAULT_TENANT, SESSION_KIND) if existing_store is not None else []
    matching_ids = [id for id in session_ids if id == session] or [id for id in session_ids if id.startswith(session)]
    if existing_store is None or len(matching_ids) != 1:
        raise SettingsError(
            f"No session matches {session!r}, or several start with it. List sessions: mulligan sessions"
        )
    facts = _facts(existing_store, matching_ids[0])
    session_tracker = _tracker(existing_store, matching_ids[0])
    failures = [_failure_facts(failure) for failure in (*session_tracker.failures, *session_tracker.pending)]
    rates = [{"calls": interval.calls, "failed": interval.failed} for interval in session_tracker.intervals]
    if as_json:
        print_json(facts | {"remembered": failures, "rates": rates, "reminder": session_tracker.reminder})
        return
    agent = f" of {to_line(facts['agent'])}" if facts["agent"] else ""
    numbers = ((facts["turns"], "turn"), (len(failures), "tracked failure"), (facts["compactions"], "compaction"))
    click.echo(f"{to_line(facts['session'])}{agent}: {', '.join(format_count(*number) for number in numbers)}.")
    for failure in failures:
        times = f", {failure['total']} times" if failure["total"] > 1 else ""
        click.echo(f"\n  {to_line(failure['kind'])} in {to_line(failure['tool'])}, turn {failure['turn']}{times}")
        click.echo(f"    {to_line(failure['message'], 160)}")
        for fix_text, success_count in failure["recoveries"].items():
            click.echo(f"    recovered {success_count} of {failure['total']} times: {to_line(fix_text, 160)}")
    for number, rate in enumerate(rates, start=1):
        when = "since the last" if number == len(rates) else f"before the {number}."
        if len(rates) > 1 and rate["calls"]:
            click.echo(f"\n  {rate['failed']} of {rate['calls']} calls failed {when} compaction")
    if warning := session_tracker.rate_increase():
        click.echo(f"\n{warning}")
    if session_tracker.reminder:
        click.echo("\nReminder for the model:\n")
        for text in session_tracker.reminder.splitlines():
            click.echo(f"  {to_line(text, 400)}")


def _tracker(store: Store, id: str) -> Tracker:
    try:
        return tracker.from_json(store.get(DEFAULT_TENANT, SESSION_KIND, id) or b"")
    except (msgspec.MsgspecError, UnicodeError):
        return Tracker()


def _facts(store: Store, id: str) -> dict[str, Any]:
    session_tracker = _tracker(store, id)
    hook_state: dict[str, Any] = {}
    if data := store.get(DEFAULT_TENANT, HOOK_KIND, id):
        decoded = msgspec.json.decode(data)
        hook_state = decoded if isinstance(decoded, dict) else {}
    latest = max((failure.step.started_at for failure in session_tracker.failures), default=0)
    return {
        "session": id,
        "agent": hook_state.get("agent", ""),
        "folder": hook_state.get("folder", ""),
        "run": hook_state.get("run", ""),
        "at": hook_state.get("at", latest),
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
        "recovered": not failure.is_open,
    }
