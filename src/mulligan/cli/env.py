"""mulligan env: environment variables that point programs to a server."""

from __future__ import annotations

import shlex

import click

from mulligan.cli.options import as_json, print_json

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
