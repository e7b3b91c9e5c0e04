"""mulligan replay: which recorded failures would recover with the current memory and policy, and at what cost."""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import click

from mulligan.capture.counterfactual import Known, replayed
from mulligan.capture.transcripts import formats
from mulligan.capture.transcripts.gathering import Reading
from mulligan.capture.transcripts.lines import Lines, Unreadable
from mulligan.failure import Failure, SettingsError
from mulligan.parts import classify_of, redactor_of
from mulligan.records import Effects, Fix, History, builtins
from mulligan.remember.store import LOCAL, FixQuery, Store
from mulligan.remember.urls import open_store
from mulligan.report import replay as report
from mulligan.serve.cli.exchange import Importer, progress
from mulligan.serve.cli.options import (
    as_json,
    moment,
    now,
    opened,
    print_json,
    print_lines,
    settings_with,
    store_option,
    width,
)
from mulligan.settings import Settings

OURS = b"SQLite format 3\x00"
OFTEN = 0.2
"""Interval between two progress updates."""


@click.command(
    epilog="Examples:\n\n  mulligan replay\n\n  mulligan replay --since 7d --tools tools.json\n\n  "
    "mulligan replay calls.jsonl.gz --memory team.db --json"
)
@click.argument("file", required=False, metavar="[FILE]")
@click.option("--memory", metavar="FILE", help="What is remembered: a store, or a log to learn from. Else the store.")
@click.option("--no-memory", is_flag=True, help="Rules alone: schemas, errors, and the run itself.")
@click.option("--tools", "described", metavar="FILE", help="JSON with the tools' schemas: by name, or a list of tools.")
@click.option("--effects", type=click.Choice(get_args(Effects)), help="Of tools of which the record does not say it.")
@click.option("--since", "past", metavar="7d", help="Only runs begun within this time: 30m, 24h, 7d, 2w, a date.")
@click.option("--cases", is_flag=True, help="Each failure as a line of JSON, instead of the sums.")
@store_option
@as_json
def replay(
    file: str | None,
    memory: str | None,
    no_memory: bool,
    described: str | None,
    effects: Effects | None,
    past: str | None,
    cases: bool,
    store: str | None,
    as_json: bool,
) -> None:
    """Which recorded failures would today's memory and policy have overcome?

    Reads the runs of the store, or of FILE (an export, recorded calls, a session log), as if tools had mode=repair.
    Nothing is called: a move counts only where the record shows it working later. A run teaches nothing about itself.
    Schemas are not recorded; name them with --tools.
    """
    if memory and no_memory:
        raise click.UsageError("--memory and --no-memory exclude each other.")
    if file and store:
        raise click.UsageError("name a file, or a store with --store; what is remembered is named with --memory.")
    settings = settings_with(store)
    begun = moment(past)
    tools = _tools(described) if described else {}
    kept = opened(settings)
    if kept is None and not file:
        raise SettingsError(f"there is no {settings.store_url} yet. Name a file, or another store: --store.")
    summary = report.Summary()
    with contextlib.ExitStack() as closing:
        if kept is not None:
            closing.callback(kept.close)
        source = kept if not no_memory else None
        if memory:
            source = closing.enter_context(_memory(Path(memory), settings))
        known = _known(source) if source is not None else None
        for history in _histories(file, kept, settings, begun):
            made = list(replayed(history, policy=settings.policy, known=known, tools=tools, effects=effects))
            summary.add(made)
            if cases:
                for each in made:
                    click.echo(json.dumps({"overcome": False, **builtins(each)}))
    if cases:
        return
    if as_json:
        print_json(summary.facts())
    else:
        print_lines(report.told(summary, width()))


def _known(source: Store) -> Known:
    def known(
        tool: str, key: str, failure: Failure, arguments: Mapping[str, Any], schema: str, run: str
    ) -> Sequence[Fix]:  # fmt: skip
        if not failure.fingerprint:
            return ()
        return source.fixes(
            LOCAL, FixQuery.about(tool, failure, arguments, key=key, schema=schema, without=run, now=now())
        )  # fmt: skip

    return known


