"""mulligan export and mulligan import: runs as JSON lines."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Literal

import click
from msgspec.structs import replace

from mulligan.capture.transcripts import calls as rows
from mulligan.capture.transcripts import exported, formats
from mulligan.capture.transcripts.gathering import Reading
from mulligan.capture.transcripts.lines import Lines, Unreadable
from mulligan.events import AnyEvent, ContextCompacted, RunEnded, RunStarted, StepEnded, redacted
from mulligan.failure import SettingsError
from mulligan.links import attach_links
from mulligan.parts import classify_of, redactor_of
from mulligan.records import History, Step, encode
from mulligan.redaction import Redactor
from mulligan.remember.store import LOCAL, Store
from mulligan.remember.urls import is_remote, open_store, shown
from mulligan.report import terminal
from mulligan.serve.cli.options import as_json, moment, now, opened, print_json, settings_with, store_option
from mulligan.serve.hooks.state import KIND, beginning_of
from mulligan.settings import Settings

BATCH = 1000
"""Number of records per transaction."""
HOOKED = {"claude-code": "claude-code", "codex": "codex", "gemini-cli": "gemini"}
"""Log formats of agents that may have hooks, with the agent's name in the hooks."""
BY_RUN = (exported.NAME, rows.NAME)
"""Formats of complete runs in sequence: an import resumes at the stored offset. Runs of other formats may grow."""


class Importer:
    """Stores runs from files, each once, with secrets redacted."""

    def __init__(self, store: Store, redactor: Redactor) -> None:
        self._store = store
        self._redactor = redactor
        self.runs = 0
        self.steps = 0
        self.new = 0
        """Records that the store did not have."""
        self.skipped = 0
        """Files that were imported in part or in full before."""
        self.hooked: set[str] = set()
        """Sessions that hooks have recorded already. Importing their logs would count every call twice."""
        self._asked: dict[tuple[str, str], bool] = {}

    def histories(
        self, lines: Lines, format: formats.Format, reading: Reading, skips: bool = False
    ) -> Iterator[History]:
        """Yield the runs of a file as they are read. A run is stored after the caller requests the next one.

        `should_skip_stored` skips the part that an earlier import stored, for resumable formats.
        """
        journal = _journal(lines, format)
        known = self._store.offset(LOCAL, journal)
        if skips and format.name in BY_RUN:
            lines.skip(known)
            self.skipped += known > 0
        batch: list[AnyEvent] = []
        mark = known
        for history in format.read(lines, reading):
            if len(batch) >= BATCH and lines.offset > mark:
                self._append(batch, journal, mark)
                batch = []
            mark = lines.offset
            yield history
            self.runs += 1
            self.steps += len(history.steps)
            if mark > known and not self._is_hooked(format.name, history.run.session):
                batch += self._events(history, is_whole=format.name == exported.NAME)
        if batch or lines.offset > max(mark, known):
            self._append(batch, journal, max(mark, lines.offset))

    def _is_hooked(self, format: str, session: str | None) -> bool:
        agent = HOOKED.get(format)
        if agent is None or not session:
            return False
        if (agent, session) not in self._asked:
            from mulligan.remember.remote import RemoteStore  # imported only where it is needed

            # The session state outlives a pruned run.
            is_known = self._store.get(LOCAL, KIND, session) is not None
            if not is_known and not isinstance(self._store, RemoteStore):
                # Skipped for a remote store: hooks write to a local file, and an ingest token cannot read.
                is_known = bool(self._store.find(LOCAL, beginning_of(agent, session), limit=1))
            self._asked[agent, session] = is_known
        if self._asked[agent, session]:
            self.hooked.add(session)
        return self._asked[agent, session]

    def told_hooked(self) -> str:
        """Return a sentence about skipped sessions, or an empty text."""
        if not self.hooked:
            return ""
        number = terminal.count(len(self.hooked), "session")
        were = "was" if len(self.hooked) == 1 else "were"
        return f"{number} {were} recorded by hooks already and not imported: the figures would count every call twice."

    def _append(self, batch: list[AnyEvent], journal: str, mark: int) -> None:
        self.new += self._store.append(LOCAL, batch, journal, mark)

    def _events(self, history: History, is_whole: bool) -> Iterator[AnyEvent]:
        if self._redactor.level == "shared" or self._hides_linked_values(history):
            history = attach_links(history)
        # An exported run may exist in this store with more data. RunStarted does not overwrite it.
        yield redacted(RunStarted(history.run) if is_whole else RunEnded(history.run), self._redactor)
        for step in history.steps:
            # A call without a time would be counted in 1970, outside every query.
            dated = step if step.started else replace(step, started=history.run.started)
            yield redacted(StepEnded(dated), self._redactor)
        for compaction in history.compactions:
            yield redacted(ContextCompacted(compaction), self._redactor)

    def _hides_linked_values(self, history: History) -> bool:
        """Return whether redaction hides a value on which a link depends: the store could not derive the link again."""
        links = [link for link in history.links if link.failed != link.overcame]
        calls = {call for link in links for call in (link.failed, link.overcame)}
        steps = [step for step in history.steps if step.call in calls]
        return any(redacted(StepEnded(step), self._redactor) != StepEnded(step) for step in steps)


