"""mulligan settings, mulligan env and mulligan completion."""

from __future__ import annotations

import shlex

import click
import msgspec
from click.shell_completion import get_completion_class

from mulligan import settings as settings_file
from mulligan.cli.options import as_json, print_json, print_lines
from mulligan.report.tables import render_columns, trusted_line
from mulligan.store.urls import redact_password

DEFAULT_URL = "http://127.0.0.1:4700"
"""Default address of `mulligan serve`."""


@click.command(
    epilog='Examples:\n\n  eval "$(mulligan env)"\n\n  eval "$(mulligan env --for claude-code)"\n\n'
    "  mulligan env --url https://mulligan.example.com --token mul_..."
)
@click.option("--url", default=DEFAULT_URL, show_default=True, help="Address of the server.")
@click.option("--token", help="Token with role ingest, if the server requires one.")
@click.option(
    "--for",
    "agent",
    type=click.Choice(["claude-code"]),
    help="Also print the variables that turn on this agent's telemetry.",
)
@as_json
def env(url: str, token: str | None, agent: str | None, as_json: bool) -> None:
    """Print environment variables that make OpenTelemetry export to a server."""
    url = url.rstrip("/")
    variables = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": url,
        # Without this, an SDK that configures itself uses gRPC, which this server does not support.
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
    }
    if token:
        variables["OTEL_EXPORTER_OTLP_HEADERS"] = f"Authorization=Bearer%20{token}"
    if agent == "claude-code":
        # By default the agent's logs contain neither tool arguments nor tool results.
        variables |= {
            "CLAUDE_CODE_ENABLE_TELEMETRY": "1", "OTEL_LOGS_EXPORTER": "otlp", "OTEL_LOG_TOOL_DETAILS": "1",
        }  # fmt: skip
    if as_json:
        print_json(variables)
        return
    for name, value in variables.items():
        click.echo(f"export {name}={shlex.quote(value)}")


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


@click.command(epilog='Examples:\n\n  eval "$(mulligan completion bash)"\n\n  mulligan completion fish | source')
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a completion script for your shell."""
    from mulligan.cli import cli  # a top-level import would be circular

    completer = get_completion_class(shell)
    assert completer is not None  # click supports all choices above
    click.echo(completer(cli, {}, "mulligan", "_MULLIGAN_COMPLETE").source())
