"""mulligan export and mulligan import: runs as JSON lines."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Literal

import click
from msgspec.structs import replace

from mulligan.build import build_classifier, build_redactor
from mulligan.capture.value_recording import to_shape
from mulligan.cli.config_edits import replace_file
from mulligan.cli.options import CommandContext, command, find_run, parse_time_option, show_read_progress
from mulligan.contract.store import DEFAULT_TENANT, FORGOTTEN_KIND, RunQuery, Store, forgotten_key
from mulligan.core.events import AnyEvent, ContextCompacted, RunEnded, RunStarted, StepEnded, redact_event
from mulligan.core.failure import SettingsError
from mulligan.core.prices import PriceTable
from mulligan.core.records import History, RecordedMessage, Run, Step, encode, message_numbers
from mulligan.core.run_links import attach_links
from mulligan.hooks import AGENTS
from mulligan.hooks.agents import HOOK_STATE_KIND, join_tool_name, run_id_prefix
from mulligan.hooks.session_files import TOOL_NAME_TEMPLATES, tool_key
from mulligan.redaction import Redactor
from mulligan.report import tables
from mulligan.settings import Recording
from mulligan.store.urls import is_remote
from mulligan.transcripts import formats
from mulligan.transcripts.log_lines import LogLines, UnreadableFileError
from mulligan.transcripts.recorded_runs import CALLS_NAME, EXPORT_NAME, EXPORT_VERSION, ExportHeader
from mulligan.transcripts.run_builder import ReaderState

BATCH_RECORDS = 1000
"""Number of records per transaction."""
HOOK_AGENTS_BY_FORMAT = {log_format: agent for agent, log_format in AGENTS.items() if log_format}
"""Log formats of agents that may have hooks, with the agent's name in the hooks."""
MAX_NAMED_LINES = 5
"""Number of unreadable lines that are named in the output."""
MAX_PROXY_RUNS = 100
"""Runs of a session that are searched for calls through our proxy."""


