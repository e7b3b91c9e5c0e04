"""mulligan replay: which recorded failures would recover with the current memory and policy, and at what cost."""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import click

from mulligan.build import build_classifier, build_redactor
from mulligan.capture.suggestions import replay_failures
from mulligan.cli.analyze import build_fix_lookup
from mulligan.cli.import_export import Importer, open_log
from mulligan.cli.options import CommandContext, command, parse_time_option, show_progress_bar
from mulligan.contract.store import DEFAULT_TENANT, Store
from mulligan.core.failure import SettingsError
from mulligan.core.records import Effects, History, to_builtins
from mulligan.report import replay_report as report
from mulligan.settings import Settings
from mulligan.store.urls import open_store
from mulligan.transcripts.run_builder import ReaderState

SQLITE_HEADER = b"SQLite format 3\x00"


@command(
    "mulligan replay",
    "mulligan replay --since 7d --tools tools.json",
    "mulligan replay calls.jsonl.gz --memory team.db --json",
)
@click.argument("file", required=False, metavar="[FILE]")
@click.option(
    "--memory", metavar="FILE", help="Memory to use: a store, or a log to learn from. Default: the store itself."
)
@click.option("--no-memory", is_flag=True, help="Use no memory, only rules: schemas, errors and the run itself.")
@click.option(
    "--tools", "described", metavar="FILE", help="JSON file with the tools' schemas, by name or as a list of tools."
)
@click.option(
    "--effects", type=click.Choice(get_args(Effects)), help="Side effects of tools for which the record has none."
)
@click.option("--since", "past", metavar="7d", help="Only runs started within this time: 30m, 24h, 7d, 2w, a date.")
@click.option("--cases", is_flag=True, help="Print one JSON line per failure instead of the summary.")
def replay(
    context: CommandContext,
    file: str | None,
    memory: str | None,
    no_memory: bool,
    described: str | None,
    effects: Effects | None,
    past: str | None,
    cases: bool,
) -> None:
    """Replay recorded failures: which would recover with the current memory and policy?

    Reads the runs of the store, or of FILE (an export, recorded calls, a session log), and assumes mode=repair. Nothing
    is called: a repair counts only if the record shows a later success. A run never learns from itself. Tool schemas
    are not recorded; pass them with --tools.
    """
    if memory and no_memory:
        raise click.UsageError("--memory and --no-memory exclude each other. Remove one of them.")
    if file and context.store_option:
        raise click.UsageError("FILE and --store exclude each other. Pass one of them; name the memory with --memory.")
    settings = context.settings
    since = parse_time_option(past)
    tools = _read_schemas(described) if described else {}
    store = context.find_store() if file else context.require_store()
    summary = report.ReplaySummary()
    with contextlib.ExitStack() as closing:
        if store is not None:
            closing.callback(store.close)
        source = store if not no_memory else None
        if memory:
            source = closing.enter_context(_open_memory(Path(memory), settings))
        lookup_fixes = build_fix_lookup(source) if source is not None else None
        for history in _select_histories(file, store, settings, since):
            options: dict[str, Any] = {"recall_fixes": lookup_fixes, "tools": tools, "effects": effects}
            results = list(replay_failures(history, policy=settings.policy, **options))
            summary.add(results)
            for result in results if cases else ():
                click.echo(json.dumps({"recovered": False, **to_builtins(result)}))
    if not cases:
        context.print(summary.to_facts(), report.render_summary(summary, context.width))


def _select_histories(
    file: str | None, store: Store | None, settings: Settings, since: int | None
) -> Iterator[History]:
    if file is not None:
        path = Path(file)
        if _is_store(path):
            raise SettingsError(f"{path} is a store, not a log. Replay it with --store {path}")
        reading = ReaderState(build_classifier(settings), keeps_results=True)
        with open_log(path, "replaying") as (lines, format, report_bytes):
            for history in format.read(lines, reading):
                if since is None or history.run.started_at >= since:
                    yield history
                report_bytes(lines.bytes_read)
        return
    assert store is not None
    total_runs = store.health(DEFAULT_TENANT).runs if sys.stderr.isatty() else 0
    with show_progress_bar("replaying") as report_progress:
        for number, history in enumerate(store.export(DEFAULT_TENANT, since or 0), 1):
            yield history
            if total_runs > 1000 and number % 100 == 0:
                report_progress(number, total_runs)


def _is_store(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(SQLITE_HEADER)) == SQLITE_HEADER
    except OSError as error:
        raise SettingsError(f"Cannot read {path} ({error.strerror}).") from None


@contextlib.contextmanager
def _open_memory(path: Path, settings: Settings) -> Iterator[Store]:
    """Open the named store, or build a temporary one from a log."""
    if _is_store(path):
        with contextlib.closing(open_store(str(path))) as store:
            yield store
        return
    with (
        tempfile.TemporaryDirectory(prefix="mulligan-") as folder,
        contextlib.closing(open_store(str(Path(folder) / "memory.db"))) as learned_store,
    ):
        importer = Importer(learned_store, build_redactor(settings))
        reading = ReaderState(build_classifier(settings), keeps_results=True)
        with open_log(path, "learning from") as (lines, format, report_bytes):
            for _ in importer.import_histories(lines, format, reading):
                report_bytes(lines.bytes_read)
        yield learned_store


def _read_schemas(file: str) -> dict[str, Mapping[str, Any] | None]:
    """Read tool schemas: an object by name, or a list of tools as providers and MCP servers return it."""
    expected_format = (
        'a JSON object of schemas by name, or a list of tools, such as {"tools": [{"name": ..., "inputSchema": ...}]}'
    )
    try:
        document = json.loads(Path(file).read_bytes())
    except OSError as error:
        raise SettingsError(f"Cannot read {file} ({error.strerror}).") from None
    except (ValueError, RecursionError):
        raise SettingsError(f"{file} is not JSON. --tools needs {expected_format}.") from None
    if isinstance(document, dict) and isinstance(document.get("tools"), list):
        document = document["tools"]
    if isinstance(document, list):
        definitions = [tool.get("function", tool) if isinstance(tool, dict) else None for tool in document]
        names = [definition.get("name") if isinstance(definition, dict) else None for definition in definitions]
        document = dict(zip(names, document, strict=True))
    if isinstance(document, dict) and all(
        isinstance(name, str) and isinstance(schema, dict) for name, schema in document.items()
    ):
        return document
    raise SettingsError(f"{file} has another layout. --tools needs {expected_format}.")
