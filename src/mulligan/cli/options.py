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
from mulligan.core.failure import SettingsError, StoreError
from mulligan.core.records import encode
from mulligan.record.journal_import import recover_journals
from mulligan.redaction import sanitize
from mulligan.report import time_parsing
from mulligan.report.tables import wrap_text
from mulligan.settings import Settings
from mulligan.store import audit
from mulligan.store.base import DEFAULT_TENANT, Progress, Store
from mulligan.store.urls import is_postgres, is_remote, journals_of, local_path, open_store, redact_password

F = TypeVar("F", bound=Callable[..., Any])
MIN_SHOWN_BYTES = 1024 * 1024
"""Smaller inputs finish before their progress is useful."""
MAX_PROGRESS_LABEL_CHARS = 44
"""A longer label could wrap the line of a progress bar."""

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def store_option(function: F) -> F:
    return click.option(
        "--store",
        metavar="URL",
        help="Use another store than the settings: a path, postgresql://HOST/DATABASE, or a server's address.",
    )(function)


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


@contextlib.contextmanager
def show_read_progress(label: str, total_bytes: int) -> Iterator[Callable[[int], None]]:
    """Show the progress of reading an input of this size. Yield the function to call with the bytes read so far."""
    with show_progress_bar(sanitize(label, MAX_PROGRESS_LABEL_CHARS)) as report_progress:  # it may name a file

        def report_bytes(bytes_read: int) -> None:
            if total_bytes >= MIN_SHOWN_BYTES:
                report_progress(bytes_read, total_bytes)

        yield report_bytes


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