def _journal(lines: Lines, format: formats.Format) -> str:
    """Return a name for a file from its name and first line. It stays the same when the file grows or moves."""
    first = lines.head(64 * 1024).partition(b"\n")[0]
    digest = hashlib.sha256(lines.path.name.encode("utf-8", "replace") + b"\n" + first).hexdigest()[:24]
    return f"import:{format.name}:{digest}"


@contextlib.contextmanager
def progress(total: int, doing: str) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on stderr for large inputs. Yield the function to call with the completed bytes."""
    if not sys.stderr.isatty() or total < 5_000_000:
        yield lambda done: None
        return
    from rich.console import Console  # its import takes as long as reading a small log
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    told = (TextColumn(doing), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*told, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(doing, total=total)
        yield lambda done: bar.update(task, completed=done)


@click.command(
    "import",
    epilog="Examples:\n\n  mulligan import runs.jsonl.gz\n\n  mulligan import --format calls recorded-calls.jsonl.gz",
)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--format",
    "wanted",
    type=click.Choice(sorted(formats.FORMATS)),
    help="What the files are. Mostly their content tells.",
)
@store_option
@as_json
def import_(files: tuple[str, ...], wanted: str | None, store: str | None, as_json: bool) -> None:
    """Put runs from files into the store: exports, recorded calls, session logs; plain or gzipped.

    Failures are classified and linked to what overcame them. The same file again adds nothing; after an interruption
    the same command goes on where it was. Secrets are taken out before anything is kept.
    """
    settings = settings_with(store)
    kept = _for_writing(settings)
    reading = Reading(classify_of(settings), keeps_results=True)
    importer = Importer(kept, redactor_of(settings))
    try:
        for file in files:
            _import(Path(file), wanted, importer, reading)
    except KeyboardInterrupt:
        click.echo(
            f"Interrupted. {terminal.count(importer.new, 'record')} kept so far; the same command goes on.", err=True
        )
        raise
    finally:
        kept.close()
    facts = {"runs": importer.runs, "steps": importer.steps, "new": importer.new, "hooked": len(importer.hooked)}
    if as_json:
        print_json({**facts, "lines": reading.lines, "unknown": reading.unknown, "store": shown(settings.store_url)})
        return
    if importer.new:
        runs, steps = terminal.count(importer.runs, "run"), terminal.count(importer.steps, "step")
        click.echo(
            f"{runs} with {steps} read, {terminal.count(importer.new, 'record')} new in {shown(settings.store_url)}."
        )
    elif importer.hooked and not importer.skipped:
        click.echo("Nothing was imported.")
    elif importer.runs or importer.skipped:
        click.echo(f"Nothing new: all of it is in {shown(settings.store_url)} already.")
    else:
        click.echo("There is no run in it." if len(files) == 1 else "There is no run in them.")
    if left_out := importer.told_hooked():
        click.echo(left_out, err=True)
    if reading.unknown:
        were = "was" if reading.unknown == 1 else "were"
        click.echo(f"{terminal.count(reading.unknown, 'line')} could not be read and {were} passed over.", err=True)
    if not (importer.runs or importer.skipped):
        sys.exit(1)


def _import(path: Path, wanted: str | None, importer: Importer, reading: Reading) -> None:
    try:
        with Lines(path) as lines:
            format = formats.FORMATS[wanted] if wanted else formats.recognised(lines)
            if format is None:
                raise Unreadable(
                    f"it is none of {', '.join(sorted(formats.FORMATS))}. If you know better, say so with --format"
                )
            with progress(lines.size, f"reading {path.name[:40]}") as told:
                for _ in importer.histories(lines, format, reading, skips=True):
                    told(lines.done)
            if lines.damage:
                click.echo(f"warning: {path}: {lines.damage}. What came before is kept.", err=True)
    except Unreadable as error:
        raise SettingsError(f"{path}: {error}.".replace("..", ".")) from None


def _for_writing(settings: Settings) -> Store:
    if settings.store_url.startswith("memory:"):
        raise SettingsError("a store in memory is gone when the command ends. Name a file: --store PATH")
    return open_store(settings.store_url, settings.fsync, settings.token)


@click.command(
    epilog="Examples:\n\n  mulligan export -o runs.jsonl.gz\n\n  mulligan export --since 7d --level local > mine.jsonl"
)
@click.option("--since", "past", metavar="7d", help="Only runs begun within this time: 30m, 24h, 7d, 2w.")
@click.option("-o", "--output", metavar="FILE", help="Where to; gzipped if its name ends in .gz. Else standard output.")
@click.option(
    "--level",
    type=click.Choice(["shared", "local"]),
    default="shared",
    show_default=True,
    help="shared hides every argument that is not listed in the settings; local keeps what the store has.",
)
@store_option
@as_json
def export(
    past: str | None, output: str | None, level: Literal["shared", "local"], store: str | None, as_json: bool
) -> None:
    """Write runs as JSON lines, to be read again by `mulligan import`.

    The first line says the format and its version. What it holds is for others to see, so values of arguments are
    hidden unless you say --level local. With --json the counts go to standard error.
    """
    settings = settings_with(store)
    kept = opened(settings)
    if kept is None:
        raise SettingsError(f"there are no runs in {shown(settings.store_url)} yet. Name another store with --store.")
    redactor = redactor_of(settings, level, _key(kept, settings.store_url) if level == "shared" else b"")
    begun = moment(past)
    runs = steps = 0
    header = exported.Header(mulligan="export", version=exported.VERSION, level=level, exported=now(), since=begun)
    with _writing(output) as file:
        file.write(encode(header) + b"\n")
        for history in kept.export(LOCAL, begun or 0):
            file.write(encode(hidden(history, redactor)) + b"\n")
            runs += 1
            steps += len(history.steps)
    if as_json:
        click.echo(encode({"runs": runs, "steps": steps, "level": level, "output": output}).decode(), err=True)
    elif output:
        told = f"{terminal.count(runs, 'run')} with {terminal.count(steps, 'step')} written to {output}, level {level}."
        click.echo(told, err=True)


def hidden(history: History, redactor: Redactor) -> History:
    """Redact a run for export. Its links are kept, without redacted values."""

    def one(event: Any) -> Any:
        return redacted(event, redactor)

    steps = [one(StepEnded(step)).step for step in history.steps]
    if redactor.level == "shared":  # a result may be a whole file: it is redacted like an argument
        steps = [replace(step, result=redactor.value(step.result)) for step in steps]
    return History(
        run=one(RunEnded(history.run)).run,
        steps=tuple(steps),
        links=one(StepEnded(Step(run=history.run.id, seq=0, call=0, links=history.links))).step.links,
        compactions=tuple(one(ContextCompacted(each)).compaction for each in history.compactions),
    )


def _key(kept: Store, url: str) -> bytes:
    """Return the key that makes equal values comparable across exports of one store."""
    if is_remote(url):  # a server does not reveal its key, so values are comparable within one export only
        return os.urandom(32)
    key = kept.get(LOCAL, "key", "export")
    if key is None:
        key = os.urandom(32)
        kept.put(LOCAL, "key", "export", key)
    return key


@contextlib.contextmanager
def _writing(output: str | None) -> Iterator[IO[bytes]]:
    """Open standard output, or a file that appears only after it was written completely."""
    if output is None or output == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    path = Path(output)
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name[:100]}.", dir=path.parent)
    except OSError as error:
        raise SettingsError(f"{path} cannot be written ({error.strerror}). Name another file with -o.") from None
    try:
        with os.fdopen(handle, "wb") as file:
            if path.name.endswith(".gz"):
                with gzip.GzipFile(fileobj=file, mode="wb", filename="", mtime=0) as packed:
                    yield packed  # type: ignore[misc]
            else:
                yield file
        os.replace(name, path)
    except OSError as error:
        Path(name).unlink(missing_ok=True)
        raise SettingsError(f"{path} cannot be written ({error.strerror}).") from None
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
