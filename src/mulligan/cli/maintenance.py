"""mulligan prune, mulligan forget, mulligan backup, mulligan copy and mulligan migrate."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from mulligan.cli.options import CommandContext, command, confirm, load_settings, open_existing_store, show_progress_bar
from mulligan.contract.store import (
    DAY,
    DEFAULT_TENANT,
    FileRewrite,
    FileSearch,
    ForgetRequest,
    ForgetResult,
    PruneResult,
    Retention,
    Store,
)
from mulligan.core.failure import SettingsError, StoreError
from mulligan.core.records import Record, to_builtins
from mulligan.report.tables import format_count, to_line
from mulligan.store import sqlite, urls
from mulligan.store.copy import CopyResult, Difference, StoreCopy
from mulligan.store.erasure import build_needles, search_local_files
from mulligan.store.tables import MIGRATIONS


@command(
    "mulligan prune --dry-run",
    "mulligan prune --keep-successes 14 --keep-failures 180",
    "mulligan prune --sample 0.1 --max-size 2000",
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
def prune(
    context: CommandContext, include_imported: bool, dry_run: bool, tenant: str | None, all_tenants: bool, **limits: Any
) -> None:
    """Delete expired runs. Daily counters and patterns stay.

    The age of a record counts from the time it was stored.
    """
    units = {"keep_failures": DAY, "keep_successes": DAY, "max_size": 1_000_000}
    overrides = {name: limit * units.get(name, 1) for name, limit in limits.items() if limit is not None}
    store = context.require_store()
    results = []
    for name, retention in _select_tenants(store, context.settings.store_url, tenant, all_tenants):
        policy = msgspec.structs.replace(retention, include_imported=include_imported, **overrides)
        with show_progress_bar(f"pruning {name}" if name != DEFAULT_TENANT else "pruning") as report_progress:
            results.append(store.prune(name, policy, context.now, dry_run, report_progress))
    result = _sum_results(results)
    amounts = [f"{format_count(result.runs, 'run')} with {format_count(result.steps, 'step')}"]
    amounts += [f"{format_count(result.sampled, 'step')} of successful calls"] if result.sampled else []
    amounts += [format_count(result.counters, "hourly counter")] if result.counters else []
    sentences = [f"{'Would delete' if dry_run else 'Deleted'} {', '.join(amounts)}."]
    if result.compressed:
        verb = "Would compress" if dry_run else "Compressed"
        sentences.append(f"{verb} {format_count(result.compressed, 'record')}.")
    if not dry_run and result.bytes_before:
        sizes = f"{result.bytes_after / 1e6:,.1f} MB (before {result.bytes_before / 1e6:,.1f} MB)"
        sentences.append(f"Size {sizes}.")
    context.print({"dry_run": dry_run, **msgspec.structs.asdict(result)}, "\n".join(sentences))


def _select_tenants(store: Store, url: str, tenant: str | None, is_all: bool) -> list[tuple[str, Retention]]:
    if urls.is_remote(url):
        if tenant is not None or is_all:
            raise SettingsError(
                f"The server at {url} sets the tenant from your token. Remove --tenant and --all-tenants."
            )
        return [(DEFAULT_TENANT, Retention())]
    from mulligan.server.tenants import Tenants, unknown_tenant  # needed by few commands

    tenants = Tenants(store)
    if is_all:
        return [(stored_tenant.name, stored_tenant.retention) for stored_tenant in tenants.load_all_with_default()]
    selected_tenant = tenants.find(tenant or DEFAULT_TENANT)
    if selected_tenant is None:
        raise unknown_tenant(tenant or DEFAULT_TENANT)
    return [(selected_tenant.name, selected_tenant.retention)]


def _sum_results(results: list[PruneResult]) -> PruneResult:
    """Add the counts of all tenants. The file size is the one before the first and after the last."""
    sums = {name: sum(getattr(result, name) for result in results) for name in PruneResult.__struct_fields__}
    bytes_before = next((result.bytes_before for result in results if result.bytes_before), 0)
    return PruneResult(**sums | {"bytes_before": bytes_before, "bytes_after": results[-1].bytes_after})


@command(
    "mulligan forget --run run_8f2c",
    "mulligan forget --text 'ada@example.org' --yes",
    "mulligan forget --text - < secret.txt",
    "mulligan forget --text - --rewrite --verify < secret.txt",
    "mulligan forget --learned",
)
@click.option("--run", metavar="RUN", help="Delete a run, by its id or an unambiguous prefix.")
@click.option("--tool", metavar="NAME", help="Delete all arguments and results of a tool.")
@click.option("--session", metavar="ID", help="Delete every run of a session.")
@click.option(
    "--text",
    metavar="TEXT",
    help="Delete a text wherever it occurs; - reads it from stdin, so that it stays out of your shell history.",
)
@click.option("--learned", is_flag=True, help="Delete all fixes and learned lessons. Runs stay.")
@click.option(
    "--rewrite",
    is_flag=True,
    help="PostgreSQL: rewrite all tables, statistics and log, so that deleted bytes leave its files. Locks the tables.",
)
@click.option("--verify", is_flag=True, help="Then search the store's files for --text; exits 1 if it is in one.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def forget(context: CommandContext, yes: bool, rewrite: bool, verify: bool, **targets: Any) -> None:
    """Delete matching records permanently: rows, patterns, links and counters. This cannot be undone.

    SQLite overwrites deleted bytes at once. PostgreSQL leaves them in its files until you pass --rewrite.
    """
    selected = {name: value for name, value in targets.items() if value not in (None, False)}
    if len(selected) != 1:
        raise SettingsError("Pass exactly one of --run, --tool, --session, --text and --learned.")
    ((name, value),) = selected.items()
    if name == "text" and value == "-":
        value = sys.stdin.read().rstrip("\r\n")
    if not value:
        raise SettingsError(f"--{name} is empty and would match everything. Nothing was deleted.")
    url = context.settings.store_url
    if verify and name != "text":
        raise SettingsError("--verify searches for a text. Pass it with --text.")
    if (rewrite or verify) and urls.is_remote(url):
        raise SettingsError(f"{url} is a server. Pass --rewrite and --verify on the machine of its store.")
    store = context.require_store()
    question = "Delete this text permanently?"
    if name == "learned":
        question = "Delete all fixes and learned lessons? Runs and patterns stay."
        value = context.now
    elif name != "text":
        value = _resolve_run_id(store, value) if name == "run" else value
        question = f"Delete the {name} {to_line(value, 60)!r} permanently?"
    confirm(question, yes)
    result = store.forget(DEFAULT_TENANT, ForgetRequest(**{name: value}))
    store.close()
    facts, lines = msgspec.structs.asdict(result), [_describe_forgotten(result, has_learned=name == "learned")]
    is_complete = bool(result) or rewrite or verify
    if rewrite:
        file_rewrite = _rewrite_files(url)
        facts["rewrite"] = msgspec.structs.asdict(file_rewrite)
        lines += _describe_rewrite(file_rewrite)
        is_complete = is_complete and not file_rewrite.remaining
    if verify:
        search = _search_files(url, value, context)
        facts["search"] = msgspec.structs.asdict(search)
        lines += _describe_search(search)
        is_complete = is_complete and bool(search.files) and not search.matches
    context.print(facts, lines)
    sys.exit(0 if is_complete else 1)


def _rewrite_files(url: str) -> FileRewrite:
    if not urls.is_postgres(url):
        return FileRewrite(tables=0, statistics=True, log=True)  # SQLite has overwritten deleted bytes at once
    from mulligan.store.postgres.file_erasure import rewrite_files  # needs the extra

    with show_progress_bar("rewriting tables") as report_progress:
        return rewrite_files(url, report_progress)


def _search_files(url: str, text: str, context: CommandContext) -> FileSearch:
    needles = build_needles(text)
    if urls.is_postgres(url):
        from mulligan.store.postgres.file_erasure import search_files  # needs the extra

        search = search_files(url, needles)
        journals = search_local_files(urls.local_path(url, context.settings.folder), needles)
        return msgspec.structs.replace(search, matches=search.matches + journals.matches)
    return search_local_files(urls.sqlite_path(url), needles)


def _describe_rewrite(rewrite: FileRewrite) -> list[str]:
    parts = [format_count(rewrite.tables, "table")] if rewrite.tables else []
    parts += ["column statistics"] if rewrite.tables and rewrite.statistics else []
    parts += ["the write-ahead log"] if rewrite.tables and rewrite.log else []
    return [*([f"Rewrote {', '.join(parts)}."] if parts else []), *rewrite.remaining]


def _describe_search(search: FileSearch) -> list[str]:
    searched = f"{format_count(search.files, 'file')} of the store ({search.bytes / 1e6:,.1f} MB)"
    lines = [f"Not in any of {searched}."] if search.files else []
    if search.matches:
        lines = [f"Found in {len(search.matches):,} of {searched}: {', '.join(search.matches)}."]
    return [*lines, f"Not searched: {'; '.join(search.unsearched)}."]


def _describe_forgotten(result: ForgetResult, has_learned: bool) -> str:
    if not result:
        return f"{'No fixes or lessons yet' if has_learned else 'No match'}. Nothing was deleted."
    if has_learned:
        fixes = "1 fix" if result.fixes == 1 else f"{result.fixes:,} fixes"
        return f"Deleted {fixes} and {format_count(result.lessons, 'lesson')}. Runs stay."
    counts = {"run": result.runs, "step": result.steps, "pattern": result.patterns, "message": result.messages}
    counts["stored value"] = result.key_value_entries
    return f"Deleted {', '.join(format_count(number, noun) for noun, number in counts.items() if number)}."


def _resolve_run_id(store: Store, prefix: str) -> str:
    matches = store.find(DEFAULT_TENANT, prefix, limit=2)
    if len(matches) > 1 and not any(match.id == prefix for match in matches):
        raise SettingsError(f"Several runs start with {prefix!r}. Type more of the id. Nothing was deleted.")
    return matches[0].id if len(matches) == 1 else prefix


@command("mulligan backup backup-$(date +%F).db")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
def backup(context: CommandContext, file: Path, force: bool) -> None:
    """Back up the store to FILE: a consistent snapshot, taken while the store is in use.

    The backup is a store: read it with --store FILE.
    """
    if file.exists() and not force:
        raise SettingsError(f"{file} already exists. Name another file, or replace it: --force")
    _check_folder(file)
    store = context.require_store()
    with show_progress_bar("copying") as report_progress:
        health = store.backup(file, report_progress, replaces=force)
    size = file.stat().st_size
    counts = f"{format_count(health.runs, 'run')}, {format_count(health.steps, 'step')}, {size / 1e6:,.1f} MB"
    facts = dict(to_builtins(health)) | {"where": str(file), "bytes": size}
    context.print(facts, f"{counts} in {file}. Integrity check passed.")


def _check_folder(file: Path) -> None:
    if not file.absolute().parent.is_dir():
        raise SettingsError(f"Folder {file.parent} does not exist. Create it: mkdir -p '{file.parent}'")


@command(
    "mulligan copy mulligan.db elsewhere.db",
    "mulligan copy mulligan.db postgresql://db.example.com/mulligan",
    "mulligan copy mulligan.db elsewhere.db --check",
    "mulligan copy team.db ada.db --tenant ada --as local",
    has_store=False,
)
@click.argument("source", metavar="FROM")
@click.argument("to", metavar="TO")
@click.option("--tenant", metavar="NAME", help="Copy only this tenant.")
@click.option("--as", "renamed", metavar="NAME", help="Name of that tenant in TO.")
@click.option("--check", is_flag=True, help="Compare only: report how TO differs from FROM.")
def copy(context: CommandContext, source: str, to: str, tenant: str | None, renamed: str | None, check: bool) -> None:
    """Copy every row of the store FROM into the store TO, then compare both.

    FROM may be in use: the copy is a snapshot of its start. Run the command again to add newer rows, or to resume an
    interrupted copy. TO must be empty, or a copy of FROM that was not written to since. Exits 1 and lists the
    differences if the stores differ at the end.
    """
    if renamed is not None and tenant is None:
        raise SettingsError("--as renames one tenant, so it needs --tenant. Use: --tenant NAME --as NAME")
    for url in (source, to):
        if urls.is_remote(url):
            raise SettingsError(
                f"{url} is a server, which does not expose all tables. Copy its store on the server's machine, or move "
                "runs only with mulligan export and mulligan import."
            )
        _check_persistent(url)
    if _identify_store(source) == _identify_store(to):
        raise SettingsError("FROM and TO are the same store. Name another TO.")
    if not urls.is_postgres(to):
        _check_folder(urls.sqlite_path(to))
    origin_store = open_existing_store(load_settings(source))  # imports orphaned journals: the copy is complete
    if origin_store is None:
        raise SettingsError(f"Store {source} does not exist. Name the store to copy.")
    origin_store.close()
    if check and not urls.may_have_records(to):
        raise SettingsError(f"Store {to} does not exist. Copy it first: mulligan copy FROM TO")
    with (
        contextlib.closing(urls.open_endpoint(source, is_source=True)) as origin,
        contextlib.closing(urls.open_endpoint(to, is_source=False)) as destination,
        show_progress_bar("comparing" if check else "copying") as report_progress,
    ):
        store_copy = StoreCopy(origin, destination, tenant, renamed, report_progress)
        result = store_copy.compare() if check else store_copy.copy()
    context.print(msgspec.to_builtins(result) | {"same": not result.differences}, _describe_copy(result, check))
    sys.exit(1 if result.differences else 0)


def _check_persistent(url: str) -> None:
    if url.startswith("memory:"):
        raise SettingsError("A store in memory is lost when the command ends. Name a file or a database.")


def _identify_store(url: str) -> str:
    return urls.redact_password(url) if urls.is_postgres(url) else os.path.realpath(urls.sqlite_path(url))


def _describe_copy(result: CopyResult, check: bool) -> str:
    if result.differences:
        advice = "it cannot be opened until a copy succeeds. Run the same command again."
        if check:
            advice = "run the copy again, or copy to another store if TO was written to since."
        differences = map(_describe_difference, result.differences)
        return "\n".join([*differences, f"{result.to} differs from {result.source}: {advice}"])
    rows = format_count(result.rows, "row")
    if check:
        return f"Identical: {rows}, digest {result.digest}."
    tenants = format_count(len([tenant for tenant in result.tenants if tenant]), "tenant")
    new = "" if result.put == result.rows else f", {result.put:,} new"
    removed = f", {result.removed:,} replaced or removed" if result.removed else ""
    return f"{rows} of {tenants} in {result.to}{new}{removed}. Both stores are identical, digest {result.digest}."


def _describe_difference(difference: Difference) -> str:
    parts = [(difference.missing, "missing"), (difference.altered, "changed"), (difference.extra, "only in TO")]
    summary = ", ".join(f"{number:,} {state}" for number, state in parts if number)
    tenant = f" of {to_line(difference.tenant, 60)!r}" if difference.tenant else ""
    rows = "\n".join(f"  {to_line(row, 200)}" for row in difference.rows)
    return f"{difference.table}{tenant}: {summary}\n{rows}"


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


@command("mulligan migrate --dry-run", "mulligan migrate --store ./failures.db --json")
@click.option("--dry-run", is_flag=True, help="Print the planned changes only; exits 1 if there are any.")
def migrate(context: CommandContext, dry_run: bool) -> None:
    """Migrate a store to the current schema version, or create a new store.

    In PostgreSQL it also turns on row-level security in tables that lack it.

    The migration runs in one transaction and cannot be undone. Back up the store first: mulligan backup.
    """
    url = context.settings.store_url
    if urls.is_remote(url):
        raise SettingsError(f"{url} is a server. Migrate its store on the server's machine.")
    _check_persistent(url)
    plan = _plan_migration(url)
    if not dry_run:
        with show_progress_bar("migrating the store") as report_progress:
            urls.open_store(url, progress=report_progress).close()
        if urls.is_postgres(url):
            from mulligan.store.postgres.postgres_diagnostics import enable_missing_row_security  # needs the extra

            enable_missing_row_security(url)
        after = _plan_migration(url)
        if after.is_due:
            raise StoreError(f"{after.where} still has schema {after.schema} instead of {after.newest}.")
    text = f"{plan.where} is up to date (schema {plan.schema})."
    if plan.is_due:
        verbs = ("migrate", "Migrated") if plan.schema else ("create", "Created")
        action = f"{f'Would {verbs[0]}' if dry_run else verbs[1]} {plan.where}"
        versions = f"from schema {plan.schema} to" if plan.schema else "with schema"
        text = f"{action} {versions} {plan.newest}: {format_count(plan.statements, 'statement')}."
    context.print(msgspec.structs.asdict(plan) | {"dry_run": dry_run}, text)
    sys.exit(1 if dry_run and plan.is_due else 0)


def _plan_migration(url: str) -> MigrationPlan:
    """Return the plan for a store and change nothing. Raise StoreError if it is newer than this version or no store."""
    if urls.is_postgres(url):
        urls.require_psycopg()
        from mulligan.store.postgres.postgres_diagnostics import read_schema_version_at  # needs the extra

        where, version = urls.redact_password(url), read_schema_version_at(url)
    else:
        path = urls.sqlite_path(url)
        where, version = str(path), sqlite.read_schema_version_at(path) if path.exists() else 0
    statements = sum(map(len, MIGRATIONS[version:]))
    return MigrationPlan(where=where, schema=version, newest=len(MIGRATIONS), statements=statements)
