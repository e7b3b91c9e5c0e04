"""mulligan prune, mulligan forget and mulligan backup."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

import click

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
        raise SettingsError(f"there is no {settings.store_url} yet, and nothing to do. Name another: --store.")
    return existing_store


def _select_tenants(store: Store, url: str, tenant: str | None, is_all: bool) -> list[tuple[str, Retention]]:
    """Return the selected tenants with their retention."""
    if is_remote(url):
        if tenant is not None or is_all:
            raise SettingsError(f"at {url} you are the tenant of your token. Leave out --tenant and --all-tenants.")
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
    return PruneResult(**sums | {"before": first_result.before or second_result.before, "after": second_result.after})


def _days_to_ms(value: int | None, default: int | None) -> int | None:
    return default if value is None else value * DAY


@click.command(
    epilog="Examples:\n\n  mulligan prune --dry-run\n\n  mulligan prune --successes 14 --failures 180\n\n"
    "  mulligan prune --sample 0.1 --size 2000"
)
@click.option("--failures", type=click.IntRange(0), metavar="DAYS", help="Keep runs that failed so long.  [90]")
@click.option("--successes", type=click.IntRange(0), metavar="DAYS", help="Keep runs that worked so long.  [30]")
@click.option("--size", type=click.IntRange(1), metavar="MB", help="Then the oldest, until the file is this small.")
@click.option("--sample", type=click.FloatRange(0, 1), metavar="SHARE", help="The share of old successes that stays.")
@click.option("--imports", is_flag=True, help="What was imported too.")
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@click.option("--tenant", metavar="NAME", help="What a tenant has, as long as that is set to be kept.")
@click.option("--all-tenants", is_flag=True, help="Of every tenant, each as long as that is set to be kept.")
@store_option
@as_json
def prune(
    failures: int | None,
    successes: int | None,
    size: int | None,
    sample: float | None,
    imports: bool,
    dry_run: bool,
    tenant: str | None,
    all_tenants: bool,
    store: str | None,
    as_json: bool,
) -> None:
    """Remove what is old. Figures by the day and patterns stay.

    Age counts from when a record came into the store.
    """
    existing_store = _open_store(store)
    prune_result = PruneResult()
    for name, default_retention in _select_tenants(existing_store, load_settings(store).store_url, tenant, all_tenants):
        policy = Retention(
            failures=_days_to_ms(failures, default_retention.failures),
            successes=_days_to_ms(successes, default_retention.successes),
            hours=default_retention.hours,
            size=None if size is None else size * 1_000_000,
            sample=default_retention.sample if sample is None else sample,
            imports=imports,
        )
        with show_progress_bar(f"pruning {name}" if name != DEFAULT_TENANT else "pruning") as report_progress:
            prune_result = _sum_results(
                prune_result, existing_store.prune(name, policy, now_ms(), dry_run, report_progress)
            )
    if as_json:
        print_json(
            {"dry_run": dry_run, **{name: getattr(prune_result, name) for name in prune_result.__struct_fields__}}
        )
        return
    verb = "Would remove" if dry_run else "Removed"
    run_summary = f"{format_count(prune_result.runs, 'run')} with {format_count(prune_result.steps, 'step')}"
    more = [
        f"{format_count(prune_result.sampled, 'step')} of plain successes" if prune_result.sampled else "",
        f"{format_count(prune_result.counters, 'counter')} by the hour" if prune_result.counters else "",
    ]
    click.echo(f"{verb} {', '.join(filter(None, [run_summary, *more]))}.")
    if prune_result.compressed:
        click.echo(
            f"{'Would compress' if dry_run else 'Compressed'} {format_count(prune_result.compressed, 'record')}."
        )
    if not dry_run and prune_result.before:
        click.echo(f"The file has {prune_result.after / 1e6:,.1f} MB; it had {prune_result.before / 1e6:,.1f}.")


@click.command(
    epilog="Examples:\n\n  mulligan forget --run run_8f2c\n\n  mulligan forget --text 'ada@example.org' --yes\n\n"
    "  mulligan forget --text - < secret.txt\n\n  mulligan forget --learned"
)
@click.option("--run", "run", metavar="RUN", help="A run, by its id or any unambiguous beginning of it.")
@click.option("--tool", metavar="NAME", help="Everything a tool was called with and answered.")
@click.option("--session", metavar="ID", help="Every run of a session.")
@click.option("--text", metavar="TEXT", help="A text, wherever it stands; - reads it from stdin, out of your history.")
@click.option("--learned", is_flag=True, help="Fixes and lessons learned so far. The history stays.")
@click.option("--yes", is_flag=True, help="Do not ask.")
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
    """Make something as if it had never been recorded: rows, patterns, links, figures. It cannot be undone."""
    selections = {
        name: value for name, value in locals().items() if name in FORGET_TARGETS and value not in (None, False)
    }
    if len(selections) != 1:
        raise SettingsError("Name one thing to forget: --run, --tool, --session, --text or --learned.")
    ((name, value),) = selections.items()
    if name == "learned":
        _forget_learned(_open_store(store), yes, as_json)
    if name == "text" and value == "-":
        value = sys.stdin.read().rstrip("\r\n")
    if not value:
        raise SettingsError(f"--{name} is empty, and would mean everything. Nothing was forgotten.")
    existing_store = _open_store(store)
    if name == "run":
        value = _resolve_run_id(existing_store, value)
    if not yes:
        _confirm(
            f"Forget {FORGET_TARGETS[name]} {to_line(value, 60)!r} for ever?"
            if name != "text"
            else "Forget this text for ever?"
        )
    forget_result = existing_store.forget(DEFAULT_TENANT, ForgetRequest(**{name: value}))
    if as_json:
        print_json({name: getattr(forget_result, name) for name in forget_result.__struct_fields__})
    elif not forget_result:
        click.echo("Nothing of it was found.")
    else:
        parts = [
            ("run", forget_result.runs),
            ("step", forget_result.steps),
            ("pattern", forget_result.patterns),
            ("note", forget_result.shelf),
        ]
        click.echo(f"Forgot {', '.join(format_count(number, noun) for noun, number in parts if number)}.")
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
        _confirm("Forget all fixes and lessons learned so far? Runs and patterns stay.")
    forget_result = store.forget(DEFAULT_TENANT, ForgetRequest(learned=now_ms()))
    if as_json:
        print_json({name: getattr(forget_result, name) for name in forget_result.__struct_fields__})
    elif not forget_result:
        click.echo("Nothing was learned yet.")
    else:
        fixes = "1 fix" if forget_result.fixes == 1 else f"{forget_result.fixes:,} fixes"
        click.echo(f"Forgot {fixes} and {format_count(forget_result.lessons, 'lesson')}. The history stays.")
    sys.exit(0 if forget_result else 1)


def _resolve_run_id(store: Store, prefix: str) -> str:
    matches = store.find(DEFAULT_TENANT, prefix, limit=2)
    if len(matches) > 1 and not any(match.id == prefix for match in matches):
        raise SettingsError(f"more than one run begins with {prefix!r}. Type more of the id. Nothing was forgotten.")
    return matches[0].id if len(matches) == 1 else prefix


def _confirm(question: str) -> None:
    if not sys.stdin.isatty():
        raise SettingsError("this cannot be undone, and there is nobody to ask. Add --yes.")
    click.confirm(question, abort=True, err=True)


@click.command(epilog="Examples:\n\n  mulligan backup kept-$(date +%F).db")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--force", is_flag=True, help="Replace FILE if it is there.")
@store_option
@as_json
def backup(file: Path, force: bool, store: str | None, as_json: bool) -> None:
    """Copy the store into FILE as it is at one moment, while others go on writing.

    The copy is a store: read it with --store FILE.
    """
    if file.exists() and not force:
        raise SettingsError(f"{file} is there already. Name another file, or replace it: --force")
    if not file.parent.is_dir():
        raise SettingsError(f"there is no folder {file.parent}. Make it first: mkdir -p '{file.parent}'")
    existing_store = _open_store(store)
    with show_progress_bar("copying") as report_progress:
        health = existing_store.backup(file, report_progress, replaces=force)
    size = file.stat().st_size
    if as_json:
        print_json(dict(to_builtins(health)) | {"where": str(file), "bytes": size})
    else:
        click.echo(
            f"{format_count(health.runs, 'run')}, {format_count(health.steps, 'step')}, "
            f"{size / 1e6:,.1f} MB in {file}. It is sound."
        )
