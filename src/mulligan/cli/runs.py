"""mulligan runs and mulligan show."""

from __future__ import annotations

from typing import Any

import click

from mulligan.cli.lists import print_list, resource_options
from mulligan.cli.options import (
    as_json,
    load_settings,
    now_ms,
    open_existing_store,
    print_json,
    print_lines,
    store_option,
    store_option_suffix,
    terminal_width,
)
from mulligan.core.failure import SettingsError
from mulligan.core.records import History, to_builtins
from mulligan.report import run_text
from mulligan.report.resources import RUN_SPEC
from mulligan.report.tables import SHOWN_ID_CHARS, format_age
from mulligan.store.base import DEFAULT_TENANT, RunQuery, Store
from mulligan.store.urls import redact_password


@click.command(
    epilog="Examples:\n\n  mulligan runs --since 24h\n\n  mulligan runs --status failure --agent helper --json\n\n"
    "  mulligan runs --tool search --kind tool/timeout"
)
@resource_options(RUN_SPEC)
def runs(limit: int, as_csv: bool, store: str | None, as_json: bool, **filters: Any) -> None:
    """List recent runs with their status."""
    settings = load_settings(store)
    existing_store = open_existing_store(settings)
    if filters["pattern"] is not None and existing_store is not None:
        pattern = existing_store.pattern(DEFAULT_TENANT, filters["pattern"])
        if pattern is None:
            raise SettingsError(
                f"No pattern matches {filters['pattern']!r}, or several start with it. List patterns: mulligan patterns"
            )
        filters["pattern"] = pattern.id
    query = RUN_SPEC.build_query(filters, limit=limit)
    histories = RUN_SPEC.read(existing_store, DEFAULT_TENANT, query) if existing_store is not None else []
    if not print_list(RUN_SPEC, histories, limit, as_json, as_csv, run_text.to_summary):
        url, has_filters = redact_password(settings.store_url), any(value is not None for value in filters.values())
        if existing_store is None:
            click.echo(f"Store {url} does not exist yet.")
        else:
            click.echo(f"No run matches in {url}." if has_filters else f"No runs in {url}.")
        if not has_filters:
            click.echo("Wrap a function with @mulligan.tool and call it, or try: mulligan demo")
    elif not (as_json or as_csv):
        id = histories[0].run.id[:SHOWN_ID_CHARS]
        click.echo(f"\nShow one: mulligan show {id}{store_option_suffix(store)}", err=True)


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
            f"{match.id} ({format_age(match.started_at, now_ms())}, {match.agent or 'no agent'})"
            for match in matches[:3]
        )
        count = "more than 3" if len(matches) > 3 else len(matches)
        raise SettingsError(f"{count} runs start with {prefix}: {choices}. Type more of the id.")
    history = store.run(DEFAULT_TENANT, prefix if len(matches) != 1 else matches[0].id)
    if history is None:
        raise SettingsError(f"No run matches {run_id!r}. List runs: mulligan runs")
    return history
