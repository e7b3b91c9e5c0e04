"""The mulligan command. Each group of commands is one file, imported when one of its commands is run."""

from __future__ import annotations

import importlib
import os
import re
import sys
from typing import Any

import click

from mulligan import __version__
from mulligan.core.failure import MulliganError

SECTIONS: dict[str, dict[str, tuple[str, str, str]]] = {
    "Get started": {
        "demo": ("demo", "demo", "Watch mulligan recover failing calls."),
        "scan": ("scan", "scan", "Report failures in the session logs on this machine."),
        "install": ("install", "install", "Connect mulligan to a coding agent or MCP client."),
        "uninstall": ("install", "uninstall", "Remove what install added."),
        "proxy": ("proxy", "proxy", "Run an MCP server and record and repair its calls."),
    },
    "Inspect runs": {
        "runs": ("runs", "runs", "List recent runs."),
        "search": ("runs", "search", "Find runs by the words in them."),
        "show": ("runs", "show", "Show one run with every attempt."),
        "tail": ("runs", "tail", "Print attempts as they end."),
        "patterns": ("patterns", "patterns", "List recurring failures and their fixes."),
        "stats": ("runs", "stats", "Show failure and recovery statistics."),
        "impact": ("runs", "impact", "Show whether mulligan helps your agents."),
        "sessions": ("sessions", "sessions", "List conversations and their open failures."),
    },
    "Manage memory": {
        "fixes": ("patterns", "fixes", "List, approve or revoke fixes."),
        "lessons": ("lessons", "lessons", "List, edit, approve, export or import lessons."),
        "consolidate": ("lessons", "consolidate", "Turn fixes into lessons."),
        "seed": ("lessons", "seed", "Install the lessons that ship with mulligan."),
        "prompt": ("prompt", "prompt", "Render lessons about tools as text or into a file."),
        "mcp": ("proxy", "mcp", "Run an MCP server that answers questions about failures."),
    },
    "Analyze a failure": {
        "classify": ("analyze", "classify", "Classify an error and name its remedy."),
        "suggest": ("analyze", "suggest", "Suggest repairs for failed calls."),
        "reflect": ("reflect", "reflect", "Ask your own model about a failed call."),
        "replay": ("replay", "replay", "Replay recorded failures against the current memory."),
        "redact": ("redact", "redact", "Remove secrets and personal data from a text."),
    },
    "Run a server": {
        "serve": ("serve", "serve", "Start the ingest API and the dashboard."),
        "token": ("tenant", "token", "Create, list or revoke server tokens."),
        "tenant": ("tenant", "tenant", "Manage tenants, retention and quotas."),
        "alerts": ("alerts", "alerts", "Set, test and list the alerts of a server."),
        "audit": ("tenant", "audit", "Show the audit log."),
        "env": ("configuration", "env", "Print OpenTelemetry exporter settings for a server."),
    },
    "Maintain the store": {
        "doctor": ("doctor", "doctor", "Check the installation and the store."),
        "import": ("import_export", "import_", "Import runs from files."),
        "export": ("import_export", "export", "Export runs as JSON lines."),
        "backup": ("maintenance", "backup", "Back up the store while it is in use."),
        "copy": ("maintenance", "copy", "Copy a store into another one and compare them."),
        "migrate": ("maintenance", "migrate", "Migrate a store to the current schema version."),
        "prune": ("maintenance", "prune", "Delete expired records."),
        "forget": ("maintenance", "forget", "Delete matching records permanently."),
    },
    "Configuration": {
        "settings": ("configuration", "settings", "Show the effective settings."),
        "completion": ("configuration", "completion", "Print shell completion."),
    },
}
"""Command name to module, function and one-line help. The help page imports no command module."""
MAX_ERROR_CHARS = 2000
"""Maximum length of an error message. A longer one is cut in the middle: the command to type is at its end."""
COMMANDS = {name: entry for commands in SECTIONS.values() for name, entry in commands.items()}


class CommandGroup(click.Group):
    """Command group that lists full help sentences and suggests names for misspelled commands."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        names = self.list_commands(ctx)
        if args and args[0] not in names and not args[0].startswith("-"):
            raise click.UsageError(f"Unknown command {args[0]!r}. {self._suggest_command(ctx, args[0], names)}", ctx)
        return super().resolve_command(ctx, args)

    def _suggest_command(self, ctx: click.Context, typed: str, names: list[str]) -> str:
        import difflib  # only for a misspelled command

        if typed in ("list", "ls") and self.invoke_without_command:
            return f"To list them: {ctx.command_path}"
        matches = difflib.get_close_matches(typed[:100], names, n=1)
        return f"Did you mean {matches[0]}?" if matches else f"Available: {', '.join(names)}."

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(
                # Longer than any help sentence, so that click does not shorten them.
                [(name, command.get_short_help_str(1000)) for name, command in commands if command]
            )


class Commands(CommandGroup):
    """Command group that imports the module of a command on demand."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, name, _ = COMMANDS[cmd_name]
        command = getattr(importlib.import_module(f"mulligan.cli.{module}"), name)
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # The reader closed the pipe early. Without this, Python reports the error again when it closes stdout.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0  # 0: click would report a failure

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        name_width = max(map(len, COMMANDS))
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(name_width), summary) for name, (_, _, summary) in commands.items()])


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Start with `mulligan demo`. Every command that prints takes --json and shows examples in its --help.",
)
@click.version_option(__version__, "-V", "--version", message="mulligan %(version)s")
def cli() -> None:
    """Failure recovery and failure memory for LLM agents."""


def main() -> None:
    """Run the command. Exit codes: 0 success, 1 success with a negative answer, 2 the command failed."""
    try:
        code = cli.main(prog_name="mulligan", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        code = 2
    except click.ClickException as error:
        typed = next((name for name in sys.argv[1:2] if name in COMMANDS), "")
        where = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else f"mulligan {typed}"
        _fail(f"{_describe_usage_error(error)} (see `{where.strip()} --help`)")
    except MulliganError as error:
        _fail(str(error))
    except (click.Abort, KeyboardInterrupt):
        code = 130
    sys.exit(code if isinstance(code, int) else 0)


def _describe_usage_error(error: click.ClickException) -> str:
    """Return the message of click, in plain words for a number and with the similar choice for a misspelled one."""
    import difflib  # only for a mistake

    message = (
        error.format_message()
        .replace("valid integer range", "valid integer")
        .replace("valid float range", "valid number")
    )
    value_type = getattr(getattr(error, "param", None), "type", None)
    choices = value_type.choices if isinstance(value_type, click.Choice) else ()
    typed = re.search(r"'([^']{1,80})' is not one of", message)
    near = difflib.get_close_matches(typed[1], list(map(str, choices)), n=1) if typed else []
    return f"{message} Did you mean {near[0]!r}?" if near else message


def _fail(message: str) -> None:
    if len(message) > MAX_ERROR_CHARS:
        message = f"{message[: MAX_ERROR_CHARS // 2]} [... cut ...] {message[-MAX_ERROR_CHARS // 2 :]}"
    # Typed text may contain control characters. Only these are removed: users copy commands from the message.
    printable = "".join(character if character.isprintable() else " " for character in message)
    click.echo(f"error: {' '.join(printable.split())}", err=True)
    sys.exit(2)
