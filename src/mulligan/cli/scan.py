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
from mulligan.cli.config_edits import replace_file
from mulligan.cli.import_export import Importer
from mulligan.cli.options import CommandContext, command, parse_time_option, print_json, print_lines, show_read_progress
from mulligan.core.failure import SettingsError
from mulligan.core.records import History, to_builtins
from mulligan.redaction import Redactor
from mulligan.report import scan_text
from mulligan.report.scan_page import render_page
from mulligan.report.scan_report import LogScan
from mulligan.report.tables import format_count, render_columns, to_line
from mulligan.transcripts import formats
from mulligan.transcripts.log_lines import LogLines, UnreadableFileError
from mulligan.transcripts.run_builder import ReaderState

MAX_NAMED_FILES = 5
"""Number of unreadable files named in the output."""


class LogScanner:
    """Log files of a scan, with counts and unreadable files. Imports their runs, too, if it has an importer."""

    def __init__(self, paths: tuple[str, ...], since: int | None, reading: ReaderState) -> None:
        self.since = since
        self.reading = reading
        self.importer: Importer | None = None
        self.unreadable: list[tuple[Path, str]] = []
        self.locations = [formats.LogLocation("", Path(path)) for path in paths]
        self.locations = self.locations or formats.default_locations(os.environ, Path.home())
        self.files = list(self._find_files(has_explicit_paths=bool(paths)))
        self.total_bytes = sum(size for _, size in self.files)
        self.formats: Counter[str] = Counter()
        """Files that were read, by format."""
        self.other_files: list[Path] = []

    def _find_files(self, has_explicit_paths: bool) -> Iterator[tuple[Path, int]]:
        for _, folder in self.locations:
            if has_explicit_paths and not folder.exists():
                raise SettingsError(
                    f"{folder} does not exist. Name a file or a folder, or leave PATH out to search the default "
                    "folders."
                )
            for path in formats.find_log_files(folder, self.unreadable) if folder.is_dir() else [folder]:
                try:
                    file_status = path.stat()
                except OSError as error:
                    if has_explicit_paths or path != folder:
                        self.unreadable.append((path, error.strerror or "cannot be read"))
                    continue
                if self.since is None or file_status.st_mtime * 1000 >= self.since:
                    yield path, file_status.st_size

    def histories(self) -> Iterator[History]:
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
                        for history in self._read_file(lines):
                            if self.since is None or (history.run.ended_at or history.run.started_at) >= self.since:
                                yield history
                            report_progress(bytes_done + lines.bytes_read)
                        self.reading.unrecognized_lines += lines.skipped_lines
                        if lines.read_error:
                            self.unreadable.append((path, lines.read_error))
                except UnreadableFileError as error:
                    self.unreadable.append((path, str(error)))
                bytes_done += size
                report_progress(bytes_done)

    def _read_file(self, lines: LogLines) -> Iterable[History]:
        format = formats.detect_log_format(lines)
        if format is None:
            self.other_files += [] if lines.read_error else [lines.path]
            return ()
        self.formats[format.title] += 1
        if self.importer is not None:
            return self.importer.import_histories(lines, format, self.reading)
        return format.read(lines, self.reading)

    def to_facts(self, redactor: Redactor) -> dict[str, Any]:
        facts: dict[str, Any] = {
            "read": {
                "files": self.formats.total(),
                "bytes": self.total_bytes,
                "lines": self.reading.line_count,
                "unknown": self.reading.unrecognized_lines,
                "other_files": len(self.other_files),
                "formats": self.formats,
                "looked": [str(location.folder) for location in self.locations],
                "unreadable": [{"path": redactor.text(str(path)), "reason": text} for path, text in self.unreadable],
            }
        }
        return facts | ({"imported": self.importer.to_facts()} if self.importer is not None else {})

    def describe_input(self) -> str:
        """Return a sentence about the files that were read."""
        kinds = ", ".join(f"{number:,} of {format_name}" for format_name, number in sorted(self.formats.items()))
        size = f"{self.total_bytes / 1e6:,.1f} MB" if self.total_bytes < 1e9 else f"{self.total_bytes / 1e9:,.1f} GB"
        logs, lines = format_count(self.formats.total(), "log"), format_count(self.reading.line_count, "line")
        return f"{logs} read ({kinds or 'none'}), {size}, {lines}"


