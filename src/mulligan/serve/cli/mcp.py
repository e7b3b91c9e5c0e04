"""mulligan mcp."""

from __future__ import annotations

import os

import click

from mulligan import settings as settings_file
from mulligan.records import new_id
from mulligan.remember.store import Store
from mulligan.serve.cli.options import now, opened


@click.command(
    epilog="Examples:\n\n  mulligan mcp\n\n  mulligan install ask --client claude-code\n\n"
    "  claude mcp add mulligan -- mulligan mcp"
)
@click.option(
    "--store",
    metavar="URL",
    help="Another store than the settings say: a path, postgresql://HOST/DATABASE, or a server's address.",
)
def mcp(store: str | None) -> None:
    """Let an agent ask what is known about failures: an MCP server on stdio.

    Its tools are known_failures, suggest_fix, recent_failures and record_outcome. It is started by an MCP client, and
    ends with it.
    """
    from mulligan.serve.mcp.server import serve  # needs the mcp extra: fail before the store is opened

    # isort: split
    from mulligan.parts import classify_of, redactor_of
    from mulligan.prompt.questions import Answers
    from mulligan.serve.cli.proxy import SESSIONS
    from mulligan.serve.mcp.knowledge import Knowledge

    # User settings only: a project's settings file is part of untrusted code.
    settings = settings_file.read({"store": store} if store else {}, of_user=True)
    found: list[Store] = []

    def kept() -> Store | None:
        """Return the store as soon as it exists. A read must not create files."""
        if not found and not settings.off and (there := opened(settings)) is not None:
            found.append(there)
        return found[0] if found else None

    words = Answers(redactor_of(settings, "local", personal=False))
    session = next((os.environ[name] for name in SESSIONS if os.environ.get(name)), new_id("mcp"))
    knowledge = Knowledge(kept, words, classify_of(settings), now=now, session=session[:200], policy=settings.policy)
    serve(knowledge, words.instructions())
