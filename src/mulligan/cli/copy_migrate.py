"""mulligan copy and mulligan migrate: copy a store, or migrate its schema."""

from __future__ import annotations

import contextlib
import os
import sys

import click
import msgspec

from mulligan.cli.options import (
    as_json,
    load_settings,
    open_existing_store,
    print_json,
    show_progress_bar,
    store_option,
)
from mulligan.core.failure import SettingsError, StoreError
from mulligan.core.records import Record
from mulligan.report.tables import format_count, to_line
from mulligan.store import sqlite
from mulligan.store.copy import CopyResult, Difference, StoreCopy, open_endpoint
from mulligan.store.tables import MIGRATIONS
from mulligan.store.urls import (
    is_postgres,
    is_remote,
    may_have_records,
    open_store,
    redact_password,
    require_psycopg,
    sqlite_path,
)


@click.command(
    epilog="Examples:\n\n  mulligan copy mulligan.db elsewhere.db\n\n"
    "  mulligan copy mulligan.db postgresql://db.example.com/mulligan\n\n"
    "  mulligan copy mulligan.db elsewhere.db --check\n\n  mulligan copy team.db ada.db --tenant ada --as local"
)
@click.argument("source", metavar="FROM")
@click.argument("to", metavar="TO")
@click.option("--tenant", metavar="NAME", help="Copy only this tenant.")
@click.option("--as", "renamed", metavar="NAME", help="Name of that tenant in TO.")
@click.option("--check", is_flag=True, help="Compare only: report how TO differs from FROM.")
@as_json
def copy(source: str, to: str, tenant: str | None, renamed: str | None, check: bool, as_json: bool) -> None:
    """Copy every row of the store FROM into the store TO, then compare both.

    FROM may be in use: the copy is a snapshot of its start. Run the command again to add newer rows, or to resume an
    interrupted copy. TO must be empty, or a copy of FROM that was not written to since. Exits 1 and lists the
    differences if the stores differ at the end.
    """
    if renamed is not None and tenant is None:
        raise SettingsError("--as renames one tenant, so it needs --tenant. Use: --tenant NAME --as NAME")
    for url in (source, to):
        _check_copyable(url)
    _check_different_stores(source, to)
    _recover_journals(source)
    if check and not may_have_records(to):
        raise SettingsError(f"Store {to} does not exist. Copy it first: mulligan copy FROM TO")
    with (
        contextlib.closing(open_endpoint(source, is_source=True)) as origin,
        contextlib.closing(open_endpoint(to, is_source=False)) as destination,
        show_progress_bar("comparing" if check else "copying") as report_progress,
    ):
        store_copy = StoreCopy(origin, destination, tenant, renamed, report_progress)
        copied = store_copy.compare() if check else store_copy.copy()
    _print_copy_result(copied, check, as_json)
    sys.exit(1 if copied.differences else 0)


def _check_copyable(url: str) -> None:
    if is_remote(url):
        raise SettingsError(
            f"{url} is a server, which does not expose all tables. Copy its store on the server's "
            "machine, or move runs only with mulligan export and mulligan import."
        )
    if url.startswith("memory:"):
        raise SettingsError("A store in memory is lost when the command ends. Name a file or a database.")


def _check_different_stores(source: str, to: str) -> None:
    if not is_postgres(to):
        destination_path = sqlite_path(to)
        if (
            destination_path.exists()
            and not is_postgres(source)
            and os.path.realpath(sqlite_path(source)) == os.path.realpath(destination_path)
        ):
            raise SettingsError("FROM and TO are the same store. Name another TO.")
        if not destination_path.absolute().parent.is_dir():
            raise SettingsError(
                f"Folder {destination_path.parent} does not exist. Create it: mkdir -p '{destination_path.parent}'"
            )
    elif redact_password(source) == redact_password(to):
        raise SettingsError("FROM and TO are the same store. Name another TO.")


def _recover_journals(source: str) -> None:
    """Import orphaned journals before the copy, so that it is complete."""
    store = open_existing_store(load_settings(source))
    if store is None:
        raise SettingsError(f"Store {source} does not exist. Name the store to copy.")
    store.close()


