"""mulligan mcp."""

from __future__ import annotations

import os

import click

from mulligan import settings as settings_file
from mulligan.cli.options import now_ms, open_existing_store
from mulligan.core.records import new_id
from mulligan.store.base import Store


@click.command(
    epilog="Examples:\n\n  mulligan mcp\n\n  mulligan install mcp-server --client claude-code\n\n"
    "  claude mcp add mulligan -- mulligan mcp"
)
@click.option(
    "--store",
    metavar="URL",
    help="Use another store than the settings: a path, postgresql://HOST/DATABASE, or a server's address.",
)
def mcp(store: str | None) -> None:
    """Run an MCP server on stdio that answers an agent's questions about failures.

    Its tools are known_failures, suggest_fix, recent_failures and record_outcome. An MCP client starts it, and it exits
    with the client.
    """
    from mulligan.mcp.mcp_server import serve  # needs the mcp extra: fail before the store is opened

    # isort: split
    from mulligan.build import build_classifier, build_redactor
    from mulligan.cli.proxy import SESSION_VARIABLES
    from mulligan.mcp.knowledge import Knowledge
    from mulligan.prompt.mcp_messages import McpMessages

    # User settings only: a project's settings file is part of untrusted code.
    settings = settings_file.load_settings({"store": store} if store else {}, of_user=True)
    opened_stores: list[Store] = []

    def current_store() -> Store | None:
        """Return the store as soon as it exists. A read must not create files."""
        if not opened_stores and settings.enabled and (existing_store := open_existing_store(settings)) is not None:
            opened_stores.append(existing_store)
        return opened_stores[0] if opened_stores else None

    answers = McpMessages(build_redactor(settings, "local", personal=False))
    session = next((os.environ[name] for name in SESSION_VARIABLES if os.environ.get(name)), new_id("mcp"))
    knowledge = Knowledge(
        current_store, answers, build_classifier(settings), now=now_ms, session=session[:200], policy=settings.policy
    )
    serve(knowledge, answers.instructions())
