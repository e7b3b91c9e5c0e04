"""What several commands share: where the store is, and how answers are printed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from mulligan import settings as settings_file
from mulligan.failure import StoreError
from mulligan.records import encode
from mulligan.remember.adoption import adopt
from mulligan.remember.store import LOCAL, Store
from mulligan.remember.urls import journals_of, open_store, sqlite_path
from mulligan.settings import Settings

F = TypeVar("F", bound=Callable[..., Any])

as_json = click.option("--json", "as_json", is_flag=True, help="The same facts as JSON.")


def store_option(function: F) -> F:
    return click.option(
        "--store", metavar="URL", help="Another store than the settings say: a path or sqlite:///PATH."
    )(function)


def settings_with(store: str | None) -> Settings:
    return settings_file.read({"store": store} if store else {})


def opened(settings: Settings) -> Store | None:
    """The store for a command that asks, or None if nothing was ever kept there: a question makes no files.

    What processes that were killed left in their journals is brought in first, so that the answer is whole.
    """
    url = settings.store_url
    if url.startswith("memory:"):
        return open_store(url)
    path = sqlite_path(url)
    try:
        journals = any(journals_of(path).glob("*.journal"))
        if not journals:
            path.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"{path} cannot be read ({error.strerror}). Check its rights, or set MULLIGAN_HOME.") from None
    store = open_store(url)
    if journals:
        try:
            adopt(store, LOCAL, journals_of(path))
        except (OSError, StoreError) as error:
            click.echo(f"warning: what earlier processes left in {journals_of(path)} waits: {error}", err=True)
    return store


def now() -> int:
    return int(time.time() * 1000)


def print_json(value: object) -> None:
    click.echo(encode(value).decode())


def print_lines(lines: Iterable[str]) -> None:
    for each in lines:
        click.echo(each)
