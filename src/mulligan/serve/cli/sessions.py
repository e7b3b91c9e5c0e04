"""mulligan sessions: the failures remembered for each session, and their reminder."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from mulligan.failure import SettingsError
from mulligan.remember import tracker
from mulligan.remember.session import KIND
from mulligan.remember.store import LOCAL, Store
from mulligan.remember.tracker import Remembered, Tracker
from mulligan.report.tables import Column, ago, count, line, table
from mulligan.serve.cli.groups import Group
from mulligan.serve.cli.options import (
    as_json,
    limit_option,
    now,
    opened,
    print_json,
    print_lines,
    settings_with,
    store_option,
    told_more,
    width,
)

HOOK = "hook"
"""Key-value kind of hook state, stored next to the session's failures."""


COLUMNS = (
    Column("session", lambda each: line(each["session"])),
    Column("agent", lambda each: line(each["agent"]) or "-"),
    Column("last", lambda each: ago(each["at"], now())),
    Column("turns", lambda each: f"{each['turns']:,}", right=True),
    Column("failures", lambda each: str(each["failures"]), right=True),
    Column("compactions", lambda each: str(each["compactions"]), right=True),
    Column("folder", lambda each: line(each["folder"]) or "-"),
)


@click.group(
    cls=Group,
    invoke_without_command=True,
    subcommand_metavar="[COMMAND]",
    epilog="Examples:\n\n  mulligan sessions\n\n  mulligan sessions --agent claude-code --json\n\n  "
    "mulligan sessions show bc15e4d3",
)
@click.option("--agent", help="Only those of this agent.")
@limit_option
@store_option
@as_json
@click.pass_context
def sessions(context: click.Context, /, agent: str | None, limit: int, store: str | None, as_json: bool) -> None:
    """The conversations whose failures are remembered, the latest first."""
    if context.invoked_subcommand is not None:
        context.obj = store
        return
    kept = opened(settings_with(store))
    found = [_facts(kept, id) for id in kept.keys(LOCAL, KIND)] if kept is not None else []
    found = [each for each in found if agent is None or each["agent"] == agent]
    found.sort(key=lambda each: (each["at"], each["session"]), reverse=True)
    if as_json:
        print_json(found[:limit])
        return
    if not found:
        click.echo("No session is remembered." if agent is None else f"No session of {line(agent)} is remembered.")
        return
    failures = sum(each["failures"] for each in found[:limit])
    click.echo(f"{count(len(found[:limit]), 'session')}, {count(failures, 'failure')} remembered.\n")
    print_lines(table(COLUMNS, found[:limit], width()))
    told_more(len(found[:limit]), limit)


@sessions.command(epilog="Examples:\n\n  mulligan sessions show bc15e4d3\n\n  mulligan sessions show bc15e4d3 --json")
@click.argument("session")
@store_option
@as_json
@click.pass_context
def show(context: click.Context, session: str, store: str | None, as_json: bool) -> None:
    """What is remembered of one session: each failure, and what the model is told after a compaction.

    SESSION is any unambiguous beginning of its id.
    """
    kept = opened(settings_with(store or context.obj))
    known = kept.keys(LOCAL, KIND) if kept is not None else []
    found = [id for id in known if id == session] or [id for id in known if id.startswith(session)]
    if kept is None or len(found) != 1:
        raise SettingsError(f"there is no session {session!r}, or more than one begins so. See them: mulligan sessions")
    facts = _facts(kept, found[0])
    remembered = _tracker(kept, found[0])
    told = [_failure(each) for each in (*remembered.failures, *remembered.pending)]
    rates = [{"calls": each.calls, "failed": each.failed} for each in remembered.stretches]
    if as_json:
        print_json(facts | {"remembered": told, "rates": rates, "reminder": remembered.reminder})
        return
    agent = f" of {line(facts['agent'])}" if facts["agent"] else ""
    click.echo(
        f"{line(facts['session'])}{agent}: {count(facts['turns'], 'turn')}, {count(len(told), 'failure')} remembered, "
        f"{count(facts['compactions'], 'compaction')}."
    )
    for each in told:
        times = f", {each['total']} times" if each["total"] > 1 else ""
        click.echo(f"\n  {line(each['kind'])} in {line(each['tool'])}, turn {each['turn']}{times}")
        click.echo(f"    {line(each['message'], 160)}")
        for what, often in each["worked"].items():
            click.echo(f"    worked {often} of {each['total']} times: {line(what, 160)}")
    for number, each in enumerate(rates):
        when = "since the last" if number == len(rates) - 1 else f"before the {number + 1}."
        if len(rates) > 1 and each["calls"]:
            click.echo(f"\n  {each['failed']} of {each['calls']} calls failed {when} compaction")
    if rise := remembered.rise():
        click.echo(f"\n{rise}")
    if remembered.reminder:
        click.echo("\nThe model was told:\n")
        for text in remembered.reminder.splitlines():
            click.echo(f"  {line(text, 400)}")


def _tracker(kept: Store, id: str) -> Tracker:
    try:
        return tracker.restored(kept.get(LOCAL, KIND, id) or b"")
    except (msgspec.MsgspecError, UnicodeError):
        return Tracker()


def _facts(kept: Store, id: str) -> dict[str, Any]:
    known = _tracker(kept, id)
    beside: dict[str, Any] = {}
    if data := kept.get(LOCAL, HOOK, id):
        read = msgspec.json.decode(data)
        beside = read if isinstance(read, dict) else {}
    latest = max((each.step.started for each in known.failures), default=0)
    return {
        "session": id,
        "agent": beside.get("agent", ""),
        "folder": beside.get("folder", ""),
        "run": beside.get("run", ""),
        "at": beside.get("at", latest),
        "turns": known.turns,
        "failures": len(known.failures) + len(known.pending),
        "compactions": len(known.stretches) - 1,
    }


def _failure(each: Remembered) -> dict[str, Any]:
    return {
        "kind": each.kind,
        "tool": each.step.name,
        "server": each.step.server,
        "turn": each.turn,
        "count": each.count,
        "total": each.total,
        "about": each.about,
        "message": each.step.failure.message if each.step.failure else "",
        "worked": each.worked,
        "overcome": not each.is_open,
    }
