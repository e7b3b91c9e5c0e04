"""mulligan tail."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import click

from mulligan.events import RunEnded, StepEnded
from mulligan.records import History, Step, encode
from mulligan.remember.store import LOCAL, RunQuery, Store
from mulligan.remember.urls import sqlite_path
from mulligan.report import log
from mulligan.report.tables import cut
from mulligan.serve.cli.options import as_json, kind_option, now, opened, settings_with, store_option, width

EVERY = 0.5
"""Seconds between two looks."""
BEGUN = 3_600_000
"""Milliseconds before the first look: a run that has gone on longer than that is not heard of."""
RUNS = 200
"""Runs looked at each time."""


class Watch:
    """Tells each attempt and each end of a run once, in the order in which they ended."""

    def __init__(self, begun: int, query: RunQuery, tool: str | None, kind: str | None, failures: bool) -> None:
        self._begun = begun
        self._query = query
        self._tool, self._kind, self._failures = tool, kind, failures
        self._told: set[tuple[str, int]] = set()

    def look(self, kept: Store) -> list[tuple[StepEnded | RunEnded, str]]:
        fresh: list[tuple[int, int, StepEnded | RunEnded, str]] = []
        for history in kept.runs(LOCAL, self._query):
            for at, event in self._events(history):
                key = (history.run.id, event.step.seq if isinstance(event, StepEnded) else 0)
                if key not in self._told:
                    self._told.add(key)
                    fresh.append((at, key[1] or sys.maxsize, event, history.run.agent))
        return [(event, agent) for _, _, event, agent in sorted(fresh, key=lambda each: each[:2])]

    def _events(self, history: History) -> Iterator[tuple[int, StepEnded | RunEnded]]:
        for step in history.steps:
            if self._is_asked(step):
                yield step.started + int(step.seconds * 1000), StepEnded(step)
        run = history.run
        if run.end is not None and not (self._failures or self._tool or self._kind):
            yield run.ended or run.started, RunEnded(run)

    def _is_asked(self, step: Step) -> bool:
        if self._failures and not step.has_failed:
            return False
        if self._tool is not None and step.name != self._tool:
            return False
        if self._kind is None:
            return True
        met = str(step.failure.kind) if step.failure is not None else ""
        return met.startswith(self._kind) if self._kind.endswith("/") else met == self._kind


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
        click.echo(f"There is no {settings.store_url} yet; waiting for it.", err=True)
    path = sqlite_path(settings.store_url) if not settings.store_url.startswith("memory:") else None
    begun = now() - BEGUN
    watch = Watch(begun, RunQuery(agent=agent, since=begun, limit=RUNS), tool, kind, failures)
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
    """What changes whenever anything is written, so that an idle store is not read."""
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
