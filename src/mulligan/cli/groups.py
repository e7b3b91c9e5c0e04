"""Click group that lists full help sentences and suggests names for misspelled commands."""

from __future__ import annotations

from typing import Any

import click

MAX_HELP_CHARS = 1000
"""Longer than any help sentence, so that click does not shorten them."""


class CommandGroup(click.Group):
    """Command group. If it lists its items without a subcommand, its error for `list` says so."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        command_names = self.list_commands(ctx)
        if args and args[0] not in command_names and not args[0].startswith("-"):
            raise click.UsageError(
                f"Unknown command {args[0]!r}. {self._suggest_command(ctx, args[0], command_names)}", ctx
            )
        return super().resolve_command(ctx, args)

    def _suggest_command(self, ctx: click.Context, typed: str, command_names: list[str]) -> str:
        import difflib  # only for a misspelled command

        if typed in ("list", "ls") and self.invoke_without_command:
            return f"To list them: {ctx.command_path}"
        matches = difflib.get_close_matches(typed[:100], command_names, n=1)
        return f"Did you mean {matches[0]}?" if matches else f"Available: {', '.join(command_names)}."

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, command.get_short_help_str(MAX_HELP_CHARS)) for name, command in commands if command]
            )
