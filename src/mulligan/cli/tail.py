"""mulligan tail."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NoReturn

import click

from mulligan import logging
from mulligan.cli.lists import filter_options
from mulligan.cli.options import as_json, load_settings, now_ms, open_existing_store, store_option, terminal_width
from mulligan.core.events import RunEnded, StepEnded
from mulligan.core.records import encode
from mulligan.report.resources import STEP_SPEC
from mulligan.report.tables import truncate
from mulligan.report.tail_reader import START_LOOKBACK_MS, TailReader
from mulligan.store.urls import is_networked, redact_password, sqlite_path

POLL_INTERVAL_SECONDS = 0.5
"""Interval between two reads of the store."""


@click.command(epilog="Examples:\n\n  mulligan tail --failures\n\n  mulligan tail --tool search --json | jq .step.name")
@filter_options(STEP_SPEC)
@click.option(
    "--lines",
    default=10,
    show_default=True,
    type=click.IntRange(0),
    help="Number of attempts of the last hour to print first.",
)
@store_option
@as_json
def tail(lines: int, store: str | None, as_json: bool, **filters: Any) -> NoReturn:
    """Print every attempt as it ends, until you press Ctrl-C. With --json, one JSON object per line."""
    settings = load_settings(store)
    existing_store = open_existing_store(settings)
    if existing_store is None:
        click.echo(f"Store {redact_password(settings.store_url)} does not exist yet; waiting for it.", err=True)
    url = settings.store_url
    path = None if url.startswith("memory:") or is_networked(url) else sqlite_path(url)
    tail_reader = TailReader(STEP_SPEC.build_query(filters), now_ms() - START_LOOKBACK_MS)
    previous_stamp: object = None
    is_first = True
    while True:
        existing_store = existing_store or open_existing_store(settings)
        stamp = _file_stamp(path) if path is not None else None
        if existing_store is not None and (stamp is None or stamp != previous_stamp):
            previous_stamp = stamp
            new_events = tail_reader.poll(existing_store)
            skipped = max(0, len(new_events) - lines) if is_first else 0
            for event, agent in new_events[skipped:]:
                _print_event(event, agent, as_json)
            is_first = False
        time.sleep(POLL_INTERVAL_SECONDS)


def _file_stamp(path: Path) -> tuple[tuple[int, int], ...]:
    """Return a value that changes with every write, so that an idle store is not read."""
    stamps = []
    for file_path in (path, path.with_name(f"{path.name}-wal")):
        try:
            stat = file_path.stat()
            stamps.append((stat.st_mtime_ns, stat.st_size))
        except FileNotFoundError:
            stamps.append((0, 0))
    return tuple(stamps)


def _print_event(event: StepEnded | RunEnded, agent: str, as_json: bool) -> None:
    if as_json:
        click.echo(encode(event).decode())
    else:
        text, columns = logging.format_event(event, agent), terminal_width()
        click.echo(text if columns is None else truncate(text, columns))
