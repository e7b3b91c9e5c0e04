"""Click group that lists full help sentences and suggests names for misspelled commands."""

from __future__ import annotations

from typing import Any

import click

LONGEST = 1000
"""Longer than any help sentence, so that click does not shorten them."""


class Group(click.Group):
    """Command group. If it lists its items without a subcommand, its error for `list` says so."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        known = self.list_commands(ctx)
        if args and args[0] not in known and not args[0].startswith("-"):
            raise click.UsageError(f"there is no command {args[0]!r}. {self._meant(ctx, args[0], known)}", ctx)
        return super().resolve_command(ctx, args)

    def _meant(self, ctx: click.Context, typed: str, known: list[str]) -> str:
        import difflib  # only for a misspelled command

        if typed in ("list", "ls") and self.invoke_without_command:
            return f"To list them: {ctx.command_path}"
        near = difflib.get_close_matches(typed[:100], known, n=1)
        return f"Did you mean {near[0]}?" if near else f"Known are: {', '.join(known)}."

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, each.get_short_help_str(LONGEST)) for name, each in commands if each])
