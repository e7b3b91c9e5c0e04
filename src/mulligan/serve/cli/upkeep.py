"""mulligan prune, mulligan forget and mulligan backup."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

import click

from mulligan.failure import SettingsError
from mulligan.records import builtins
from mulligan.remember.store import DAY, LOCAL, Forget, Pruned, Retention, Store
from mulligan.remember.urls import is_remote
from mulligan.report.tables import count, line
from mulligan.serve.cli.options import as_json, now, opened, print_json, progress, settings_with, store_option


def _opened(store: str | None) -> Store:
    settings = settings_with(store)
    kept = opened(settings)
    if kept is None:
        raise SettingsError(f"there is no {settings.store_url} yet, and nothing to do. Name another: --store.")
    return kept


def _tenants(kept: Store, url: str, tenant: str | None, is_all: bool) -> list[tuple[str, Retention]]:
    """Return the selected tenants with their retention."""
    if is_remote(url):
        if tenant is not None or is_all:
            raise SettingsError(f"at {url} you are the tenant of your token. Leave out --tenant and --all-tenants.")
        return [(LOCAL, Retention())]
    from mulligan.serve.api.tenants import Tenants, unknown  # needed by few commands

    tenants = Tenants(kept)
    if is_all:
        return [(each.name, each.retention) for each in tenants.everybody()]
    one = tenants.find(tenant or LOCAL)
    if one is None:
        raise unknown(tenant or LOCAL)
    return [(one.name, one.retention)]


def _together(one: Pruned, other: Pruned) -> Pruned:
    """Add the counts of two tenants. The file size is the one before the first and after the last."""
    sums = {name: getattr(one, name) + getattr(other, name) for name in one.__struct_fields__}
    return Pruned(**sums | {"before": one.before or other.before, "after": other.after})


def _days(value: int | None, default: int | None) -> int | None:
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
    kept = _opened(store)
    done = Pruned()
    for name, usual in _tenants(kept, settings_with(store).store_url, tenant, all_tenants):
        policy = Retention(
            failures=_days(failures, usual.failures),
            successes=_days(successes, usual.successes),
            hours=usual.hours,
            size=None if size is None else size * 1_000_000,
            sample=usual.sample if sample is None else sample,
            imports=imports,
        )
        with progress(f"pruning {name}" if name != LOCAL else "pruning") as told:
            done = _together(done, kept.prune(name, policy, now(), dry_run, told))
    if as_json:
        print_json({"dry_run": dry_run, **{name: getattr(done, name) for name in done.__struct_fields__}})
        return
    would = "Would remove" if dry_run else "Removed"
    what = f"{count(done.runs, 'run')} with {count(done.steps, 'step')}"
    more = [
        f"{count(done.sampled, 'step')} of plain successes" if done.sampled else "",
        f"{count(done.counters, 'counter')} by the hour" if done.counters else "",
    ]
    click.echo(f"{would} {', '.join(filter(None, [what, *more]))}.")
    if done.compressed:
        click.echo(f"{'Would compress' if dry_run else 'Compressed'} {count(done.compressed, 'record')}.")
    if not dry_run and done.before:
        click.echo(f"The file has {done.after / 1e6:,.1f} MB; it had {done.before / 1e6:,.1f}.")


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
    given = {name: value for name, value in locals().items() if name in WHAT and value not in (None, False)}
    if len(given) != 1:
        raise SettingsError("Name one thing to forget: --run, --tool, --session, --text or --learned.")
    ((name, value),) = given.items()
    if name == "learned":
        _forget_learned(_opened(store), yes, as_json)
    if name == "text" and value == "-":
        value = sys.stdin.read().rstrip("\r\n")
    if not value:
        raise SettingsError(f"--{name} is empty, and would mean everything. Nothing was forgotten.")
    kept = _opened(store)
    if name == "run":
        value = _run(kept, value)
    if not yes:
        _sure(f"Forget {WHAT[name]} {line(value, 60)!r} for ever?" if name != "text" else "Forget this text for ever?")
    done = kept.forget(LOCAL, Forget(**{name: value}))
    if as_json:
        print_json({name: getattr(done, name) for name in done.__struct_fields__})
    elif not done:
        click.echo("Nothing of it was found.")
    else:
        parts = [("run", done.runs), ("step", done.steps), ("pattern", done.patterns), ("note", done.shelf)]
        click.echo(f"Forgot {', '.join(count(number, noun) for noun, number in parts if number)}.")
    sys.exit(0 if done else 1)


WHAT = {"run": "the run", "tool": "the tool", "session": "the session", "text": "the text", "learned": "memory"}


def _forget_learned(kept: Store, yes: bool, as_json: bool) -> NoReturn:
    """Delete fixes and lessons but keep the runs. Exit 1 if nothing was learned."""
    if not yes:
        _sure("Forget all fixes and lessons learned so far? Runs and patterns stay.")
    done = kept.forget(LOCAL, Forget(learned=now()))
    if as_json:
        print_json({name: getattr(done, name) for name in done.__struct_fields__})
    elif not done:
        click.echo("Nothing was learned yet.")
    else:
        fixes = "1 fix" if done.fixes == 1 else f"{done.fixes:,} fixes"
        click.echo(f"Forgot {fixes} and {count(done.lessons, 'lesson')}. The history stays.")
    sys.exit(0 if done else 1)


def _run(kept: Store, prefix: str) -> str:
    matches = kept.find(LOCAL, prefix, limit=2)
    if len(matches) > 1 and not any(each.id == prefix for each in matches):
        raise SettingsError(f"more than one run begins with {prefix!r}. Type more of the id. Nothing was forgotten.")
    return matches[0].id if len(matches) == 1 else prefix


def _sure(question: str) -> None:
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
    kept = _opened(store)
    with progress("copying") as told:
        health = kept.backup(file, told, replaces=force)
    size = file.stat().st_size
    if as_json:
        print_json(dict(builtins(health)) | {"where": str(file), "bytes": size})
    else:
        click.echo(
            f"{count(health.runs, 'run')}, {count(health.steps, 'step')}, {size / 1e6:,.1f} MB in {file}. It is sound."
        )
