"""What several commands share: where the store is, and how answers are printed."""

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
from mulligan.classify.taxonomy import KINDS, TYPES
from mulligan.failure import SettingsError, StoreError
from mulligan.records import encode
from mulligan.remember import audit
from mulligan.remember.recording.adoption import adopt
from mulligan.remember.store import LOCAL, Progress, Store
from mulligan.remember.urls import is_postgres, is_remote, journals_of, open_store, place_of, shown
from mulligan.report import moments
from mulligan.report.tables import wrapped
from mulligan.settings import Settings

F = TypeVar("F", bound=Callable[..., Any])

as_json = click.option("--json", "as_json", is_flag=True, help="The same facts as JSON.")
csv_option = click.option("--csv", "as_comma", is_flag=True, help="The same rows as CSV.")
limit_option = click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 10_000), help="How many.")


def store_option(function: F) -> F:
    return click.option(
        "--store",
        metavar="URL",
        help="Another store than the settings say: a path, postgresql://HOST/DATABASE, or a server's address.",
    )(function)


def kind_option(help: str, after: str = "/") -> Callable[[F], F]:
    """`--kind`: a kind, or a type alone, which comes with `after` behind it."""

    def checked(context: click.Context, option: click.Parameter, text: str | None) -> str | None:
        if text is None:
            return None
        if text.rstrip("/") in TYPES:
            return text.rstrip("/") + after
        if "/" in text:
            return text  # one of the user's own, or of another version
        near = [each for each in KINDS if each.partition("/")[2] == text] or ["tool/timeout"]
        meant = " or ".join(near)
        raise SettingsError(f"--kind takes a type and a code, such as {meant}, or a type, such as tool, got {text!r}.")

    return click.option("--kind", callback=checked, help=help)


def settings_with(store: str | None) -> Settings:
    audit.act_as(audit.Actor(audit.user(), "command"))
    return settings_file.read({"store": store} if store else {})


def opened(settings: Settings) -> Store | None:
    """The store for a command that asks, or None if nothing was ever kept there: a question makes no files.

    What processes that were killed left in their journals is brought in first, so that the answer is whole.
    """
    url = settings.store_url
    if url.startswith("memory:") or is_remote(url):
        return open_store(url, token=settings.token)
    path = place_of(url, settings.folder)
    try:
        journals = any(journals_of(path).glob("*.journal"))
        if not journals and not is_postgres(url):
            path.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"{path} cannot be read ({error.strerror}). Check its rights, or set MULLIGAN_HOME.") from None
    with progress("bringing the store up to date") as told:  # where an earlier version made it; else nothing is shown
        store = open_store(url, settings.fsync, progress=told)  # or what is adopted would survive less than its journal
    if journals:
        try:
            adopt(store, LOCAL, journals_of(path))
        except (OSError, StoreError) as error:
            click.echo(f"warning: what earlier processes left in {journals_of(path)} waits: {error}", err=True)
    return store


def needed(settings: Settings) -> Store:
    """The store for a command that is about something in it."""
    kept = opened(settings)
    if kept is None:
        where = shown(settings.store_url)
        raise SettingsError(f"there is no {where} yet: nothing was ever kept there. Name another: --store.")
    return kept


def there(store: str | None) -> str:
    """What a command that is suggested needs, so that it is about the same store."""
    return f" --store {shown(store)}" if store else ""


@contextlib.contextmanager
def progress(label: str) -> Iterator[Progress]:
    """A bar on the terminal's error output, once there is anything to tell; nothing where that is no terminal."""
    if not sys.stderr.isatty():
        yield lambda done, of: None
        return
    with contextlib.ExitStack() as shown:
        bar: Any = None

        def told(done: int, of: int) -> None:
            nonlocal bar
            if bar is None:
                bar = shown.enter_context(click.progressbar(length=1, label=label, file=sys.stderr))
            bar.length = max(of, 1)
            bar.update(max(0, min(done, bar.length) - bar.pos))

        yield told


def now() -> int:
    return int(time.time() * 1000)


def moment(text: str | None, option: str = "--since") -> int | None:
    """`7d` ago, or a date, as a moment in UTC milliseconds; `all` and nothing are none."""
    try:
        return moments.moment(text, now())
    except ValueError:
        raise SettingsError(f"{option} takes {moments.FORMS}, got {text!r}.") from None


def width() -> int | None:
    """Columns of the terminal; None where there is none and nothing need be cut."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def told_more(shown: int, limit: int) -> None:
    """Says that a list may have been cut: its first line counts what is listed, not what there is."""
    if shown == limit:
        click.echo(
            f"\nThe first {limit:,} are listed and counted. For more: --limit {min(10 * limit, 10_000)}", err=True
        )


def print_json(value: object) -> None:
    click.echo(encode(value).decode())


def print_lines(lines: Iterable[str]) -> None:
    """Tables fit the terminal already; a sentence, which begins at its left, is broken between words."""
    plainly = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    columns = width()
    for each in lines:
        text = click.unstyle(each) if plainly else each
        for part in wrapped(text, columns, "") if text[:1].strip() and "\x1b" not in text else (text,):
            click.echo(part)