class Importer:
    """Stores runs from files, each once, with secrets redacted."""

    def __init__(
        self, store: Store, redactor: Redactor, prices: PriceTable | None = None, record: Recording = "full"
    ) -> None:
        if record == "off":
            raise SettingsError("Nothing may be stored: record is 'off'. To import, set it to 'full' or 'shape'.")
        self._store = store
        self._record = record
        self._prices = prices or PriceTable()
        self._redactor = redactor
        self.runs = 0
        self.steps = 0
        self.new = 0
        """Records that the store did not have."""
        self.skipped = 0
        """Files that were imported in part or in full before."""
        self.forgotten = 0
        """Runs that were not imported because they were erased."""
        self.unreadable: list[dict[str, Any]] = []
        """Files, lines and rows that could not be read, with the reason: of each file the first."""
        self.hooked_sessions: set[str] = set()
        """Sessions that hooks have recorded already."""
        self._forgotten_keys: set[str] | None = None
        self._checked_sessions: set[tuple[str, str]] = set()

    def import_histories(
        self, lines: LogLines, format: formats.Format, reading: ReaderState, should_skip_stored: bool = False
    ) -> Iterator[History]:
        """Yield the runs of a file as they are read. A run is stored after the caller requests the next one.

        `should_skip_stored` skips the part that an earlier import stored, for resumable formats.
        """
        journal = _journal_name(lines, format)
        stored_offset = self._store.offset(DEFAULT_TENANT, journal)
        # Formats of complete runs in sequence: an import resumes at the stored offset. Runs of other formats may grow,
        # or are known when the file was read as a whole: it resumes after the number of stored runs.
        is_sequence = format.name in (EXPORT_NAME, CALLS_NAME)
        if should_skip_stored and is_sequence:
            lines.skip(stored_offset)
            self.skipped += stored_offset > 0
        run_journal = f"{journal}:{lines.size}"
        stored_runs = 0 if is_sequence else self._store.offset(DEFAULT_TENANT, run_journal)
        batch: list[AnyEvent] = []
        next_offset, run_count = stored_offset, -1
        for run_count, history in enumerate(format.read(lines, reading)):
            if len(batch) >= BATCH_RECORDS and (lines.offset > next_offset or not is_sequence):
                position = (journal, next_offset) if lines.offset > next_offset else (run_journal, run_count)
                self.new += self._store.append(DEFAULT_TENANT, batch, *position)
                batch = []
            next_offset = lines.offset
            yield history
            self.runs += 1
            self.steps += len(history.steps)
            is_new = next_offset > stored_offset and run_count >= stored_runs and not self._is_forgotten(history.run)
            if is_new and not self._is_hooked(format.name, history.run.session):
                history = self._without_proxied_calls(format.name, history)
                batch += self.build_events(history, is_export=format.name == EXPORT_NAME)
        if lines.read_error and not is_sequence:  # a whole file of the same size is read again
            self.new += self._store.append(DEFAULT_TENANT, batch, run_journal, run_count + 1) if batch else 0
        elif batch or lines.offset > max(next_offset, stored_offset):
            self.new += self._store.append(DEFAULT_TENANT, batch, journal, max(next_offset, lines.offset))

    def _is_forgotten(self, run: Run) -> bool:
        """Return whether the run or its session was erased. Its log still has it."""
        from mulligan.store.remote import RemoteStore  # imported only where it is needed

        if self._forgotten_keys is None:
            # A server omits these itself: an ingest token cannot read them.
            is_local = not isinstance(self._store, RemoteStore)
            self._forgotten_keys = set(self._store.keys(DEFAULT_TENANT, FORGOTTEN_KIND) if is_local else ())
        is_forgotten = any(forgotten_key(id) in self._forgotten_keys for id in (run.session, run.id) if id)
        self.forgotten += is_forgotten
        return is_forgotten

    def _is_hooked(self, format: str, session: str | None) -> bool:
        """Return whether hooks recorded this session: importing its log would count every call twice."""
        agent = HOOK_AGENTS_BY_FORMAT.get(format)
        if agent is None or not session:
            return False
        if (agent, session) not in self._checked_sessions:
            from mulligan.store.remote import RemoteStore  # imported only where it is needed

            self._checked_sessions.add((agent, session))
            # The session state outlives a pruned run. Runs are not read from a remote store: hooks write to a local
            # file, and an ingest token cannot read.
            if self._store.get(DEFAULT_TENANT, HOOK_STATE_KIND, session) is not None or (
                not isinstance(self._store, RemoteStore)
                and self._store.find(DEFAULT_TENANT, run_id_prefix(agent, session), limit=1)
            ):
                self.hooked_sessions.add(session)
        return session in self.hooked_sessions

    def _without_proxied_calls(self, format: str, history: History) -> History:
        """Return a session without the calls that our proxy recorded when they were made."""
        from mulligan.store.remote import RemoteStore  # imported only where it is needed

        run = history.run
        has_servers = any(
            step.server or step.name.startswith("mcp_") or (format == "opencode" and "_" in step.name)
            for step in history.steps
        )
        if format not in HOOK_AGENTS_BY_FORMAT or not has_servers or isinstance(self._store, RemoteStore):
            return history
        queries = [RunQuery(session=run.session, limit=MAX_PROXY_RUNS)] if run.session else []
        if run.ended_at:  # a client that does not tell its servers the session
            queries.append(RunQuery(since=run.started_at, until=run.ended_at + 1, limit=MAX_PROXY_RUNS))
        proxied_tools = {
            template % (tool_key(server), tool_key(step.name.removeprefix(f"{server}.")))
            for query in queries
            for stored in self._store.runs(DEFAULT_TENANT, query)
            if (stored.run.metadata or {}).get("door") == "mcp"
            and (stored.run.session == run.session or (not stored.run.session and stored.run.agent.startswith(format)))
            for server in [str((stored.run.metadata or {}).get("server"))]
            for step in stored.steps
            for template in TOOL_NAME_TEMPLATES
        }
        steps = tuple(step for step in history.steps if tool_key(join_tool_name(step)) not in proxied_tools)
        calls = {step.call for step in steps}
        links = tuple(link for link in history.links if {link.failed_call, link.recovering_call} <= calls)
        return replace(history, steps=steps, links=links)

    def add_unreadable(self, lines: LogLines) -> None:
        file = str(lines.path)
        self.unreadable += [{"file": file, unit: number, "reason": reason} for unit, number, reason in lines.unreadable]
        if lines.read_error:
            self.unreadable.append({"file": file, "reason": lines.read_error})

    def skipped_notes(self) -> Iterator[str]:
        """Yield a sentence about each reason for which runs were skipped."""
        if self.hooked_sessions:
            yield (
                f"{_count_skipped(len(self.hooked_sessions), 'session')}: hooks have recorded the same calls, which "
                "would be counted twice."
            )
        if self.forgotten:
            yield f"{_count_skipped(self.forgotten, 'run')}: deleted with mulligan forget."

    def to_facts(self) -> dict[str, int]:
        return {"runs": self.runs, "steps": self.steps, "new": self.new, "hooked": len(self.hooked_sessions)} | (
            {"forgotten": self.forgotten} if self.forgotten else {}
        )

    def build_events(self, history: History, is_export: bool) -> Iterator[AnyEvent]:
        is_shape = self._record == "shape" and not is_export  # an export was recorded at a level of its own
        if is_shape or self._redactor.level == "shared" or self._hides_linked_values(history):
            history = attach_links(history)
        if is_shape:
            run = replace(history.run, context=None)
            history = replace(history, run=run, steps=tuple(map(to_shape, history.steps)), messages=())
        # An exported run may exist in this store with more data. RunStarted does not overwrite it.
        yield redact_event(RunStarted(history.run) if is_export else RunEnded(history.run), self._redactor)
        remaining = {message.number: message for message in history.messages}
        for step in history.steps:
            # A call without a time would be counted in 1970, outside every query.
            dated_step = step if step.started_at else replace(step, started_at=history.run.started_at)
            # An exported step has its cost already, if that was known when it was recorded.
            priced_step = dated_step if is_export else self._prices.add_cost(dated_step)
            # Each message with the first step that has it, as when it was recorded: no event becomes too large.
            numbers = (*message_numbers(step), *(() if step.answer is None else (step.answer,)))
            messages = tuple(remaining.pop(number) for number in dict.fromkeys(numbers) if number in remaining)
            yield redact_event(StepEnded(priced_step, messages), self._redactor)
        for compaction in history.compactions:
            yield redact_event(ContextCompacted(compaction), self._redactor)

    def _hides_linked_values(self, history: History) -> bool:
        """Return whether redaction hides a value on which a link depends: the store could not derive the link again."""
        links = [link for link in history.links if link.failed_call != link.recovering_call]
        calls = {call for link in links for call in (link.failed_call, link.recovering_call)}
        steps = [step for step in history.steps if step.call in calls]
        return any(redact_event(StepEnded(step), self._redactor) != StepEnded(step) for step in steps)


