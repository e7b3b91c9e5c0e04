"""mulligan copy and mulligan migrate: copy a store, or migrate its schema."""

from __future__ import annotations

import os
import sys

import click

from mulligan.failure import SettingsError
from mulligan.remember.moving import between as moving
from mulligan.remember.moving import migrating
from mulligan.remember.moving.between import Copied, Difference, Move
from mulligan.remember.moving.migrating import Plan
from mulligan.remember.urls import is_begun, is_postgres, is_remote, shown, sqlite_path
from mulligan.report.tables import count, line
from mulligan.serve.cli.options import as_json, opened, print_json, progress, settings_with, store_option


@click.command(
    epilog="Examples:\n\n  mulligan copy mulligan.db elsewhere.db\n\n"
    "  mulligan copy mulligan.db postgresql://db.example.com/mulligan\n\n"
    "  mulligan copy mulligan.db elsewhere.db --check\n\n  mulligan copy team.db ada.db --tenant ada --as local"
)
@click.argument("source", metavar="FROM")
@click.argument("to", metavar="TO")
@click.option("--tenant", metavar="NAME", help="Only what belongs to this tenant.")
@click.option("--as", "renamed", metavar="NAME", help="What that tenant is called in TO.")
@click.option("--check", is_flag=True, help="Copy nothing; only say in what TO differs from FROM.")
@as_json
def copy(source: str, to: str, tenant: str | None, renamed: str | None, check: bool, as_json: bool) -> None:
    """Copy everything in the store FROM into the store TO: every row of every table, compared at the end.

    Others may write to FROM meanwhile: it is copied as it was when the copy began, and the same command again brings
    what is new. Killed half-way, it goes on where it was. TO must be empty, or a copy of FROM that nobody has written
    to since. Exits 1 when the two are not the same at the end, and says in what.
    """
    if renamed is not None and tenant is None:
        raise SettingsError("--as names one tenant anew. Say which: --tenant NAME --as NAME")
    for url in (source, to):
        _check(url)
    _check_apart(source, to)
    _adopt(source)
    if check and not is_begun(to):
        raise SettingsError(f"there is no {to} to be checked. Copy it first: mulligan copy FROM TO")
    origin = moving.opened(source, is_source=True)
    try:
        other = moving.opened(to, is_source=False)
        try:
            with progress("comparing" if check else "copying") as told:
                move = Move(origin, other, tenant, renamed, told)
                copied = move.compare() if check else move.copy()
        finally:
            other.close()
    finally:
        origin.close()
    _tell(copied, check, as_json)
    sys.exit(1 if copied.differences else 0)


def _check(url: str) -> None:
    if is_remote(url):
        raise SettingsError(
            f"{url} is a server, through which not everything can be had. Copy its store where it runs; runs alone "
            "come out of it and into it with mulligan export and mulligan import."
        )
    if url.startswith("memory:"):
        raise SettingsError("a store in memory is gone when the command ends. Name a file, or a database.")


def _check_apart(source: str, to: str) -> None:
    if not is_postgres(to):
        other = sqlite_path(to)
        if (
            other.exists()
            and not is_postgres(source)
            and os.path.realpath(sqlite_path(source)) == os.path.realpath(other)
        ):
            raise SettingsError("FROM and TO are the same store. Name another TO.")
        if not other.absolute().parent.is_dir():
            raise SettingsError(f"there is no folder {other.parent}. Make it first: mkdir -p '{other.parent}'")
    elif shown(source) == shown(to):
        raise SettingsError("FROM and TO are the same store. Name another TO.")


def _adopt(source: str) -> None:
    """Import orphaned journals before the copy, so that it is complete."""
    kept = opened(settings_with(source))
    if kept is None:
        raise SettingsError(f"there is no {source}. Name the store that is to be copied.")
    kept.close()


def _tell(copied: Copied, check: bool, as_json: bool) -> None:
    if as_json:
        facts = {name: getattr(copied, name) for name in copied.__struct_fields__}
        differences = [{name: getattr(each, name) for name in each.__struct_fields__} for each in copied.differences]
        print_json(facts | {"differences": differences, "same": not differences})
        return
    for each in copied.differences:
        click.echo(_difference(each))
    if copied.differences:
        again = "copy again, or to another place if it was written to since."
        shut = "it stays shut until a copy succeeds. Try the same command again."
        click.echo(f"{copied.to} is not the same as {copied.source}: {again if check else shut}")
    elif check:
        click.echo(f"The same: {count(copied.rows, 'row')}, digest {copied.digest}.")
    else:
        whose = count(len([tenant for tenant in copied.tenants if tenant]), "tenant")
        anew = "" if copied.put == copied.rows else f", of which {copied.put:,} were new"
        gone = f", {copied.removed:,} replaced or removed" if copied.removed else ""
        click.echo(
            f"{count(copied.rows, 'row')} of {whose} in {copied.to}{anew}{gone}. The same on both sides, digest "
            f"{copied.digest}."
        )


def _difference(each: Difference) -> str:
    parts = [(each.missing, "missing"), (each.changed, "changed"), (each.extra, "only there")]
    told = ", ".join(f"{number:,} {how}" for number, how in parts if number)
    whose = f" of {line(each.tenant, 60)!r}" if each.tenant else ""
    return f"{each.table}{whose}: {told}\n" + "\n".join(f"  {line(row, 200)}" for row in each.rows)


@click.command(epilog="Examples:\n\n  mulligan migrate --dry-run\n\n  mulligan migrate --store ./failures.db --json")
@click.option("--dry-run", is_flag=True, help="Only say what would be done; exits 1 if there is anything.")
@store_option
@as_json
def migrate(dry_run: bool, store: str | None, as_json: bool) -> None:
    """Bring a store that an earlier version of mulligan made up to date, or make a new one.

    It is done as a whole or not at all. There is no way back: make a copy first, with mulligan backup.
    """
    url = settings_with(store).store_url
    if is_remote(url):
        raise SettingsError(f"{url} is a server. Bring its store up to date where it runs.")
    _check(url)
    if dry_run:
        plan = migrating.plan(url)
    else:
        with progress("bringing the store up to date") as told:
            plan = migrating.migrate(url, told)
    if as_json:
        print_json({name: getattr(plan, name) for name in plan.__struct_fields__} | {"dry_run": dry_run})
    else:
        click.echo(_told(plan, dry_run))
    sys.exit(1 if dry_run and plan.is_due else 0)


def _told(plan: Plan, dry_run: bool) -> str:
    if not plan.is_due:
        return f"{plan.where} is up to date (schema {plan.schema})."
    work = [
        count(plan.statements, "statement"),
        f"{count(plan.sums, 'sum')} packed anew" if plan.sums else "",
        f"{count(plan.runs, 'run')} counted anew" if plan.runs else "",
    ]
    told = ", ".join(filter(None, work))
    if not plan.schema:
        return f"{'Would make' if dry_run else 'Made'} {plan.where} with schema {plan.newest}: {told}."
    verb = "Would bring" if dry_run else "Brought"
    return f"{verb} {plan.where} from schema {plan.schema} to {plan.newest}: {told}."
