"""mulligan tail."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NoReturn

import click

from mulligan.events import RunEnded, StepEnded
from mulligan.records import encode
from mulligan.remember.store import RunQuery
from mulligan.remember.urls import is_elsewhere, shown, sqlite_path
from mulligan.report import log
from mulligan.report.tables import cut
from mulligan.report.watch import BEGUN, RUNS, Watch
from mulligan.serve.cli.options import as_json, kind_option, now, opened, settings_with, store_option, width

EVERY = 0.5
"""Interval between two reads of the store."""


@click.command(epilog="Examples:\n\n  mulligan tail --failures\n\n  mulligan tail --tool search --json | jq .step.name")
@click.option("--agent", help="Only this agent's.")
@click.option("--tool", help="Only this tool's.")
@kind_option("Only failures of this kind, such as tool/timeout, or of a type (tool).")
@click.option("--failures", is_flag=True, help="Only what fails.")
@click.option("--lines", default=10, show_default=True, type=click.IntRange(0), help="How much of the last hour first.")
@store_option
@as_json
def tail(
    agent: str | None,
    tool: str | None,
    kind: str | None,
    failures: bool,
    lines: int,
    store: str | None,
    as_json: bool,
) -> NoReturn:
    """Every attempt as it ends, until you press Ctrl-C. With --json a line of JSON each."""
    settings = settings_with(store)
    kept = opened(settings)
    if kept is None:
        click.echo(f"There is no {shown(settings.store_url)} yet; waiting for it.", err=True)
    url = settings.store_url
    path = None if url.startswith("memory:") or is_elsewhere(url) else sqlite_path(url)
    begun = now() - BEGUN
    watch = Watch(RunQuery(agent=agent, since=begun, limit=RUNS), tool, kind, failures)
    seen: object = None
    is_first = True
    while True:
        kept = kept or opened(settings)
        stamp = _stamp(path) if path is not None else None
        if kept is not None and (stamp is None or stamp != seen):
            seen = stamp
            fresh = watch.look(kept)
            for event, of in fresh[len(fresh) - lines if lines < len(fresh) else 0 :] if is_first else fresh:
                _tell(event, of, as_json)
            is_first = False
        time.sleep(EVERY)


def _stamp(path: Path) -> tuple[tuple[int, int], ...]:
    """Return a value that changes with every write, so that an idle store is not read."""
    found = []
    for each in (path, path.with_name(f"{path.name}-wal")):
        try:
            stat = each.stat()
            found.append((stat.st_mtime_ns, stat.st_size))
        except FileNotFoundError:
            found.append((0, 0))
    return tuple(found)


def _tell(event: StepEnded | RunEnded, agent: str, as_json: bool) -> None:
    if as_json:
        click.echo(encode(event).decode())
    else:
        text, columns = log.spoken(event, agent), width()
        click.echo(text if columns is None else cut(text, columns))
