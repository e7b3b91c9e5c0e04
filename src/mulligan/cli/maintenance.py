"""mulligan prune, mulligan forget and mulligan backup."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

import click
import msgspec

from mulligan.cli.options import (
    as_json,
    load_settings,
    now_ms,
    open_existing_store,
    print_json,
    show_progress_bar,
    store_option,
)
from mulligan.core.failure import SettingsError
from mulligan.core.records import to_builtins
from mulligan.report.tables import format_count, to_line
from mulligan.store.base import DAY, DEFAULT_TENANT, ForgetRequest, PruneResult, Retention, Store
from mulligan.store.urls import is_remote


def _open_store(store: str | None) -> Store:
    settings = load_settings(store)
    existing_store = open_existing_store(settings)
    if existing_store is None:
        raise SettingsError(f"Store {settings.store_url} does not exist yet. Name another with --store.")
    return existing_store


def _select_tenants(store: Store, url: str, tenant: str | None, is_all: bool) -> list[tuple[str, Retention]]:
    """Return the selected tenants with their retention."""
    if is_remote(url):
        if tenant is not None or is_all:
            raise SettingsError(
                f"The server at {url} sets the tenant from your token. Remove --tenant and --all-tenants."
            )
        return [(DEFAULT_TENANT, Retention())]
    from mulligan.server.tenants import Tenants, unknown_tenant  # needed by few commands

    tenants = Tenants(store)
    if is_all:
        return [(stored_tenant.name, stored_tenant.retention) for stored_tenant in tenants.load_all_with_default()]
    tenant_record = tenants.find(tenant or DEFAULT_TENANT)
    if tenant_record is None:
        raise unknown_tenant(tenant or DEFAULT_TENANT)
    return [(tenant_record.name, tenant_record.retention)]


def _sum_results(first_result: PruneResult, second_result: PruneResult) -> PruneResult:
    """Add the counts of two tenants. The file size is the one before the first and after the last."""
    sums = {name: getattr(first_result, name) + getattr(second_result, name) for name in first_result.__struct_fields__}
    return PruneResult(
        **sums
        | {
            "bytes_before": first_result.bytes_before or second_result.bytes_before,
            "bytes_after": second_result.bytes_after,
        }
    )


def _days_to_ms(value: int | None, default: int | None) -> int | None:
    return default if value is None else value * DAY


@click.command(
    epilog="Examples:\n\n  mulligan prune --dry-run\n\n  mulligan prune --keep-successes 14 --keep-failures 180\n\n"
    "  mulligan prune --sample 0.1 --max-size 2000"
)
@click.option(
    "--keep-failures", type=click.IntRange(0), metavar="DAYS", help="Keep failed runs for so many days.  [90]"
)
@click.option(
    "--keep-successes", type=click.IntRange(0), metavar="DAYS", help="Keep successful runs for so many days.  [30]"
)
@click.option(
    "--max-size", type=click.IntRange(1), metavar="MB", help="Then delete the oldest runs until the file has this size."
)
@click.option(
    "--sample", type=click.FloatRange(0, 1), metavar="SHARE", help="Share of old successful steps to keep, 0 to 1."
)
@click.option("--include-imported", is_flag=True, help="Also delete imported runs.")
@click.option("--dry-run", is_flag=True, help="Print what would be deleted, and delete nothing.")
@click.option("--tenant", metavar="NAME", help="Prune this tenant by its own retention.")
@click.option("--all-tenants", is_flag=True, help="Prune every tenant by its own retention.")
@store_option
@as_json
def prune(
    keep_failures: int | None,
    keep_successes: int | None,
    max_size: int | None,
    sample: float | None,
    include_imported: bool,
    dry_run: bool,
    tenant: str | None,
    all_tenants: bool,
    store: str | None,
    as_json: bool,
) -> None:
    """Delete expired runs. Daily counters and patterns stay.

    The age of a record counts from the time it was stored.
    """
    existing_store = _open_store(store)
    prune_result = PruneResult()
    for name, default_retention in _select_tenants(existing_store, load_settings(store).store_url, tenant, all_tenants):
        policy = Retention(
            keep_failures=_days_to_ms(keep_failures, default_retention.keep_failures),
            keep_successes=_days_to_ms(keep_successes, default_retention.keep_successes),
            keep_hourly=default_retention.keep_hourly,
            max_size=None if max_size is None else max_size * 1_000_000,
            sample=default_retention.sample if sample is None else sample,
            include_imported=include_imported,
        )
        with show_progress_bar(f"pruning {name}" if name != DEFAULT_TENANT else "pruning") as report_progress:
            prune_result = _sum_results(
                prune_result, existing_store.prune(name, policy, now_ms(), dry_run, report_progress)
            )
    if as_json:
        print_json({"dry_run": dry_run, **msgspec.structs.asdict(prune_result)})
        return
    verb = "Would delete" if dry_run else "Deleted"
    run_summary = f"{format_count(prune_result.runs, 'run')} with {format_count(prune_result.steps, 'step')}"
    more = [
        f"{format_count(prune_result.sampled, 'step')} of successful calls" if prune_result.sampled else "",
        f"{format_count(prune_result.counters, 'hourly counter')}" if prune_result.counters else "",
    ]
    click.echo(f"{verb} {', '.join(filter(None, [run_summary, *more]))}.")
    if prune_result.compressed:
        click.echo(
            f"{'Would compress' if dry_run else 'Compressed'} {format_count(prune_result.compressed, 'record')}."
        )
    if not dry_run and prune_result.bytes_before:
        click.echo(
            f"File size {prune_result.bytes_after / 1e6:,.1f} MB (before {prune_result.bytes_before / 1e6:,.1f} MB)."
        )


@click.command(
    epilog="Examples:\n\n  mulligan forget --run run_8f2c\n\n  mulligan forget --text 'ada@example.org' --yes\n\n"
    "  mulligan forget --text - < secret.txt\n\n  mulligan forget --learned"
)
@click.option("--run", "run", metavar="RUN", help="Delete a run, by its id or an unambiguous prefix.")
@click.option("--tool", metavar="NAME", help="Delete all arguments and results of a tool.")
@click.option("--session", metavar="ID", help="Delete every run of a session.")
@click.option(
    "--text",
    metavar="TEXT",
    help=("Delete a text wherever it occurs; - reads it from stdin, so that it stays out of your shell history."),
)
@click.option("--learned", is_flag=True, help="Delete all fixes and learned lessons. Runs stay.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@store_option
@as_json
def forget(
    run: str | None,
    tool: str | None,
    session: str | None,
    text: str | None,
    learned: bool,
    yes: bool,
    store: str | None,
    as_json: bool,
) -> None:
    """Delete matching records permanently: rows, patterns, links and counters. This cannot be undone."""
    selections = {
        name: value for name, value in locals().items() if name in FORGET_TARGETS and value not in (None, False)
    }
    if len(selections) != 1:
        raise SettingsError("Pass exactly one of --run, --tool, --session, --text and --learned.")
    ((name, value),) = selections.items()
    if name == "learned":
        _forget_learned(_open_store(store), yes, as_json)
    if name == "text" and value == "-":
        value = sys.stdin.read().rstrip("\r\n")
    if not value:
        raise SettingsError(f"--{name} is empty and would match everything. Nothing was deleted.")
    existing_store = _open_store(store)
    if name == "run":
        value = _resolve_run_id(existing_store, value)
    if not yes:
        _confirm(
            f"Delete {FORGET_TARGETS[name]} {to_line(value, 60)!r} permanently?"
            if name != "text"
            else "Delete this text permanently?"
        )
    forget_result = existing_store.forget(DEFAULT_TENANT, ForgetRequest(**{name: value}))
    if as_json:
        print_json(msgspec.structs.asdict(forget_result))
    elif not forget_result:
        click.echo("No match. Nothing was deleted.")
    else:
        parts = [
            ("run", forget_result.runs),
            ("step", forget_result.steps),
            ("pattern", forget_result.patterns),
            ("stored value", forget_result.key_value_entries),
        ]
        click.echo(f"Deleted {', '.join(format_count(number, noun) for noun, number in parts if number)}.")
    sys.exit(0 if forget_result else 1)


FORGET_TARGETS = {
    "run": "the run",
    "tool": "the tool",
    "session": "the session",
    "text": "the text",
    "learned": "memory",
}


def _forget_learned(store: Store, yes: bool, as_json: bool) -> NoReturn:
    """Delete fixes and lessons but keep the runs. Exit 1 if nothing was learned."""
    if not yes:
        _confirm("Delete all fixes and learned lessons? Runs and patterns stay.")
    forget_result = store.forget(DEFAULT_TENANT, ForgetRequest(learned=now_ms()))
    if as_json:
        print_json(msgspec.structs.asdict(forget_result))
    elif not forget_result:
        click.echo("No fixes or lessons yet. Nothing was deleted.")
    else:
        fixes = "1 fix" if forget_result.fixes == 1 else f"{forget_result.fixes:,} fixes"
        click.echo(f"Deleted {fixes} and {format_count(forget_result.lessons, 'lesson')}. Runs stay.")
    sys.exit(0 if forget_result else 1)


def _resolve_run_id(store: Store, prefix: str) -> str:
    matches = store.find(DEFAULT_TENANT, prefix, limit=2)
    if len(matches) > 1 and not any(match.id == prefix for match in matches):
        raise SettingsError(f"Several runs start with {prefix!r}. Type more of the id. Nothing was deleted.")
    return matches[0].id if len(matches) == 1 else prefix


def _confirm(question: str) -> None:
    if not sys.stdin.isatty():
        raise SettingsError("This cannot be undone, and there is no terminal for a confirmation. Add --yes.")
    click.confirm(question, abort=True, err=True)


@click.command(epilog="Examples:\n\n  mulligan backup backup-$(date +%F).db")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@store_option
@as_json
def backup(file: Path, force: bool, store: str | None, as_json: bool) -> None:
    """Back up the store to FILE: a consistent snapshot, taken while the store is in use.

    The backup is a store: read it with --store FILE.
    """
    if file.exists() and not force:
        raise SettingsError(f"{file} already exists. Name another file, or replace it: --force")
    if not file.parent.is_dir():
        raise SettingsError(f"Folder {file.parent} does not exist. Create it: mkdir -p '{file.parent}'")
    existing_store = _open_store(store)
    with show_progress_bar("copying") as report_progress:
        health = existing_store.backup(file, report_progress, replaces=force)
    size = file.stat().st_size
    if as_json:
        print_json(dict(to_builtins(health)) | {"where": str(file), "bytes": size})
    else:
        click.echo(
            f"{format_count(health.runs, 'run')}, {format_count(health.steps, 'step')}, {size / 1e6:,.1f} MB in "
            f"{file}. Integrity check passed."
        )
