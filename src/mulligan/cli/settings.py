"""mulligan settings."""

from __future__ import annotations

import click
import msgspec

from mulligan import settings as settings_file
from mulligan.cli.options import as_json, print_json, print_lines
from mulligan.report.tables import render_columns, trusted_line
from mulligan.store.urls import redact_password


@click.command(epilog="Examples:\n\n  mulligan settings\n\n  MULLIGAN_ATTEMPTS=2 mulligan settings --json")
@as_json
def settings(as_json: bool) -> None:
    """Show the effective settings from environment, files and defaults."""
    current_settings = settings_file.load_settings()
    values = {
        name: getattr(current_settings, name)
        for name in settings_file.SETTING_NAMES
        if name not in settings_file.POLICY_NAMES
    }
    values |= msgspec.structs.asdict(current_settings.policy)
    if values["token"]:
        values["token"] = "(set)"
    values |= {"store": redact_password(current_settings.store_url), "home": str(current_settings.folder)}
    if as_json:
        print_json(values)
        return
    click.echo(f"Store: {trusted_line(values['store'])}")
    click.echo("")
    print_lines(render_columns([(name, _format_value(value)) for name, value in values.items()]))


def _format_value(value: object) -> str:
    if isinstance(value, tuple):
        return trusted_line(", ".join(value)) or "-"
    return trusted_line(value) if value not in (None, "") else "-"
