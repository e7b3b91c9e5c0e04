"""The mulligan command. Each group of commands is one file, imported when one of its commands is run."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import click

from mulligan import __version__
from mulligan.cli.groups import CommandGroup
from mulligan.core.failure import MulliganError

SECTIONS: dict[str, dict[str, tuple[str, str, str]]] = {
    "Begin": {
        "demo": ("demo", "demo", "Watch failing calls being recovered, told or stopped."),
        "scan": ("scan", "scan", "What failed in the session logs on this machine."),
        "install": ("install", "install", "Let the failures of another program come to mulligan."),
        "uninstall": ("install", "uninstall", "Take that back."),
        "proxy": ("proxy", "proxy", "Stand before an MCP server: record, explain, repair its calls."),
    },
    "What happened": {
        "runs": ("runs", "runs", "The newest runs and what came of them."),
        "show": ("runs", "show", "One run: every attempt at every call."),
        "tail": ("tail", "tail", "Every attempt as it ends."),
        "patterns": ("patterns", "patterns", "What goes wrong again and again, and what overcame it."),
        "stats": ("stats", "stats", "What failed, what overcame it, and what that suggests."),
        "sessions": ("sessions", "sessions", "What is remembered of each conversation."),
    },
    "What was learned": {
        "fixes": ("fixes", "fixes", "What turned failures into successes, and what is tried."),
        "lessons": ("lessons", "lessons", "The same in words: decide, edit, write to files and read."),
        "consolidate": ("lessons", "consolidate", "Make lessons of what has overcome failures."),
        "seed": ("seed", "seed", "Put the lessons that come with mulligan into the store."),
        "prompt": ("prompt", "prompt", "What a model should know of its tools, as text or in a file."),
        "mcp": ("mcp", "mcp", "Let an agent ask what is known about failures: an MCP server."),
    },
    "A failure at hand": {
        "explain": ("classify", "explain", "What kind of failure is this, and whose move is it?"),
        "classify": ("classify", "explain", "The same as explain."),
        "suggest": ("suggest", "suggest", "What would repair these calls?"),
        "replay": ("replay", "replay", "Which recorded failures would be overcome today?"),
        "redact": ("redact", "redact", "Take secrets and personal data out of a text."),
    },
    "A server for a team": {
        "serve": ("serve", "serve", "Take in what agents send, and answer questions, over HTTP."),
        "token": ("token", "token", "Who may send, ask or decide on a server."),
        "tenant": ("tenant", "tenant", "Whose records a server keeps, how long and how much."),
        "audit": ("audit", "audit", "What people changed, who and when."),
        "env": ("env", "env", "The variables that make OpenTelemetry send to a server."),
    },
    "The store": {
        "doctor": ("doctor", "doctor", "Where things are kept, and whether they are well."),
        "import": ("import_export", "import_", "Put runs from files into the store."),
        "export": ("import_export", "export", "Write runs as JSON lines."),
        "backup": ("maintenance", "backup", "Copy the store while others write."),
        "copy": ("copy_migrate", "copy", "Copy a whole store into another one, and compare them."),
        "migrate": ("copy_migrate", "migrate", "Bring a store of an earlier version up to date."),
        "prune": ("maintenance", "prune", "Remove what is old."),
        "forget": ("maintenance", "forget", "Make something as if it had never been recorded."),
    },
    "This command": {
        "settings": ("settings", "settings", "The settings in force here."),
        "completion": ("completion", "completion", "Completion for your shell."),
    },
}
"""Command name to module, function and one-line help. The help page imports no command module."""
MAX_ERROR_CHARS = 2000
"""Longest error message. A longer one is cut in the middle, because the command to type stands at its end."""
COMMANDS = {name: entry for commands in SECTIONS.values() for name, entry in commands.items()}


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
    epilog="Try `mulligan demo` first. Every command that prints takes --json, and has examples in its --help.",
)
@click.version_option(__version__, "-V", "--version", message="mulligan %(version)s")
def cli() -> None:
    """A second chance for every failed agent call, and a memory so that it is needed less often."""


def _command_name(words: list[str]) -> str:
    """Return the typed command, for errors that carry no click context."""
    return f"mulligan {words[1]}" if words[1:] and words[1] in COMMANDS else "mulligan"


def main() -> None:
    """Run the command. Exit codes: 0 success, 1 success with a negative answer, 2 the command failed."""
    try:
        code = cli.main(prog_name="mulligan", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        code = 2
    except click.ClickException as error:
        where = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else _command_name(sys.argv)
        message = error.format_message()
        _fail(f"{message[:1].lower()}{message[1:]} (see `{where} --help`)")
    except MulliganError as error:
        _fail(str(error))
    except (click.Abort, KeyboardInterrupt):
        code = 130
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str) -> None:
    # Typed text and file names may contain control characters. Only these are removed: users copy commands from the
    # message.
    shortened = (
        message
        if len(message) <= MAX_ERROR_CHARS
        else f"{message[: MAX_ERROR_CHARS // 2]} [... cut ...] {message[-MAX_ERROR_CHARS // 2 :]}"
    )
    printable = "".join(character if character.isprintable() else " " for character in shortened)
    click.echo(f"error: {' '.join(printable.split())}", err=True)
    sys.exit(2)