def _count_skipped(count: int, noun: str) -> str:
    return f"{tables.format_count(count, noun)} {'was' if count == 1 else 'were'} not imported"


def _journal_name(lines: LogLines, format: formats.Format) -> str:
    """Return a name for a file from its name and first line. It stays the same when the file grows or moves."""
    first_line = lines.head(64 * 1024).partition(b"\n")[0]
    digest = hashlib.sha256(lines.path.name.encode("utf-8", "replace") + b"\n" + first_line).hexdigest()[:24]
    return f"import:{format.name}:{digest}"


@command("mulligan import runs.jsonl.gz", "mulligan import --format calls recorded-calls.jsonl.gz", name="import")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--format",
    "format_name",
    type=click.Choice(sorted(formats.FORMATS)),
    help="Format of the files. Default: detected from the content.",
)
def import_(context: CommandContext, files: tuple[str, ...], format_name: str | None) -> None:
    """Import runs from files into the store: exports, recorded calls or session logs, plain or gzipped.

    Failures are classified and linked to their recoveries. Importing a file twice adds nothing; after an interruption,
    run the same command to resume. Secrets are redacted before anything is stored.
    """
    store = context.create_store()
    reading = ReaderState(build_classifier(context.settings), keeps_results=True)
    importer = Importer(
        store, build_redactor(context.settings), PriceTable(context.settings.prices), context.settings.record
    )
    try:
        for file in files:
            with open_log(Path(file), "reading", format_name) as (lines, format, report_progress):
                for _ in importer.import_histories(lines, format, reading, should_skip_stored=True):
                    report_progress(lines.bytes_read)
                importer.add_unreadable(lines)
    except KeyboardInterrupt:
        click.echo(
            f"Interrupted. {tables.format_count(importer.new, 'record')} stored so far. Run the same command "
            "to resume.",
            err=True,
        )
        raise
    finally:
        store.close()
    if importer.new:
        runs, steps = tables.format_count(importer.runs, "run"), tables.format_count(importer.steps, "step")
        text = f"{runs} with {steps} read, {tables.format_count(importer.new, 'new record')} in {context.where}."
    elif (importer.hooked_sessions or importer.forgotten) and not importer.skipped:
        text = "Nothing was imported."
    elif importer.runs or importer.skipped:
        text = f"Nothing new: everything is already in {context.where}."
        if is_remote(context.where):  # it does not tell which runs it omits
            text = f"Nothing new: everything is already in {context.where}, or was deleted there with mulligan forget."
    else:
        text = "The file contains no runs." if len(files) == 1 else "The files contain no runs."
    counts = {"lines": reading.line_count, "unknown": reading.unrecognized_lines, "store": context.where}
    redactor = build_redactor(context.settings)
    unreadable = [row | {"file": redactor.text(row["file"])} for row in importer.unreadable]
    context.print(importer.to_facts() | counts | {"unreadable": unreadable}, text)
    if context.as_json:
        return
    for note in importer.skipped_notes():
        click.echo(note, err=True)
    if reading.unrecognized_lines:
        were = "was" if reading.unrecognized_lines == 1 else "were"
        click.echo(
            f"{tables.format_count(reading.unrecognized_lines, 'line')} could not be read and {were} skipped.",
            err=True,
        )
        for row in unreadable[:MAX_NAMED_LINES]:
            unit = "row" if "row" in row else "line" if "line" in row else ""
            where = f", {unit} {row[unit]:,}" if unit else ""
            click.echo(f"  {tables.to_line(row['file'], 200)}{where}: {row['reason']}", err=True)
        if len(unreadable) > MAX_NAMED_LINES:
            click.echo("  With --json, up to 100 of each file are named.", err=True)
    if not (importer.runs or importer.skipped):
        sys.exit(1)


