"""mulligan settings."""

from __future__ import annotations

import click
import msgspec

from mulligan import settings as settings_file
from mulligan.remember.urls import shown
from mulligan.report.tables import columns, own
from mulligan.serve.cli.options import as_json, print_json, print_lines


@click.command(epilog="Examples:\n\n  mulligan settings\n\n  MULLIGAN_ATTEMPTS=2 mulligan settings --json")
@as_json
def settings(as_json: bool) -> None:
    """The settings in force here, from environment, files and defaults."""
    read = settings_file.read()
    values = {name: getattr(read, name) for name in settings_file.NAMES if name not in settings_file.POLICY}
    values |= msgspec.structs.asdict(read.policy)
    if values["token"]:
        values["token"] = "(set)"
    values |= {"store": shown(read.store_url), "home": str(read.folder)}
    if as_json:
        print_json(values)
        return
    click.echo(f"Failures are kept in {own(values['store'])}.")
    click.echo("")
    print_lines(columns([(name, _spoken(value)) for name, value in values.items()]))


def _spoken(value: object) -> str:
    if isinstance(value, tuple):
        return own(", ".join(value)) or "-"
    return own(value) if value not in (None, "") else "-"
