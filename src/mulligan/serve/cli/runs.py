"""mulligan runs and mulligan show."""

from __future__ import annotations

from typing import Any, get_args

import click

from mulligan.failure import SettingsError
from mulligan.records import History, Status, builtins
from mulligan.remember.store import LOCAL, RunQuery, Store
from mulligan.remember.urls import shown
from mulligan.report import terminal
from mulligan.report.tables import as_csv
from mulligan.serve.cli.options import (
    as_json,
    csv_option,
    kind_option,
    limit_option,
    moment,
    now,
    opened,
    print_json,
    print_lines,
    settings_with,
    store_option,
    there,
    told_more,
    width,
)


@click.command(
    epilog="Examples:\n\n  mulligan runs --since 24h\n\n  mulligan runs --status failure --agent helper --json\n\n"
    "  mulligan runs --tool search --kind tool/timeout"
)
@click.option("--agent", help="Only this agent's.")
@click.option("--status", type=click.Choice(get_args(Status)), help="Only those that came to this.")
@click.option("--tool", help="Only those that called this tool.")
@kind_option("Only those with a failure of this kind (tool/timeout), or of a type (tool).")
@click.option("--pattern", help="Only those with a failure of this pattern.")
@click.option("--model", help="Only those that called this model.")
@click.option("--version", "version", help="Only of this version of the agent.")
@click.option("--environment", help="Only in this environment.")
@click.option("--session", help="Only of this session.")
@click.option("--since", "past", metavar="7d", help="Only those begun within this time: 30m, 24h, 7d, a date.")
@click.option("--until", metavar="DATE", help="Only those begun before: a date, or so long ago (24h).")
@limit_option
@csv_option
@store_option
@as_json
def runs(
    past: str | None,
    until: str | None,
    limit: int,
    pattern: str | None,
    as_comma: bool,
    store: str | None,
    as_json: bool,
    **narrowed: Any,
) -> None:
    """The newest runs and what came of them."""
    settings = settings_with(store)
    kept = opened(settings)
    if pattern is not None and kept is not None:
        known = kept.pattern(LOCAL, pattern)
        if known is None:
            raise SettingsError(f"there is no pattern {pattern!r}, or more than one begins so. See: mulligan patterns")
        pattern = known.id
    query = RunQuery(since=moment(past), until=moment(until, "--until"), limit=limit, pattern=pattern, **narrowed)
    found = kept.runs(LOCAL, query) if kept is not None else []
    if as_json:
        print_json([terminal.summary(history) for history in found])
    elif as_comma:
        print_lines(as_csv((terminal.facts(history) for history in found), terminal.CSV))
    elif not found:
        url = shown(settings.store_url)
        is_narrowed = any((past, until, pattern, *narrowed.values()))
        nothing = f"No run matches in {url}." if is_narrowed else f"No runs in {url}."
        click.echo(nothing if kept is not None else f"There is no {url} yet.")
        if not is_narrowed:
            click.echo("Wrap a function with @mulligan.tool and call it, or try: mulligan demo")
    else:
        print_lines(terminal.runs(found, now(), width()))
        told_more(len(found), limit)
        click.echo(f"\nLook at one: mulligan show {found[0].run.id[:12]}{there(store)}", err=True)


@click.command(epilog="Examples:\n\n  mulligan show run_8f2c\n\n  mulligan show last --json")
@click.argument("run")
@store_option
@as_json
def show(run: str, store: str | None, as_json: bool) -> None:
    """One run: every attempt at every call, what went wrong and what was done about it.

    RUN is an id or any unambiguous beginning of one, or `last`.
    """
    settings = settings_with(store)
    kept = opened(settings)
    if kept is None:
        raise SettingsError(
            f"there are no runs in {shown(settings.store_url)} yet. "
            "Name another store with --store, or try: mulligan demo"
        )
    history = _found(kept, run)
    if as_json:
        print_json(terminal.summary(history) | builtins(history))
    else:
        print_lines(terminal.run(history, now(), width()))


def _found(kept: Store, wanted: str) -> History:
    if wanted == "last":
        newest = kept.runs(LOCAL, RunQuery(limit=1))
        if not newest:
            raise SettingsError("there are no runs yet. Wrap a function with @mulligan.tool, or try: mulligan demo")
        return newest[0]
    prefix = wanted
    matches = kept.find(LOCAL, prefix, limit=4)
    if not matches:  # retry with the prefix of our ids, which users may omit
        prefix = f"run_{wanted}"
        matches = kept.find(LOCAL, prefix, limit=4)
    if len(matches) > 1 and not any(each.id == prefix for each in matches):
        told = ", ".join(
            f"{each.id} ({terminal.ago(each.started, now())}, {each.agent or 'no agent'})" for each in matches[:3]
        )
        many = "more than 3" if len(matches) > 3 else str(len(matches))
        raise SettingsError(f"{many} runs start with {prefix}: {told}. Type more of the id.")
    history = kept.run(LOCAL, prefix if len(matches) != 1 else matches[0].id)
    if history is None:
        raise SettingsError(f"there is no run {wanted!r}. See the ones there are: mulligan runs")
    return history
