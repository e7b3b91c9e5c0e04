"""mulligan scan: failures in the session logs of this machine."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click

from mulligan.capture.transcripts import formats, places
from mulligan.capture.transcripts.gathering import Reading
from mulligan.capture.transcripts.lines import Lines, Unreadable
from mulligan.failure import SettingsError
from mulligan.parts import classify_of, redactor_of
from mulligan.records import History, builtins
from mulligan.redaction import Redactor
from mulligan.remember.urls import open_store
from mulligan.report import scan_text, terminal
from mulligan.report.findings import Findings
from mulligan.report.page import page
from mulligan.report.scan import Scan
from mulligan.serve.cli.exchange import Importer, progress
from mulligan.serve.cli.options import as_json, moment, now, print_json, print_lines, settings_with, store_option, width

TOLD = 5
"""Number of unreadable files named in the output."""


class Logs:
    """Log files of a scan, with counts and unreadable files."""

    def __init__(self, paths: tuple[str, ...], begun: int | None) -> None:
        self.begun = begun
        self.unreadable: list[tuple[Path, str]] = []
        self.looked = [places.Place("", Path(path)) for path in paths] or places.known(os.environ, Path.home())
        self.files = list(self._found(is_asked=bool(paths)))
        self.bytes = sum(size for _, size in self.files)
        self.read = 0
        self.formats: dict[str, int] = {}
        self.other = 0
        """Files that are no logs."""

    def _found(self, is_asked: bool) -> Iterator[tuple[Path, int]]:
        for place in self.looked:
            if is_asked and not place.folder.exists():
                raise SettingsError(f"there is no {place.folder}. Name a file or a folder, or none to look everywhere.")
            found = places.files(place.folder, self.unreadable) if place.folder.is_dir() else [place.folder]
            for path in found:
                try:
                    about = path.stat()
                except OSError as error:
                    if is_asked or path != place.folder:
                        self.unreadable.append((path, error.strerror or "cannot be read"))
                    continue
                if self.begun is None or about.st_mtime * 1000 >= self.begun:
                    yield path, about.st_size

    def histories(self, reading: Reading, importer: Importer | None) -> Iterator[History]:
        """Yield all runs, file by file. An unreadable file is reported and skipped."""
        done = 0
        # Records contain no reference cycles. Garbage collection of the imported data would take a seventh of the
        # time.
        gc.freeze()
        gc.set_threshold(100_000, 20, 20)
        with progress(self.bytes, "reading") as told:
            for path, size in self.files:
                try:
                    with Lines(path) as lines:
                        format = formats.recognised(lines)
                        if format is None:
                            self._unrecognised(lines)
                            continue
                        self.read += 1
                        self.formats[format.spoken] = self.formats.get(format.spoken, 0) + 1
                        read = importer.histories(lines, format, reading) if importer else format.read(lines, reading)
                        for history in read:
                            if self.begun is None or (history.run.ended or history.run.started) >= self.begun:
                                yield history
                            told(done + lines.done)
                        reading.unknown += lines.too_long
                        if lines.damage:
                            self.unreadable.append((path, lines.damage))
                except Unreadable as error:
                    self.unreadable.append((path, str(error)))
                done += size
                told(done)

    def _unrecognised(self, lines: Lines) -> None:
        if lines.damage:
            self.unreadable.append((lines.path, lines.damage))
        else:
            self.other += 1


@click.command(
    epilog="Examples:\n\n  mulligan scan\n\n  mulligan scan --since 30d --html report.html\n\n"
    "  mulligan scan traces.jsonl ~/agents/conversations --json"
)
@click.argument("paths", nargs=-1, metavar="[PATH...]")
@click.option("--since", "past", metavar="7d", help="Only sessions active within this time: 24h, 7d, 2w.")
@click.option("--html", "html", metavar="FILE", help="Also write one page with all of it, to look at or to pass on.")
@click.option("--import", "keeps", is_flag=True, help="Also put the sessions into the store, as history.")
@store_option
@as_json
def scan(
    paths: tuple[str, ...], past: str | None, html: str | None, keeps: bool, store: str | None, as_json: bool
) -> None:
    """Read the session logs that are on this machine: what failed, how often again, what overcame it.

    Without PATH it looks where Claude Code, Codex and Gemini CLI keep their logs. A PATH may be a file or a folder of
    these, of conversations in OpenAI's or Anthropic's form, of OTLP traces as JSON, or of `mulligan export`.

    Nothing leaves the machine, and secrets are taken out before anything is printed or kept.
    """
    settings = settings_with(store)
    redactor = redactor_of(settings)
    logs = Logs(paths, moment(past))
    if html:
        _check(html)
    kept = open_store(settings.store_url, settings.fsync, settings.token) if keeps else None
    importer = Importer(kept, redactor) if kept is not None else None
    reading = Reading(classify_of(settings), keeps_results=keeps)
    counted = Scan()
    try:
        for history in logs.histories(reading, importer):
            counted.add(history)
    finally:
        if kept is not None:
            kept.close()
    found = counted.findings(redactor)
    if html:
        _write(html, page(found, now(), _read(logs, reading)))
    if as_json:
        print_json(_facts(found, logs, reading, importer, redactor))
    elif not found.calls:
        _nothing(logs, paths, past)
    else:
        print_lines(_cut(scan_text.lines(found), width()))
        _notes(logs, reading)
        _next(html, importer, paths, settings.store_url)
    if not found.calls:
        raise SystemExit(1)


def _read(logs: Logs, reading: Reading) -> str:
    """Return a sentence about the files that were read."""
    kinds = ", ".join(f"{number:,} of {spoken}" for spoken, number in sorted(logs.formats.items()))
    size = f"{logs.bytes / 1e6:,.1f} MB" if logs.bytes < 1e9 else f"{logs.bytes / 1e9:,.1f} GB"
    return (
        f"{terminal.count(logs.read, 'log')} read ({kinds or 'none'}), {size}, {terminal.count(reading.lines, 'line')}"
    )


def _facts(
    found: Findings, logs: Logs, reading: Reading, importer: Importer | None, redactor: Redactor
) -> dict[str, Any]:
    facts: dict[str, Any] = builtins(found)
    facts["read"] = {
        "files": logs.read,
        "bytes": logs.bytes,
        "lines": reading.lines,
        "unknown": reading.unknown,
        "other_files": logs.other,
        "formats": logs.formats,
        "looked": [str(place.folder) for place in logs.looked],
        "unreadable": [{"path": redactor.text(str(path)), "why": why} for path, why in logs.unreadable],
    }
    if importer is not None:
        facts["imported"] = {name: getattr(importer, name) for name in ("runs", "steps", "new")}
        facts["imported"]["hooked"] = len(importer.hooked)
    return facts


def _nothing(logs: Logs, paths: tuple[str, ...], past: str | None) -> None:
    """Print the searched locations and what to do."""
    if logs.read:
        click.echo(f"No calls were found in {terminal.count(logs.read, 'log')}.")
    else:
        click.echo("No session logs were found" + (f" of the last {past}." if past else "."))
    click.echo("")
    click.echo("Looked in:")
    for place in logs.looked:
        state = "no log in it" if place.folder.exists() else "not there"
        told = f"{place.agent}, {state}" if place.agent else state
        click.echo(f"  {terminal.line(place.folder, 200)}  ({told})")
    _notes(logs, None)
    click.echo("")
    if past:
        click.echo("Look further back: leave out --since.")
    if not paths:
        click.echo("Are they elsewhere? Name the folder: mulligan scan PATH")
        click.echo("Have none yet? Watch failures being recovered: mulligan demo")
    else:
        click.echo(f"Read are: {', '.join(each.spoken for each in formats.FORMATS.values())}.")


def _notes(logs: Logs, reading: Reading | None) -> None:
    """Print unreadable files and lines on stderr."""
    told = []
    if reading is not None and reading.unknown:
        told.append(f"{terminal.count(reading.unknown, 'line')} of {reading.lines:,} could not be understood.")
    for path, why in logs.unreadable[:TOLD]:
        told.append(f"Not read: {terminal.line(path, 200)} ({terminal.line(why, 100)})")
    if len(logs.unreadable) > TOLD:
        told.append(f"Nor {len(logs.unreadable) - TOLD:,} others; --json names them all.")
    if told:
        click.echo("", err=True)
        for each in told:
            click.echo(each, err=True)


def _next(html: str | None, importer: Importer | None, paths: tuple[str, ...], store: str) -> None:
    """Print suggested next commands on stderr: they are not part of the result."""
    click.echo("", err=True)
    if html:
        click.echo(f"The page is {terminal.line(html, 200)}.", err=True)
    if importer is not None:
        new = terminal.count(importer.new, "record")
        click.echo(f"Kept: {new} new in {terminal.line(store, 200)}. Ask about them: mulligan stats", err=True)
        if left_out := importer.told_hooked():
            click.echo(left_out, err=True)
    typed = " ".join(["mulligan scan", *(_typed(path) for path in paths)])
    rows = [] if html else [(f"{typed} --html report.html", "all of it as a page, to look at or to pass on")]
    rows += [] if importer is not None else [(f"{typed} --import", "keep it, so that what helped is known next time")]
    if rows:
        click.echo("Next:", err=True)
        for told in terminal.columns(rows):
            click.echo(told, err=True)


def _cut(lines: Iterable[str], columns: int | None) -> Iterator[str]:
    """Truncate table lines to the terminal. The widest column is the last."""
    for line in lines:
        yield line if columns is None or len(line) <= columns or line[:1] != " " else f"{line[: columns - 3]}..."


def _typed(path: str) -> str:
    import shlex  # needed once

    return terminal.line(shlex.quote(path), 80)


def _check(html: str) -> None:
    path = Path(html)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise SettingsError(f"--html takes the name of a file in a folder that is there, got {html!r}.")


def _write(html: str, text: str) -> None:
    try:
        # The page is redacted but describes private work: only its owner may read the file.
        with os.fdopen(os.open(html, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise SettingsError(f"{html} cannot be written ({error.strerror}). Name another file with --html.") from None
