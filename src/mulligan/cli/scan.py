"""mulligan scan: failures in the session logs of this machine."""

from __future__ import annotations

import contextlib
import gc
import os
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click

from mulligan.build import build_classifier, build_redactor
from mulligan.cli.import_export import Importer
from mulligan.cli.options import (
    as_json,
    load_settings,
    now_ms,
    parse_time_option,
    print_json,
    print_lines,
    show_read_progress,
    store_option,
    terminal_width,
)
from mulligan.core.failure import SettingsError
from mulligan.core.records import History, to_builtins
from mulligan.redaction import Redactor
from mulligan.report import scan_text, tables
from mulligan.report.scan_page import render_page
from mulligan.report.scan_report import Findings, LogScan
from mulligan.store.urls import open_store
from mulligan.transcripts import formats
from mulligan.transcripts.log_lines import LogLines, UnreadableFileError
from mulligan.transcripts.run_builder import ReaderState

MAX_NAMED_FILES = 5
"""Number of unreadable files named in the output."""


class LogScanner:
    """Log files of a scan, with counts and unreadable files."""

    def __init__(self, paths: tuple[str, ...], since: int | None) -> None:
        self.since = since
        self.unreadable: list[tuple[Path, str]] = []
        self.locations = [formats.LogLocation("", Path(path)) for path in paths]
        self.locations = self.locations or formats.default_locations(os.environ, Path.home())
        self.files = list(self._find_files(has_explicit_paths=bool(paths)))
        self.total_bytes = sum(size for _, size in self.files)
        self.formats: Counter[str] = Counter()
        """Files that were read, by format."""
        self.other_files = 0
        """Files that are not logs."""

    def _find_files(self, has_explicit_paths: bool) -> Iterator[tuple[Path, int]]:
        for location in self.locations:
            if has_explicit_paths and not location.folder.exists():
                raise SettingsError(
                    f"{location.folder} does not exist. Name a file or a folder, or leave PATH out to search the "
                    "default folders."
                )
            is_folder = location.folder.is_dir()
            for path in formats.find_log_files(location.folder, self.unreadable) if is_folder else [location.folder]:
                try:
                    file_status = path.stat()
                except OSError as error:
                    if has_explicit_paths or path != location.folder:
                        self.unreadable.append((path, error.strerror or "cannot be read"))
                    continue
                if self.since is None or file_status.st_mtime * 1000 >= self.since:
                    yield path, file_status.st_size

    def histories(self, reading: ReaderState, importer: Importer | None) -> Iterator[History]:
        """Yield all runs, file by file. An unreadable file is reported and skipped."""
        bytes_done = 0
        # Records contain no reference cycles. Garbage collection of the imported data would take a seventh of the
        # time.
        gc.freeze()
        gc.set_threshold(100_000, 20, 20)
        with show_read_progress("reading", self.total_bytes) as report_progress:
            for path, size in self.files:
                try:
                    with LogLines(path) as lines:
                        for history in self._read_file(lines, reading, importer):
                            if self.since is None or (history.run.ended_at or history.run.started_at) >= self.since:
                                yield history
                            report_progress(bytes_done + lines.bytes_read)
                        reading.unrecognized_lines += lines.skipped_lines
                        if lines.read_error:
                            self.unreadable.append((path, lines.read_error))
                except UnreadableFileError as error:
                    self.unreadable.append((path, str(error)))
                bytes_done += size
                report_progress(bytes_done)

    def _read_file(self, lines: LogLines, reading: ReaderState, importer: Importer | None) -> Iterable[History]:
        format = formats.detect_log_format(lines)
        if format is None:
            self.other_files += not lines.read_error
            return ()
        self.formats[format.title] += 1
        return importer.import_histories(lines, format, reading) if importer else format.read(lines, reading)


@click.command(
    epilog="Examples:\n\n  mulligan scan\n\n  mulligan scan --since 30d --html report.html\n\n"
    "  mulligan scan traces.jsonl ~/agents/conversations --json"
)
@click.argument("paths", nargs=-1, metavar="[PATH...]")
@click.option("--since", "past", metavar="7d", help="Only sessions active within this time: 24h, 7d, 2w.")
@click.option("--html", "html", metavar="FILE", help="Also write the report as an HTML page.")
@click.option("--import", "keeps", is_flag=True, help="Also import the sessions into the store.")
@store_option
@as_json
def scan(
    paths: tuple[str, ...], past: str | None, html: str | None, keeps: bool, store: str | None, as_json: bool
) -> None:
    """Report failures in session logs: what failed, how often, and what recovered it.

    Without PATH it reads the logs of Claude Code, Codex and Gemini CLI. A PATH may be a file or folder of these logs,
    of OpenAI or Anthropic conversations, of OTLP traces as JSON, or of `mulligan export`.

    Nothing leaves the machine, and secrets are redacted before anything is printed or stored.
    """
    settings = load_settings(store)
    redactor = build_redactor(settings)
    logs = LogScanner(paths, parse_time_option(past))
    if html and (Path(html).is_dir() or not Path(html).absolute().parent.is_dir()):
        raise SettingsError(f"Invalid --html {html!r}. Name a file in an existing folder.")
    reading = ReaderState(build_classifier(settings), keeps_results=keeps)
    importer, scan_totals = None, LogScan()
    with contextlib.ExitStack() as closing:
        if keeps:
            store_url = settings.store_url
            import_store = closing.enter_context(
                contextlib.closing(open_store(store_url, settings.fsync, settings.token))
            )
            importer = Importer(import_store, redactor)
        for history in logs.histories(reading, importer):
            scan_totals.add(history)
    findings = scan_totals.build_findings(redactor)
    if html:
        _write_page(html, render_page(findings, now_ms(), _describe_input(logs, reading)))
    if as_json:
        print_json(_facts(findings, logs, reading, importer, redactor))
    elif not findings.calls:
        _print_nothing_found(logs, paths, past)
    else:
        print_lines(_truncate_lines(scan_text.render_findings(findings), terminal_width()))
        _print_notes(logs, reading)
        _print_next_steps(html, importer, paths, settings.store_url)
    if not findings.calls:
        raise SystemExit(1)


