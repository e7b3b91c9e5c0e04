"""mulligan settings."""

from __future__ import annotations

import click
import msgspec

from mulligan import settings as settings_file
from mulligan.report import terminal
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
    values |= {"store": read.store_url, "home": str(read.folder)}
    if as_json:
        print_json(values)
        return
    click.echo(f"Failures are kept in {terminal.line(read.store_url, 300)}.")
    click.echo("")
    print_lines(terminal.columns([(name, _spoken(value)) for name, value in values.items()]))


def _spoken(value: object) -> str:
    if isinstance(value, tuple):
        return terminal.line(", ".join(value)) or "-"
    return terminal.line(value) if value not in (None, "") else "-"
