"""mulligan settings, mulligan env and mulligan completion."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping

import click
import msgspec
from click.shell_completion import get_completion_class

from mulligan import settings as settings_file
from mulligan.cli import cli
from mulligan.cli.options import CommandContext, command
from mulligan.report.tables import render_columns, trusted_line
from mulligan.store.urls import is_remote, redact_password

DEFAULT_URL = "http://127.0.0.1:4700"
"""Default address of `mulligan serve`."""


@command(
    'eval "$(mulligan env)"',
    'eval "$(mulligan env --for claude-code)"',
    'eval "$(mulligan env --for langfuse)"',
    "mulligan env --url https://mulligan.example.com --token mul_...",
    has_store=False,
)
@click.option("--url", help=f"Address of the server.  [the store if it is a server, otherwise {DEFAULT_URL}]")
@click.option("--token", help="Token with role ingest, if the server requires one.  [without --url: token]")
@click.option(
    "--for",
    "agent",
    type=click.Choice(["claude-code", "langfuse", "traceloop"]),
    help="Also print the variables that this agent or SDK reads.",
)
def env(context: CommandContext, url: str | None, token: str | None, agent: str | None) -> None:
    """Print environment variables that make OpenTelemetry export to a server."""
    if url is None:
        settings = settings_file.load_settings()
        if is_remote(settings.store_url):
            url, token = settings.store_url, token or settings.token
    url = url or DEFAULT_URL
    variables = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": url.rstrip("/"),
        # Without this, an SDK that configures itself uses gRPC, which this server does not support.
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
    }
    if token:
        variables["OTEL_EXPORTER_OTLP_HEADERS"] = f"Authorization=Bearer%20{token}"
    if agent == "langfuse":
        # The SDK refuses to start without keys. It sends the secret key as its credential.
        variables |= {
            "LANGFUSE_BASE_URL": url.rstrip("/"), "LANGFUSE_PUBLIC_KEY": "mulligan",
            "LANGFUSE_SECRET_KEY": token or "mulligan",
        }  # fmt: skip
    if agent == "traceloop":
        variables["TRACELOOP_BASE_URL"] = url.rstrip("/")
        if token:
            variables["TRACELOOP_HEADERS"] = f"Authorization=Bearer%20{token}"
    if agent == "claude-code":
        # By default the agent's logs contain neither tool arguments nor tool results.
        variables |= {
            "CLAUDE_CODE_ENABLE_TELEMETRY": "1", "OTEL_LOGS_EXPORTER": "otlp", "OTEL_LOG_TOOL_DETAILS": "1",
        }  # fmt: skip
    exports = "\n".join(f"export {name}={shlex.quote(value)}" for name, value in variables.items())
    context.print(variables, exports)


@command("mulligan settings", "MULLIGAN_ATTEMPTS=2 mulligan settings --json", has_store=False)
def settings(context: CommandContext) -> None:
    """Show the effective settings and where each of them comes from: environment, a file or the default."""
    current_settings = settings_file.load_settings()
    names = [name for name in settings_file.SETTING_NAMES if name not in settings_file.POLICY_NAMES]
    values = {name: getattr(current_settings, name) for name in names}
    values |= {name: getattr(current_settings.policy, name) for name in settings_file.POLICY_NAMES}
    values |= {name: "(set)" for name in ("token", "reflect_key", "alert_webhook") if values[name]}
    values |= {"store": redact_password(current_settings.store_url), "home": str(current_settings.folder)}
    origins = {name: source for source, names in settings_file.read_sources(os.environ).items() for name in names}
    rows = [(name, _format_value(value), _format_origin(name, origins)) for name, value in values.items()]
    lines = [f"Store: {trusted_line(values['store'])}", "", *render_columns([("setting", "value", "from"), *rows])]
    context.print({**values, "origins": {name: origins.get(name, "default") for name in values}}, lines)


def _format_origin(name: str, origins: Mapping[str, str]) -> str:
    origin = origins.get(name, "default")
    return f"MULLIGAN_{name.upper()}" if origin == settings_file.ENVIRONMENT_SOURCE else trusted_line(origin)


def _format_value(value: object) -> str:
    text = ", ".join(value) if isinstance(value, tuple) else value
    return trusted_line(text) if text not in (None, "") else "-"


@command('eval "$(mulligan completion bash)"', "mulligan completion fish | source", has_store=False, has_json=False)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(context: CommandContext, shell: str) -> None:
    """Print a completion script for your shell."""
    completer = get_completion_class(shell)
    assert completer is not None  # click supports all choices above
    click.echo(completer(cli, {}, "mulligan", "_MULLIGAN_COMPLETE").source())