def _describe_input(logs: LogScanner, reading: ReaderState) -> str:
    """Return a sentence about the files that were read."""
    kinds = ", ".join(f"{number:,} of {format_name}" for format_name, number in sorted(logs.formats.items()))
    size = f"{logs.total_bytes / 1e6:,.1f} MB" if logs.total_bytes < 1e9 else f"{logs.total_bytes / 1e9:,.1f} GB"
    lines = tables.format_count(reading.line_count, "line")
    return f"{tables.format_count(logs.formats.total(), 'log')} read ({kinds or 'none'}), {size}, {lines}"


def _facts(
    findings: Findings, logs: LogScanner, reading: ReaderState, importer: Importer | None, redactor: Redactor
) -> dict[str, Any]:
    facts: dict[str, Any] = to_builtins(findings)
    facts["read"] = {
        "files": logs.formats.total(),
        "bytes": logs.total_bytes,
        "lines": reading.line_count,
        "unknown": reading.unrecognized_lines,
        "other_files": logs.other_files,
        "formats": logs.formats,
        "looked": [str(location.folder) for location in logs.locations],
        "unreadable": [{"path": redactor.text(str(path)), "reason": reason} for path, reason in logs.unreadable],
    }
    if importer is not None:
        facts["imported"] = importer.to_facts()
    return facts


def _print_nothing_found(logs: LogScanner, paths: tuple[str, ...], past: str | None) -> None:
    """Print the searched locations and what to do."""
    if logs.formats:
        click.echo(f"No calls found in {tables.format_count(logs.formats.total(), 'log')}.")
    else:
        click.echo("No session logs found" + (f" of the last {past}." if past else "."))
    click.echo("\nSearched folders:")
    for location in logs.locations:
        state = "no logs" if location.folder.exists() else "does not exist"
        description = f"{location.agent}, {state}" if location.agent else state
        click.echo(f"  {tables.to_line(location.folder, 200)}  ({description})")
    _print_notes(logs, None)
    click.echo("")
    if past:
        click.echo("To search further back, remove --since.")
    if paths:
        click.echo(f"Supported formats: {', '.join(log_format.title for log_format in formats.FORMATS.values())}.")
    else:
        click.echo("To search another folder: mulligan scan PATH\nNo logs yet? Try: mulligan demo")


def _print_notes(logs: LogScanner, reading: ReaderState | None) -> None:
    """Print unreadable files and lines on stderr."""
    notes = []
    if reading is not None and reading.unrecognized_lines:
        unreadable = tables.format_count(reading.unrecognized_lines, "line")
        notes.append(f"{unreadable} of {reading.line_count:,} could not be read.")
    for path, reason in logs.unreadable[:MAX_NAMED_FILES]:
        notes.append(f"Not read: {tables.to_line(path, 200)} ({tables.to_line(reason, 100)})")
    if len(logs.unreadable) > MAX_NAMED_FILES:
        notes.append(f"{len(logs.unreadable) - MAX_NAMED_FILES:,} more files were not read; --json names them all.")
    if notes:
        click.echo("\n".join(["", *notes]), err=True)


def _print_next_steps(html: str | None, importer: Importer | None, paths: tuple[str, ...], store: str) -> None:
    """Print suggested next commands on stderr: they are not part of the result."""
    click.echo("", err=True)
    if html:
        click.echo(f"Page written to {tables.to_line(html, 200)}.", err=True)
    if importer is not None:
        new = tables.format_count(importer.new, "record")
        click.echo(f"Imported: {new} new in {tables.to_line(store, 200)}. See: mulligan stats", err=True)
        if left_out := importer.hooked_note():
            click.echo(left_out, err=True)
    command_text = tables.to_line(shlex.join(["mulligan", "scan", *paths]), 200)
    rows = []
    if not html:
        rows.append((f"{command_text} --html report.html", "write the full report as a page"))
    if importer is None:
        rows.append((f"{command_text} --import", "import it, so that memory can use these recoveries"))
    if rows:
        click.echo("\n".join(["Next:", *tables.render_columns(rows)]), err=True)


def _truncate_lines(lines: Iterable[str], columns: int | None) -> Iterator[str]:
    """Truncate table lines to the terminal. The widest column is the last."""
    for line in lines:
        yield line if columns is None or len(line) <= columns or line[:1] != " " else f"{line[: columns - 3]}..."


def _write_page(html: str, text: str) -> None:
    try:
        # The page is redacted but describes private work: only its owner may read the file.
        with os.fdopen(os.open(html, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise SettingsError(f"Cannot write {html} ({error.strerror}). Name another file with --html.") from None
