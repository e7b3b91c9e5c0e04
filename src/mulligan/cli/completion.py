"""mulligan completion."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command(epilog='Examples:\n\n  eval "$(mulligan completion bash)"\n\n  mulligan completion fish | source')
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a completion script for your shell."""
    from mulligan.cli import cli  # a top-level import would be circular

    completer = get_completion_class(shell)
    assert completer is not None  # click supports all choices above
    click.echo(completer(cli, {}, "mulligan", "_MULLIGAN_COMPLETE").source())