@contextlib.contextmanager
def open_log(
    path: Path, action: str, format_name: str | None = None
) -> Iterator[tuple[LogLines, formats.Format, Callable[[int], None]]]:
    """Open a log to read it in a format, detected by default, and to report the bytes read."""
    try:
        with LogLines(path) as lines:
            format = formats.FORMATS[format_name] if format_name else formats.detect_log_format(lines)
            if format is None:
                raise UnreadableFileError(
                    lines.read_error
                    or f"unknown format, none of {', '.join(sorted(formats.FORMATS))}. Name it with --format"
                )
            with show_read_progress(f"{action} {path.name}", lines.size) as report_progress:
                yield lines, format, report_progress
            if lines.read_error:
                click.echo(f"warning: {path}: {lines.read_error}. Runs before this point were read.", err=True)
    except UnreadableFileError as error:
        raise SettingsError(f"{path}: {error}.".replace("..", ".")) from None


@command(
    "mulligan export -o runs.jsonl.gz",
    "mulligan export last > run.jsonl",
    "mulligan export --since 7d --level local > mine.jsonl",
)
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@click.option("--since", "past", metavar="7d", help="Only runs started within this time: 30m, 24h, 7d, 2w.")
@click.option(
    "-o", "--output", metavar="FILE", help="Output file, gzipped if its name ends in .gz. Default: standard output."
)
@click.option(
    "--level",
    type=click.Choice(["shared", "local"]),
    default="shared",
    show_default=True,
    help="shared redacts every argument that the settings do not list; local exports what the store has.",
)
def export(
    context: CommandContext,
    runs: tuple[str, ...],
    past: str | None,
    output: str | None,
    level: Literal["shared", "local"],
) -> None:
    """Export runs as JSON lines for `mulligan import`: all of them, or those that you name.

    RUN is an id or the start of one, `last` for the newest run, or an agent for its newest run. The first line names
    the format and its version. Others may read the file: prompts are left out and argument values redacted unless you
    pass --level local. Error texts and stack traces stay, without recognized secrets. With --json the counts go to
    standard error.
    """
    if runs and past:
        raise SettingsError("--since excludes RUN. Name runs, or a period.")
    store = context.require_store()
    named_runs = {history.run.id: history for history in (find_run(store, run, context.now) for run in runs)}
    key = _export_key(store, context.settings.store_url) if level == "shared" else b""
    redactor = build_redactor(context.settings, level, key, keeps_quantities=False)
    since = parse_time_option(past)
    run_count = step_count = 0
    header = ExportHeader("export", EXPORT_VERSION, level, context.now, since)
    with _open_output(output) as file:
        file.write(encode(header) + b"\n")
        for history in named_runs.values() if runs else store.export(DEFAULT_TENANT, since or 0):
            file.write(encode(redact_history(history, redactor)) + b"\n")
            run_count += 1
            step_count += len(history.steps)
    if context.as_json:
        counts = {"runs": run_count, "steps": step_count, "level": level, "output": output}
        click.echo(encode(counts).decode(), err=True)
    elif output:
        counts_text = f"{tables.format_count(run_count, 'run')} with {tables.format_count(step_count, 'step')}"
        click.echo(f"{counts_text} written to {output}, level {level}.", err=True)
        if level == "shared":
            click.echo("Error texts and stack traces are not hidden. Read them before you share the file.", err=True)


