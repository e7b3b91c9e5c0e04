"""Options and helpers that several commands share: store access, output, progress."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import click

from mulligan import settings as settings_file
from mulligan.classify.kinds import KINDS, TYPES
from mulligan.core.failure import SettingsError, StoreError
from mulligan.core.records import encode
from mulligan.record.journal_recovery import recover_journals
from mulligan.report import time_parsing
from mulligan.report.tables import wrap_text
from mulligan.settings import Settings
from mulligan.store import audit
from mulligan.store.base import DEFAULT_TENANT, Progress, Store
from mulligan.store.urls import is_postgres, is_remote, journals_of, local_path, open_store, redact_password

F = TypeVar("F", bound=Callable[..., Any])

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
csv_option = click.option("--csv", "as_comma", is_flag=True, help="Print the rows as CSV.")
limit_option = click.option(
    "--limit", default=20, show_default=True, type=click.IntRange(1, 10_000), help="Maximum number of rows."
)


def store_option(function: F) -> F:
    return click.option(
        "--store",
        metavar="URL",
        help="Use another store than the settings: a path, postgresql://HOST/DATABASE, or a server's address.",
    )(function)


def kind_option(help: str, after: str = "/") -> Callable[[F], F]:
    """Return the option `--kind`. For a type without a code, the value is the type followed by `after`."""

    def check_kind(context: click.Context, option: click.Parameter, text: str | None) -> str | None:
        if text is None:
            return None
        if text.rstrip("/") in TYPES:
            return text.rstrip("/") + after
        if "/" in text:
            return text  # a custom kind, or one of another version
        matching_kinds = [kind for kind in KINDS if kind.partition("/")[2] == text] or ["tool/timeout"]
        examples = " or ".join(matching_kinds)
        raise SettingsError(
            f"Invalid --kind {text!r}. Use a type and a code, such as {examples}, or a type, such as tool."
        )

    return click.option("--kind", callback=check_kind, help=help)


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
        store = open_store(
            url, settings.fsync, progress=report_progress
        )  # same durability as the journals imported below
    if has_journals:
        try:
            recover_journals(store, DEFAULT_TENANT, journals_of(path))
        except (OSError, StoreError) as error:
            click.echo(f"warning: cannot import the orphaned journals in {journals_of(path)}: {error}", err=True)
    return store


def require_store(settings: Settings) -> Store:
    """Open the store, or raise an error if it does not exist."""
    store = open_existing_store(settings)
    if store is None:
        where = redact_password(settings.store_url)
        raise SettingsError(f"Store {where} does not exist yet. Name another with --store.")
    return store


def store_option_suffix(store: str | None) -> str:
    """Return the `--store` option for a suggested command, so that it uses the same store."""
    return f" --store {redact_password(store)}" if store else ""


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


def now_ms() -> int:
    return int(time.time() * 1000)


def parse_time_option(text: str | None, option: str = "--since") -> int | None:
    """Parse a duration (`7d`) or a date as UTC milliseconds. `all` and None return None."""
    try:
        return time_parsing.parse_time(text, now_ms())
    except ValueError:
        raise SettingsError(f"Invalid {option} {text!r}. Use {time_parsing.ACCEPTED_FORMATS}.") from None


def terminal_width() -> int | None:
    """Return the columns of the terminal, or None if stdout is no terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def warn_if_truncated(row_count: int, limit: int) -> None:
    """Warn on stderr that a list may be incomplete, because it reached the limit."""
    if row_count == limit:
        click.echo(
            f"\nOnly the first {limit:,} are listed and counted. For more: --limit {min(10 * limit, 10_000)}", err=True
        )


def print_json(value: object) -> None:
    click.echo(encode(value).decode())


def print_lines(lines: Iterable[str]) -> None:
    """Print tables unchanged and wrap sentences to the terminal. A sentence starts in the first column."""
    is_color_off = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    columns = terminal_width()
    for line in lines:
        text = click.unstyle(line) if is_color_off else line
        for part in wrap_text(text, columns, "") if text[:1].strip() and "\x1b" not in text else (text,):
            click.echo(part)