def _print_copy_result(copied: CopyResult, check: bool, as_json: bool) -> None:
    if as_json:
        print_json(msgspec.to_builtins(copied) | {"same": not copied.differences})
        return
    for difference in copied.differences:
        click.echo(_describe_difference(difference))
    if copied.differences:
        retry_advice = "run the copy again, or copy to another store if TO was written to since."
        unusable_note = "it cannot be opened until a copy succeeds. Run the same command again."
        click.echo(f"{copied.to} differs from {copied.source}: {retry_advice if check else unusable_note}")
    elif check:
        click.echo(f"Identical: {format_count(copied.rows, 'row')}, digest {copied.digest}.")
    else:
        tenant_count = format_count(len([tenant for tenant in copied.tenants if tenant]), "tenant")
        new_rows_note = "" if copied.put == copied.rows else f", {copied.put:,} new"
        removed_note = f", {copied.removed:,} replaced or removed" if copied.removed else ""
        click.echo(
            f"{format_count(copied.rows, 'row')} of {tenant_count} in "
            f"{copied.to}{new_rows_note}{removed_note}. Both stores are identical, digest "
            f"{copied.digest}."
        )


def _describe_difference(difference: Difference) -> str:
    parts = [(difference.missing, "missing"), (difference.altered, "changed"), (difference.extra, "only in TO")]
    summary = ", ".join(f"{number:,} {state}" for number, state in parts if number)
    tenant_note = f" of {to_line(difference.tenant, 60)!r}" if difference.tenant else ""
    return f"{difference.table}{tenant_note}: {summary}\n" + "\n".join(
        f"  {to_line(row, 200)}" for row in difference.rows
    )


@click.command(epilog="Examples:\n\n  mulligan migrate --dry-run\n\n  mulligan migrate --store ./failures.db --json")
@click.option("--dry-run", is_flag=True, help="Print the planned changes only; exits 1 if there are any.")
@store_option
@as_json
def migrate(dry_run: bool, store: str | None, as_json: bool) -> None:
    """Migrate a store to the current schema version, or create a new store.

    The migration runs in one transaction and cannot be undone. Back up the store first: mulligan backup.
    """
    url = load_settings(store).store_url
    if is_remote(url):
        raise SettingsError(f"{url} is a server. Migrate its store on the server's machine.")
    _check_copyable(url)
    plan = _plan_migration(url)
    if not dry_run:
        with show_progress_bar("migrating the store") as report_progress:
            open_store(url, progress=report_progress).close()
        after = _plan_migration(url)
        if after.is_due:
            raise StoreError(f"{after.where} still has schema {after.schema} instead of {after.newest}.")
    if as_json:
        print_json(msgspec.structs.asdict(plan) | {"dry_run": dry_run})
    else:
        click.echo(_describe_plan(plan, dry_run))
    sys.exit(1 if dry_run and plan.is_due else 0)


class MigrationPlan(Record, frozen=True):
    """What a migration of one store would do."""

    where: str
    schema: int
    """The schema version of the store; 0 if it is empty or does not exist."""
    newest: int
    statements: int
    """Number of SQL statements that the migration executes."""

    @property
    def is_due(self) -> bool:
        return self.schema < self.newest


def _plan_migration(url: str) -> MigrationPlan:
    """Return the plan for a store and change nothing. Raise StoreError if it is newer than this version or no store."""
    if is_postgres(url):
        require_psycopg()
        from mulligan.store.postgres.postgres_diagnostics import read_schema_version_at  # the extra

        where, version = redact_password(url), read_schema_version_at(url)
    else:
        path = sqlite_path(url)
        where, version = str(path), sqlite.read_schema_version_at(path) if path.exists() else 0
    statements = sum(map(len, MIGRATIONS[version:]))
    return MigrationPlan(where=where, schema=version, newest=len(MIGRATIONS), statements=statements)


def _describe_plan(plan: MigrationPlan, dry_run: bool) -> str:
    if not plan.is_due:
        return f"{plan.where} is up to date (schema {plan.schema})."
    summary = format_count(plan.statements, "statement")
    if not plan.schema:
        return f"{'Would create' if dry_run else 'Created'} {plan.where} with schema {plan.newest}: {summary}."
    verb = "Would migrate" if dry_run else "Migrated"
    return f"{verb} {plan.where} from schema {plan.schema} to {plan.newest}: {summary}."
