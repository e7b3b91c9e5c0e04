"""The command decorator, and shared parts of commands: store access, list options, output and progress."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import click

from mulligan import settings as settings_file
from mulligan.cli import CommandGroup
from mulligan.contract import audit
from mulligan.contract.store import DEFAULT_TENANT, Progress, RunQuery, Store
from mulligan.core.failure import SettingsError, StoreError
from mulligan.core.kinds import KINDS, TYPES
from mulligan.core.prices import PriceTable
from mulligan.core.records import History, Run, encode
from mulligan.record.journal_import import recover_journals
from mulligan.redaction import sanitize
from mulligan.redaction.lazy_property import lazy_property
from mulligan.report.resources import Parameter, ResourceSpec
from mulligan.report.tables import (
    ACCEPTED_FORMATS,
    escape_hidden,
    format_age,
    parse_time,
    render_csv,
    to_line,
    wrap_text,
)
from mulligan.settings import Settings
from mulligan.store.urls import is_postgres, is_remote, journals_of, local_path, open_store, redact_password

_STORE_HELP = "Use another store than the settings: a path, postgresql://HOST/DATABASE, or a server's address."

Decorator = Callable[[Any], Any]


class CommandContext:
    """The --store and --json options of a command: opens its store and prints its result."""

    def __init__(self, store: str | None, as_json: bool) -> None:
        self.store_option = store
        self.as_json = as_json

    @lazy_property
    def settings(self) -> Settings:
        return load_settings(self.store_option)

    @property
    def where(self) -> str:
        """The address of the store, without its password."""
        return redact_password(self.settings.store_url)

    @property
    def suffix(self) -> str:
        """The `--store` option for a suggested command, so that it uses the same store."""
        return f" --store {redact_password(self.store_option)}" if self.store_option else ""

    @property
    def now(self) -> int:
        """The time in UTC milliseconds."""
        return now_ms()

    @property
    def width(self) -> int | None:
        """The columns of the terminal, or None if stdout is no terminal."""
        return terminal_width()

    def find_store(self, *, may_be_missing: bool = False) -> Store | None:
        """Open the store if it exists. One that `--store` names must exist, unless it may be missing."""
        may_be_missing = may_be_missing or self.store_option is None
        return open_existing_store(self.settings) if may_be_missing else self.require_store()

    def require_store(self) -> Store:
        """Open the store, or raise an error if it does not exist."""
        store = open_existing_store(self.settings)
        if store is None:
            raise SettingsError(f"Store {self.where} does not exist yet. Name another with --store.")
        return store

    def create_store(self) -> Store:
        """Open the store to write to it. Create it if it does not exist."""
        settings = self.settings
        if settings.store_url.startswith("memory:"):
            raise SettingsError("A store in memory is lost when the command ends. Name a file: --store PATH")
        return open_store(settings.store_url, settings.fsync, settings.token)

    def print(self, facts: object, text: str | Iterable[str]) -> None:
        """Print the facts as JSON or the text: one message, or lines."""
        if self.as_json:
            print_json(facts)
        elif isinstance(text, str):
            click.echo(text)
        else:
            print_lines(text)

    def read_list(
        self, spec: ResourceSpec, filters: Mapping[str, Any], limit: int, tenant: str = DEFAULT_TENANT
    ) -> tuple[Store | None, list[Any]]:
        """Return the store, if it exists, and its records that match the filters."""
        store = self.find_store()
        query = spec.build_query(filters, now=now_ms(), limit=limit)
        return store, spec.read(store, tenant, query) if store is not None else []

    def print_list(
        self,
        spec: ResourceSpec,
        records: Sequence[Any],
        limit: int,
        as_csv: bool,
        to_json: Callable[[Any], Any] | None = None,
        total: int = 0,
    ) -> bool:
        """Print records as JSON, CSV or a table. Return False if there is nothing to print: the caller says why."""
        if self.as_json:
            print_json(list(map(to_json or spec.to_facts, records)))
        elif as_csv:
            print_lines(render_csv(map(spec.to_facts, records), spec.csv_columns))
        elif records:
            print_lines(spec.render_list(records, now_ms(), terminal_width(), total))
            warn_if_truncated(len(records), limit)
        return bool(records or self.as_json or as_csv)


def command(
    *examples: str, parent: click.Group | None = None, has_store: bool = True, has_json: bool = True, **attributes: Any
) -> Callable[[Callable[..., Any]], click.Command]:
    """Return a decorator that makes a function a command, whose first argument is its `CommandContext`.

    It adds --store and --json after the options of the function, and the examples to the help. A subcommand uses the
    store of its group, unless it names another.
    """

    def decorate(function: Callable[..., Any]) -> click.Command:
        decorator = parent.command if parent is not None else click.command
        return _build_command(decorator, function, examples, has_store, has_json, attributes)

    return decorate


def list_group(*examples: str, **attributes: Any) -> Callable[[Callable[..., Any]], click.Group]:
    """Return a decorator that makes a function a group of commands, and the list that it prints without a command."""

    def decorate(function: Callable[..., Any]) -> click.Group:
        options = {"cls": CommandGroup, "invoke_without_command": True, "subcommand_metavar": "[COMMAND]"}
        group = _build_command(click.group, function, examples, True, True, options | attributes)
        return cast(click.Group, group)

    return decorate


def _build_command(
    decorator: Callable[..., Decorator],
    function: Callable[..., Any],
    examples: Sequence[str],
    has_store: bool,
    has_json: bool,
    attributes: dict[str, Any],
) -> click.Command:
    @functools.wraps(function)
    def run(*, store: str | None = None, as_json: bool = False, **arguments: Any) -> Any:
        context = click.get_current_context()
        store = store or (context.obj if isinstance(context.obj, str) else None)
        if isinstance(context.command, click.Group) and context.invoked_subcommand is not None:
            context.obj = store
            return None
        return function(CommandContext(store, as_json), **arguments)

    epilog = "\n\n  ".join(("Examples:", *examples)) if examples else None
    built: click.Command = decorator(epilog=epilog, **attributes)(run)
    if has_store:
        built.params.append(click.Option(["--store"], metavar="URL", help=_STORE_HELP))
    if has_json:
        built.params.append(click.Option(["--json", "as_json"], is_flag=True, help="Print JSON."))
    return built


def load_settings(store: str | None) -> Settings:
    audit.set_actor(audit.Actor(audit.current_user(), "command"))
    return settings_file.load_settings({"store": store} if store else {})


def open_existing_store(settings: Settings) -> Store | None:
    """Open the store for a read, or return None if it does not exist. A read must not create files.

    Orphaned journals are imported first, so that the results are complete.
    """
    url = settings.store_url
    if url.startswith("memory:") or is_remote(url):
        return open_store(url, token=settings.token)
    path = local_path(url, settings.folder)
    try:
        has_journals = any(journals_of(path).glob("*.journal"))
        if not has_journals and not is_postgres(url):
            path.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(
            f"Cannot read {path} ({error.strerror}). Check its permissions, or set MULLIGAN_HOME."
        ) from None
    with show_progress_bar("migrating the store") as report_progress:  # shown only if the schema must be migrated
        # Same durability as the journals imported below.
        store = open_store(url, settings.fsync, progress=report_progress)
    if has_journals:
        try:
            recover_journals(store, DEFAULT_TENANT, journals_of(path), PriceTable(settings.prices).add_costs)
        except (OSError, StoreError) as error:
            click.echo(f"warning: cannot import the orphaned journals in {journals_of(path)}: {error}", err=True)
    if not is_postgres(url):
        _import_spools(path)
    return store


def _import_spools(path: Path) -> None:
    """Import what hooks could not store, if they use this store."""
    from mulligan.hooks import event_processing, session_files

    if any(Path(session_files.hooks_folder()).glob("*.spool")):
        settings = settings_file.load_settings(of_user=True)
        if event_processing.store_path(settings) == path:
            try:
                event_processing.import_spools(settings)
            except (OSError, StoreError) as error:
                click.echo(f"warning: cannot import the events in {session_files.hooks_folder()}: {error}", err=True)


# Runs


def find_run(store: Store, text: str, now: int) -> History:
    """Return the run that a user names: `last`, an id or the start of one, or an agent for its newest run."""
    if text in ("last", "latest"):
        for history in store.runs(DEFAULT_TENANT, RunQuery(limit=1)):
            return store.run(DEFAULT_TENANT, history.run.id) or history
        raise SettingsError("No runs yet. Wrap a function with @mulligan.tool, or try: mulligan demo")
    prefix, matches = text, list[Run]()
    for prefix in (text, f"run_{text}") if text else ():  # users may omit the prefix of our ids
        if matches := store.find(DEFAULT_TENANT, prefix, limit=4):
            break
    is_exact = prefix in [run.id for run in matches]
    if is_exact or len(matches) == 1:
        match = store.run(DEFAULT_TENANT, prefix if is_exact else matches[0].id)
        if match is not None:
            return match
    for history in store.runs(DEFAULT_TENANT, RunQuery(agent=text, limit=1)) if text else ():
        return store.run(DEFAULT_TENANT, history.run.id) or history
    if len(matches) > 1:
        count = "more than 3" if len(matches) > 3 else len(matches)
        raise SettingsError(
            f"{count} runs start with {prefix}: {_describe_runs(matches[:3], now)}. Type more of the id."
        )
    raise SettingsError(f"No run or agent matches {text!r}. {_suggest_runs(store, text, now)}")


def _suggest_runs(store: Store, text: str, now: int) -> str:
    """Name the agents and runs that are closest to a text, or else the newest runs."""
    import difflib  # lazy: rarely needed

    # Newest runs whose ids and agents are compared with a text that matches no run.
    runs = [history.run for history in store.runs(DEFAULT_TENANT, RunQuery(limit=500))]
    agents = difflib.get_close_matches(text, {run.agent for run in runs if run.agent}, n=1)
    if agents:
        return f"Did you mean the agent {to_line(agents[0])!r}?"
    typed_id = text if text.startswith("run_") else f"run_{text}"
    by_prefix = {run.id[: len(typed_id)]: run for run in reversed(runs)}
    near_ids = difflib.get_close_matches(typed_id, by_prefix, n=3, cutoff=0.75)
    if near_ids:
        return f"Did you mean {_describe_runs([by_prefix[id] for id in near_ids], now)}?"
    newest = f"The newest: {_describe_runs(runs[:3], now)}. " if runs else ""
    return f"{newest}List runs: mulligan runs"


def _describe_runs(runs: Iterable[Run], now: int) -> str:
    return ", ".join(
        f"{run.id} ({format_age(run.started_at, now)}, {to_line(run.agent or 'no agent', 40)})" for run in runs
    )


# Options


def add_options(*options: Decorator) -> Decorator:
    """Return a decorator that adds options, in this order."""
    return lambda function: functools.reduce(lambda decorated, option: option(decorated), reversed(options), function)


limit_option = click.option(
    "--limit", default=20, show_default=True, type=click.IntRange(1, 10_000), help="Maximum number of rows."
)


def list_options(spec: ResourceSpec) -> Decorator:
    """Return a decorator that adds the options of a list: its filters, --limit and --csv."""
    csv_option = click.option("--csv", "as_csv", is_flag=True, help="Print the rows as CSV.")
    return add_options(filter_options(spec), limit_option, csv_option)


def filter_options(spec: ResourceSpec) -> Decorator:
    """Return a decorator that adds an option for each option and filter of a resource."""
    return add_options(*map(_parameter_option, (*spec.options, *spec.filters)))


def has_filters(filters: Mapping[str, Any]) -> bool:
    return any(value is not None for value in filters.values())


def _parameter_option(parameter: Parameter) -> Decorator:
    flag = f"--{parameter.name.replace('_', '-')}"

    def parse(context: click.Context, option: click.Parameter, text: str | None) -> Any:
        if text is None or parameter.type in ("choice", "flag"):
            return text
        try:
            return parameter.parse(_check_kind(text) if parameter.type == "kind" else text, now_ms())
        except ValueError as error:
            raise SettingsError(f"Invalid {flag} {text!r}. Use {error}.") from None

    return click.option(
        flag,
        parameter.name,
        type=click.Choice(parameter.choices) if parameter.choices else None,
        is_flag=parameter.type == "flag",
        default=parameter.default,
        show_default=parameter.default is not None,
        metavar="7d" if parameter.type == "moment" else None,
        callback=parse,
        help=parameter.description,
    )


def _check_kind(text: str) -> str:
    """Return a kind or a type. Raise `SettingsError` for a code without its type."""
    if "/" in text or text in TYPES:  # with a slash: a custom kind, or one of another version
        return text
    examples = " or ".join([kind for kind in KINDS if kind.partition("/")[2] == text] or ["tool/timeout"])
    raise SettingsError(f"Invalid --kind {text!r}. Use a type and a code, such as {examples}, or a type, such as tool.")


def parse_time_option(text: str | None) -> int | None:
    """Parse --since, a duration (`7d`) or a date, as UTC milliseconds. `all` and None return None."""
    try:
        return parse_time(text, now_ms())
    except ValueError:
        raise SettingsError(f"Invalid --since {text!r}. Use {ACCEPTED_FORMATS}.") from None


def import_function(option: str, path: str, default: str = "") -> Callable[..., Any]:
    """Import MODULE:FUNCTION from the working directory or an installed package, for an option."""
    module, _, name = path.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        function = getattr(importlib.import_module(module), name or default)
    except (ImportError, AttributeError, ValueError) as error:
        raise SettingsError(f"Cannot import {option} {path!r}: {error}. Use MODULE:FUNCTION.") from None
    finally:
        sys.path.pop(0)
    if not callable(function):
        raise SettingsError(f"{option} {path!r} is not a function. Use MODULE:FUNCTION.")
    return cast(Callable[..., Any], function)


# Output


def now_ms() -> int:
    return int(time.time() * 1000)


def terminal_width() -> int | None:
    """Return the columns of the terminal, or None if stdout is no terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def is_color_off() -> bool:
    return bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"