@command(
    "mulligan scan",
    "mulligan scan --since 30d --html report.html",
    "mulligan scan traces.jsonl ~/agents/conversations --json",
)
@click.argument("paths", nargs=-1, metavar="[PATH...]")
@click.option("--since", "past", metavar="7d", help="Only sessions active within this time: 24h, 7d, 2w.")
@click.option("--html", "html", metavar="FILE", help="Also write the report as an HTML page.")
@click.option("--import", "keeps", is_flag=True, help="Also import the sessions into the store.")
def scan(context: CommandContext, paths: tuple[str, ...], past: str | None, html: str | None, keeps: bool) -> None:
    """Report failures in session logs: what failed, how often, and what recovered it.

    Without PATH it reads the logs of Claude Code, Codex, Copilot CLI, Gemini CLI, OpenCode and Pi. A PATH may be a
    file or folder of these logs, of OpenAI or Anthropic conversations, of OTLP traces as JSON, or of `mulligan export`.

    Nothing leaves the machine, and secrets are redacted before anything is printed or stored.
    """
    settings = context.settings
    redactor = build_redactor(settings)
    logs = LogScanner(paths, parse_time_option(past), ReaderState(build_classifier(settings), keeps_results=keeps))
    if html and (Path(html).is_dir() or not Path(html).absolute().parent.is_dir()):
        raise SettingsError(f"Invalid --html {html!r}. Name a file in an existing folder.")
    scan_totals = LogScan()
    with contextlib.ExitStack() as closing:
        if keeps:
            store = closing.enter_context(contextlib.closing(context.create_store()))
            logs.importer = Importer(store, redactor, record=settings.record)
        for history in logs.histories():
            scan_totals.add(history)
    findings = scan_totals.build_findings(redactor)
    if html:
        _write_page(html, render_page(findings, context.now, logs.describe_input(), str(Path.home())))
    if context.as_json:
        print_json(to_builtins(findings) | logs.to_facts(redactor))
    elif not findings.calls:
        _print_nothing_found(logs, paths, past)
    else:
        print_lines(_truncate_lines(scan_text.render_findings(findings), context.width))
        _print_notes(logs)
        _print_next_steps(logs, html, paths, settings.store_url)
    if not findings.calls:
        raise SystemExit(1)


def _print_nothing_found(logs: LogScanner, paths: tuple[str, ...], past: str | None) -> None:
    """Print the searched locations and what to do."""
    if logs.formats:
        click.echo(f"No calls found in {format_count(logs.formats.total(), 'log')}.")
    else:
        click.echo("No session logs found" + (f" of the last {past}." if past else "."))
    click.echo("\nSearched:")
    for agent, path in logs.locations:
        state = "no logs" if path.exists() else "does not exist"
        if path.is_file():
            state = "not a log of a supported format" if path in logs.other_files else "no calls"
        click.echo(f"  {to_line(path, 200)}  ({f'{agent}, {state}' if agent else state})")
    _print_notes(logs)
    click.echo("")
    if past:
        click.echo("To search further back, remove --since.")
    if paths:
        click.echo(f"Supported formats: {', '.join(log_format.title for log_format in formats.FORMATS.values())}.")
    else:
        click.echo("To search another folder: mulligan scan PATH\nNo logs yet? Try: mulligan demo")


def _print_notes(logs: LogScanner) -> None:
    """Print unreadable files and lines on stderr."""
    notes = [
        f"Not read: {to_line(path, 200)} ({to_line(reason, 100)})" for path, reason in logs.unreadable[:MAX_NAMED_FILES]
    ]
    if logs.reading.unrecognized_lines:
        unreadable = format_count(logs.reading.unrecognized_lines, "line")
        notes.insert(0, f"{unreadable} of {logs.reading.line_count:,} could not be read.")
    if len(logs.unreadable) > MAX_NAMED_FILES:
        notes.append(f"{len(logs.unreadable) - MAX_NAMED_FILES:,} more files were not read; --json names them all.")
    if notes:
        click.echo("\n".join(["", *notes]), err=True)


def _print_next_steps(logs: LogScanner, html: str | None, paths: tuple[str, ...], store: str) -> None:
    """Print suggested next commands on stderr: they are not part of the result."""
    command_text = to_line(shlex.join(["mulligan", "scan", *paths]), 200)
    sentences, rows = [""], []
    if html:
        sentences.append(f"Page written to {to_line(html, 200)}.")
    else:
        rows.append((f"{command_text} --html report.html", "write the full report as a page"))
    if logs.importer is None:
        rows.append((f"{command_text} --import", "import it, so that memory can use these recoveries"))
    else:
        new = format_count(logs.importer.new, "record")
        sentences.append(f"Imported: {new} new in {to_line(store, 200)}. See: mulligan stats")
        sentences += logs.importer.skipped_notes()
    if rows:
        sentences += ["Next:", *render_columns(rows)]
    click.echo("\n".join(sentences), err=True)


def _truncate_lines(lines: Iterable[str], columns: int | None) -> Iterator[str]:
    """Truncate table lines to the terminal. The widest column is the last."""
    for line in lines:
        yield line if columns is None or len(line) <= columns or line[:1] != " " else f"{line[: columns - 3]}..."


def _write_page(html: str, text: str) -> None:
    try:
        # The page is redacted but describes private work: only its owner may read the file.
        with replace_file(Path(html)) as file:
            file.write(text.encode())
    except OSError as error:
        raise SettingsError(f"Cannot write {html} ({error.strerror}). Name another file with --html.") from None