def redact_history(history: History, redactor: Redactor) -> History:
    """Redact a run for export. Its links are kept, without redacted values."""

    def redact(event: Any) -> Any:
        return redact_event(event, redactor)

    steps = [redact(StepEnded(step)).step for step in history.steps]
    run = history.run
    messages: tuple[RecordedMessage, ...] = ()
    if redactor.level == "shared":
        # A result may be a whole file: it is redacted like an argument. Conversations and prompts are left out.
        run = replace(run, context=None)
        steps = [replace(step, result=redactor.value(step.result), messages=(), answer=None) for step in steps]
    else:
        messages = redact(StepEnded(Step(run=history.run.id, seq=0, call=0), history.messages)).messages
    return History(
        run=redact(RunEnded(run)).run,
        steps=tuple(steps),
        links=redact(StepEnded(Step(run=history.run.id, seq=0, call=0, links=history.links))).step.links,
        compactions=tuple(redact(ContextCompacted(compaction)).compaction for compaction in history.compactions),
        messages=messages,
    )


def _export_key(store: Store, url: str) -> bytes:
    """Return the key that makes equal values comparable across exports of one store."""
    if is_remote(url):  # a server does not reveal its key, so values are comparable within one export only
        return os.urandom(32)
    key = store.get(DEFAULT_TENANT, "key", "export")
    if key is None:
        key = os.urandom(32)
        store.put(DEFAULT_TENANT, "key", "export", key)
    return key


@contextlib.contextmanager
def _open_output(output: str | None) -> Iterator[IO[bytes]]:
    """Open standard output, or a file that appears only after it was written completely."""
    if output is None or output == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    path = Path(output)
    try:
        with replace_file(path) as file:
            if path.name.endswith(".gz"):
                with gzip.GzipFile(fileobj=file, mode="wb", filename="", mtime=0) as gzip_file:
                    yield gzip_file  # type: ignore[misc]
            else:
                yield file
    except OSError as error:
        raise SettingsError(f"Cannot write {path} ({error.strerror}). Name another file with -o.") from None