def print_json(value: object) -> None:
    """Print a value as JSON. Hidden characters are escaped: some control a terminal, and JSON permits most of them."""
    click.echo(escape_hidden(encode(value).decode()))


def print_lines(lines: Iterable[str]) -> None:
    """Print tables unchanged and wrap sentences to the terminal. A sentence starts in the first column."""
    columns = terminal_width()
    for line in lines:
        text = click.unstyle(line) if is_color_off() else line
        for part in wrap_text(text, columns, "") if text[:1].strip() and "\x1b" not in text else (text,):
            click.echo(part)


def warn_if_truncated(row_count: int, limit: int) -> None:
    """Warn on stderr that a list may be incomplete, because it reached the limit."""
    if row_count == limit:
        more = min(10 * limit, 10_000)
        click.echo(f"\nOnly the first {limit:,} are listed and counted. For more: --limit {more}", err=True)


def confirm(question: str, is_confirmed: bool) -> None:
    """Ask before something that cannot be undone, unless --yes confirms it."""
    if is_confirmed:
        return
    if not sys.stdin.isatty():
        raise SettingsError("This cannot be undone, and there is no terminal for a confirmation. Add --yes.")
    click.confirm(question, abort=True, err=True)


@contextlib.contextmanager
def show_progress_bar(label: str) -> Iterator[Progress]:
    """Show a progress bar on stderr after the first report. Without a terminal, show nothing."""
    if not sys.stderr.isatty():
        yield lambda completed, total: None
        return
    with contextlib.ExitStack() as bar_stack:
        bar: Any = None

        def report_progress(completed: int, total: int) -> None:
            nonlocal bar
            if bar is None:
                bar = bar_stack.enter_context(click.progressbar(length=1, label=label, file=sys.stderr))
            bar.length = max(total, 1)
            bar.update(max(0, min(completed, bar.length) - bar.pos))

        yield report_progress


@contextlib.contextmanager
def show_read_progress(label: str, total_bytes: int) -> Iterator[Callable[[int], None]]:
    """Show the progress of reading an input of this size. Yield the function to call with the bytes read so far."""
    # A longer label could wrap the line of a progress bar.
    with show_progress_bar(sanitize(label, 44)) as report_progress:  # it may name a file

        def report_bytes(bytes_read: int) -> None:
            if total_bytes >= 1024 * 1024:  # smaller inputs finish before their progress is useful
                report_progress(bytes_read, total_bytes)

        yield report_bytes
