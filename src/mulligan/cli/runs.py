"""mulligan runs and mulligan show."""

from __future__ import annotations

from typing import Any, get_args

import click

from mulligan.cli.options import (
    as_json,
    csv_option,
    kind_option,
    limit_option,
    load_settings,
    now_ms,
    open_existing_store,
    parse_time_option,
    print_json,
    print_lines,
    store_option,
    store_option_suffix,
    terminal_width,
    warn_if_truncated,
)
from mulligan.core.failure import SettingsError
from mulligan.core.records import History, Status, to_builtins
from mulligan.report import run_text
from mulligan.report.tables import render_csv
from mulligan.store.base import DEFAULT_TENANT, RunQuery, Store
from mulligan.store.urls import redact_password


@click.command(
    epilog="Examples:\n\n  mulligan runs --since 24h\n\n  mulligan runs --status failure --agent helper --json\n\n"
    "  mulligan runs --tool search --kind tool/timeout"
)
@click.option("--agent", help="Only runs of this agent.")
@click.option("--status", type=click.Choice(get_args(Status)), help="Only runs with this status.")
@click.option("--tool", help="Only runs that called this tool.")
@kind_option("Only runs with a failure of this kind (tool/timeout), or of a type (tool).")
@click.option("--pattern", help="Only runs with a failure of this pattern.")
@click.option("--model", help="Only runs that called this model.")
@click.option("--version", "version", help="Only runs of this version of the agent.")
@click.option("--environment", help="Only runs in this environment.")
@click.option("--session", help="Only runs of this session.")
@click.option("--since", "past", metavar="7d", help="Only runs started within this time: 30m, 24h, 7d, a date.")
@click.option("--until", metavar="DATE", help="Only runs started before this time: a date, or an age (24h).")
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
    **filters: Any,
) -> None:
    """List recent runs with their status."""
    settings = load_settings(store)
    existing_store = open_existing_store(settings)
    if pattern is not None and existing_store is not None:
        stored_pattern = existing_store.pattern(DEFAULT_TENANT, pattern)
        if stored_pattern is None:
            raise SettingsError(
                f"No pattern matches {pattern!r}, or several start with it. List patterns: mulligan patterns"
            )
        pattern = stored_pattern.id
    query = RunQuery(
        since=parse_time_option(past),
        until=parse_time_option(until, "--until"),
        limit=limit,
        pattern=pattern,
        **filters,
    )
    histories = existing_store.runs(DEFAULT_TENANT, query) if existing_store is not None else []
    if as_json:
        print_json([run_text.to_summary(history) for history in histories])
    elif as_comma:
        print_lines(render_csv((run_text.to_facts(history) for history in histories), run_text.CSV_COLUMNS))
    elif not histories:
        url = redact_password(settings.store_url)
        has_filters = any((past, until, pattern, *filters.values()))
        empty_message = f"No run matches in {url}." if has_filters else f"No runs in {url}."
        click.echo(empty_message if existing_store is not None else f"Store {url} does not exist yet.")
        if not has_filters:
            click.echo("Wrap a function with @mulligan.tool and call it, or try: mulligan demo")
    else:
        print_lines(run_text.render_runs(histories, now_ms(), terminal_width()))
        warn_if_truncated(len(histories), limit)
        click.echo(f"\nShow one: mulligan show {histories[0].run.id[:12]}{store_option_suffix(store)}", err=True)


@click.command(epilog="Examples:\n\n  mulligan show run_8f2c\n\n  mulligan show last --json")
@click.argument("run")
@store_option
@as_json
def show(run: str, store: str | None, as_json: bool) -> None:
    """Show one run: every attempt of every call, its failures and their recovery.

    RUN is an id, any unambiguous prefix, or `last`.
    """
    settings = load_settings(store)
    existing_store = open_existing_store(settings)
    if existing_store is None:
        raise SettingsError(
            f"No runs in {redact_password(settings.store_url)} yet. Name another store with --store, or try: "
            "mulligan demo"
        )
    history = _find_run(existing_store, run)
    if as_json:
        print_json(run_text.to_summary(history) | to_builtins(history))
    else:
        print_lines(run_text.render_run(history, now_ms(), terminal_width()))


def _find_run(store: Store, run_id: str) -> History:
    if run_id == "last":
        newest = store.runs(DEFAULT_TENANT, RunQuery(limit=1))
        if not newest:
            raise SettingsError("No runs yet. Wrap a function with @mulligan.tool, or try: mulligan demo")
        return newest[0]
    prefix = run_id
    matches = store.find(DEFAULT_TENANT, prefix, limit=4)
    if not matches:  # retry with the prefix of our ids, which users may omit
        prefix = f"run_{run_id}"
        matches = store.find(DEFAULT_TENANT, prefix, limit=4)
    if len(matches) > 1 and not any(match.id == prefix for match in matches):
        choices = ", ".join(
            f"{match.id} ({run_text.format_age(match.started_at, now_ms())}, {match.agent or 'no agent'})"
            for match in matches[:3]
        )
        count_text = "more than 3" if len(matches) > 3 else str(len(matches))
        raise SettingsError(f"{count_text} runs start with {prefix}: {choices}. Type more of the id.")
    history = store.run(DEFAULT_TENANT, prefix if len(matches) != 1 else matches[0].id)
    if history is None:
        raise SettingsError(f"No run matches {run_id!r}. List runs: mulligan runs")
    return history