def _histories(file: str | None, kept: Store | None, settings: Settings, begun: int | None) -> Iterator[History]:
    if file is not None:
        for history in _read(Path(file), settings):
            if begun is None or history.run.started >= begun:
                yield history
        return
    assert kept is not None
    whole = kept.health(LOCAL).runs if sys.stderr.isatty() else 0
    told = 0.0
    for number, history in enumerate(kept.export(LOCAL, begun or 0), 1):
        yield history
        if whole > 1000 and time.monotonic() - told > OFTEN:
            told = time.monotonic()
            click.echo(f"\r\x1b[Kreplaying: {number:,} of {whole:,} runs", nl=False, err=True)
    if told:
        click.echo("\r\x1b[K", nl=False, err=True)


@contextlib.contextmanager
def _lines(path: Path) -> Iterator[tuple[Lines, formats.Format]]:
    try:
        with Lines(path) as lines:
            format = formats.recognised(lines)
            if format is None:
                raise Unreadable(f"it is none of {', '.join(sorted(formats.FORMATS))}")
            yield lines, format
            if lines.damage:
                click.echo(f"warning: {path}: {lines.damage}.", err=True)
    except Unreadable as error:
        raise SettingsError(f"{path}: {error}.".replace("..", ".")) from None


def _read(path: Path, settings: Settings) -> Iterator[History]:
    if _is_store(path):
        raise SettingsError(f"{path} is a store. Replay it with --store {path}")
    reading = Reading(classify_of(settings), keeps_results=True)
    with _lines(path) as (lines, format), progress(lines.size, f"replaying {path.name[:40]}") as told:
        for history in format.read(lines, reading):
            yield history
            told(lines.done)


def _is_store(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(OURS)) == OURS
    except OSError as error:
        raise SettingsError(f"{path} cannot be read ({error.strerror}).") from None


@contextlib.contextmanager
def _memory(path: Path, settings: Settings) -> Iterator[Store]:
    """Open the named store, or build a temporary one from a log."""
    if _is_store(path):
        with contextlib.closing(open_store(str(path))) as kept:
            yield kept
        return
    with (
        tempfile.TemporaryDirectory(prefix="mulligan-") as folder,
        contextlib.closing(open_store(str(Path(folder) / "memory.db"))) as learned,
    ):
        importer = Importer(learned, redactor_of(settings))
        with _lines(path) as (lines, format), progress(lines.size, f"learning from {path.name[:40]}") as told:
            for _ in importer.histories(lines, format, Reading(classify_of(settings), keeps_results=True)):
                told(lines.done)
        yield learned


def _tools(file: str) -> dict[str, Mapping[str, Any] | None]:
    """Read tool schemas: an object by name, or a list of tools as providers and MCP servers return it."""
    wanted = (
        'a JSON object of schemas by name, or a list of tools, such as {"tools": [{"name": ..., "inputSchema": ...}]}'
    )
    try:
        given = json.loads(Path(file).read_bytes())
    except OSError as error:
        raise SettingsError(f"{file} cannot be read ({error.strerror}).") from None
    except (ValueError, RecursionError):
        raise SettingsError(f"{file} is not JSON; --tools takes {wanted}.") from None
    if isinstance(given, dict) and isinstance(given.get("tools"), list):
        given = given["tools"]
    if isinstance(given, list):
        named = [(_name(each), each) for each in given]
        if all(isinstance(name, str) for name, _ in named):
            return {str(name): each for name, each in named}
    elif isinstance(given, dict) and all(isinstance(each, dict) for each in given.values()):
        return given
    raise SettingsError(f"{file}: --tools takes {wanted}.")


def _name(tool: Any) -> Any:
    if not isinstance(tool, dict):
        return None
    inner = tool.get("function")
    return inner.get("name") if isinstance(inner, dict) else tool.get("name")
