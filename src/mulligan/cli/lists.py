"""Lists: the options of a command that lists a resource, and the output of its rows."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import click

from mulligan.classify.kinds import KINDS, TYPES
from mulligan.cli.options import (
    as_json,
    load_settings,
    now_ms,
    open_existing_store,
    print_json,
    print_lines,
    require_store,
    store_option,
    terminal_width,
)
from mulligan.core.failure import SettingsError
from mulligan.report.resources import Parameter, ResourceSpec
from mulligan.report.tables import render_csv
from mulligan.settings import Settings
from mulligan.store.base import DEFAULT_TENANT, Store

Option = Callable[[Any], Any]
"""Decorator that adds an option to a command."""

csv_option = click.option("--csv", "as_csv", is_flag=True, help="Print the rows as CSV.")
limit_option = click.option(
    "--limit", default=20, show_default=True, type=click.IntRange(1, 10_000), help="Maximum number of rows."
)


def resource_options(spec: ResourceSpec) -> Option:
    """Return a decorator that adds the options of a list: its filters, --limit, --csv, --store and --json."""
    return add_options(filter_options(spec), limit_option, csv_option, store_option, as_json)


def item_options(function: Callable[..., Any]) -> Any:
    """Add the options of a subcommand: --store and --json, and the context of its group."""
    return add_options(store_option, as_json)(click.pass_context(function))


def open_store_of(context: click.Context, store: str | None) -> Store:
    """Open the store that a subcommand or its group names."""
    return require_store(load_settings(store or context.obj))


def filter_options(spec: ResourceSpec) -> Option:
    """Return a decorator that adds an option for each option and filter of a resource."""
    return add_options(*map(_parameter_option, (*spec.options, *spec.filters)))


def add_options(*options: Option) -> Option:
    def decorate(function: Any) -> Any:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def _parameter_option(parameter: Parameter) -> Option:
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


def read_list(
    spec: ResourceSpec, settings: Settings, limit: int, filters: Mapping[str, Any], tenant: str = DEFAULT_TENANT
) -> tuple[Store | None, list[Any]]:
    """Return the store, if it exists, and its records that match the filters."""
    store = open_existing_store(settings)
    query = spec.build_query(filters, now=now_ms(), limit=limit)
    return store, spec.read(store, tenant, query) if store is not None else []


def print_list(
    spec: ResourceSpec,
    records: Sequence[Any],
    limit: int,
    as_json: bool,
    as_csv: bool,
    to_json: Callable[[Any], Any] | None = None,
) -> bool:
    """Print records as JSON, CSV or a table. Return False if there is nothing to print: the caller says why."""
    if as_json:
        print_json(list(map(to_json or spec.to_facts, records)))
    elif as_csv:
        print_lines(render_csv(map(spec.to_facts, records), spec.csv_columns))
    elif records:
        print_lines(spec.render_list(records, now_ms(), terminal_width()))
        warn_if_truncated(len(records), limit)
    return bool(records or as_json or as_csv)


def warn_if_truncated(row_count: int, limit: int) -> None:
    """Warn on stderr that a list may be incomplete, because it reached the limit."""
    if row_count == limit:
        more = min(10 * limit, 10_000)
        click.echo(f"\nOnly the first {limit:,} are listed and counted. For more: --limit {more}", err=True)


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
