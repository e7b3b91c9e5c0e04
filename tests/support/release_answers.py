"""Questions to a store, and the names of the public interface, for comparison with a released version.

`tests/release_0_1_0/build.py` runs this file with the code of the release, and the tests run it with the current code.
So it uses public commands, routes and the `Store` protocol only.
"""

from __future__ import annotations

import ast
import inspect
import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from click.testing import CliRunner

import mulligan
from mulligan import settings
from mulligan.cli import cli
from mulligan.contract.counters import StatsQuery
from mulligan.contract.store import (
    FixQuery,
    LessonQuery,
    PatternQuery,
    RecallQuery,
    RunQuery,
    SessionQuery,
    Store,
)
from mulligan.core.records import to_builtins
from mulligan.store import wire_protocol

LISTS = ("runs --since all --limit 500", "patterns --limit 500", "fixes --limit 500", "lessons --limit 500", "sessions")
COMMANDS = (
    *LISTS,
    "runs --since all --status partial", "runs --since all --tool search", "runs --since 24h",
    "patterns --state muted", "patterns --state resolved", "patterns --text limit --order last_seen",
    "stats --since all", "stats --since 24h",
    *(f"stats --since all --by {by}" for by in ("agent", "tool", "kind", "model", "version", "attempt", "time")),
    "prompt --proposed", "audit --since all", "audit --since all --tenant acme", "tenant list", "token list",
    "export --level local",
)  # fmt: skip
"""What is typed before --store and --json. Each entry of a list is shown too."""
DETAILS = {"runs": "show", "patterns": "patterns show", "fixes": "fixes show", "lessons": "lessons show"}
ROUTES = (
    "/v1/runs?since=all&limit=200", "/v1/stats?since=all", "/v1/stats?since=all&by=tool", "/v1/patterns", "/v1/fixes",
    "/v1/lessons", "/v1/tools?since=all", "/v1/agents?since=all", "/v1/audit",
)  # fmt: skip
MAX_SHOWN = 40
"""Entries of a list that are shown one by one."""


# A store


def freeze_time(monkeypatch: Any, now: int) -> None:
    """Let the wall clock stand still, in UTC milliseconds."""
    monkeypatch.setattr(time, "time", lambda: now / 1000)
    monkeypatch.setattr(time, "time_ns", lambda: now * 1_000_000)


def ask_command(words: str, store: str) -> Any:
    """Run a command in this process. Return what it prints, as JSON or as a list of JSON lines."""
    result = CliRunner().invoke(cli, [*words.split(), "--store", store, "--json"])
    assert result.exit_code in (0, 1), f"{words}: {result.output}"
    try:
        return json.loads(result.stdout)
    except json.JSONDecodeError:
        return [json.loads(line) for line in result.stdout.splitlines()]


def ask_commands(store: str) -> dict[str, Any]:
    answers = {words: ask_command(words, store) for words in COMMANDS}
    for words in LISTS:
        command = DETAILS.get(words.split()[0], "sessions show")
        for row in answers[words][:MAX_SHOWN]:
            id = row.get("id") or row["session"]
            answers[f"{command} {id}"] = ask_command(f"{command} {id}", store)
    return answers


def ask_store(store: Store, tenant: str, now: int) -> dict[str, Any]:
    """Ask for everything of one tenant through the protocols that all stores implement."""
    patterns = store.patterns(tenant, PatternQuery(limit=500))
    answers: dict[str, Any] = {
        "runs": store.runs(tenant, RunQuery(limit=500)),
        "patterns": patterns,
        "fixes": store.fixes(tenant, FixQuery(now=now, limit=500)),
        "lessons": store.lessons(tenant, LessonQuery(now=now)),
        "sessions": store.sessions(tenant, SessionQuery()),
        "stats": store.stats(tenant, StatsQuery(now=now, by="tool", detail=True)),
        "keys": {kind: sorted(store.keys(tenant, kind)) for kind in ("session", "note", "schema", "recorder")},
        "journals": sorted(store.journals(tenant)),
        "recall": [
            store.recall(tenant, RecallQuery(tool=pattern.tool, fingerprint=pattern.fingerprint))
            for pattern in patterns
        ],
    }
    return dict(json.loads(wire_protocol.encode_value(to_builtins(answers))))


def ask_server(get: Callable[[str], Any]) -> dict[str, Any]:
    """Ask the routes of the API. `get` returns the JSON document of a path."""
    return {route: get(route) for route in ROUTES}


# The public interface

DOCUMENTED_MODULES = ("testing", "otel", "pytest_plugin", "integrations/*")
"""Modules whose names users import, beside those of `mulligan` itself. They are parsed: some need a framework."""


def describe_interface() -> dict[str, list[str]]:
    """Return all public names: of Python, settings, environment variables, commands with options, and the wire."""
    names = (*settings.SETTING_NAMES, *settings.TABLE_NAMES)
    tool_options = (*settings.TOOL_CHOICES, *settings.TOOL_TYPES)
    return {
        "python": sorted({*_list_python_names(), *_list_module_names()}),
        "settings": sorted([*names, *(f"tools.NAME.{option}" for option in tool_options)]),
        "environment": sorted(["MULLIGAN", *(f"MULLIGAN_{name.upper()}" for name in settings.SETTING_NAMES)]),
        "commands": sorted(_list_commands(cli, "mulligan")),
        "store methods": sorted(wire_protocol.METHODS),
    }


def _list_python_names() -> Iterator[str]:
    for name in mulligan.__all__:
        value = getattr(mulligan, name)
        yield name
        yield from _list_parameters(name, value)
        if isinstance(value, type):
            for member in (member for member in dir(value) if not member.startswith("_")):
                yield f"{name}.{member}"
                yield from _list_parameters(f"{name}.{member}", inspect.getattr_static(value, member))


def _list_parameters(name: str, value: Any) -> Iterator[str]:
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):  # not callable, or a class of C
        return
    for parameter in signature.parameters:
        if parameter != "self" and not parameter.startswith("_"):
            yield f"{name}({parameter})"


def _list_module_names() -> Iterator[str]:
    folder = Path(mulligan.__file__).parent
    for path in sorted(path for pattern in DOCUMENTED_MODULES for path in folder.glob(f"{pattern}.py")):
        module = ".".join(path.relative_to(folder).with_suffix("").parts)
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name[0] != "_":
                yield f"{module}:{node.name}"
                yield from _list_member_names(f"{module}:{node.name}", node)


def _list_member_names(name: str, node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.ClassDef):
        for member in node.body:
            if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef):
                if member.name == "__init__":
                    yield from _list_member_names(name, member)
                elif member.name[0] != "_":
                    yield f"{name}.{member.name}"
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
            if argument.arg != "self" and argument.arg[0] != "_":
                yield f"{name}({argument.arg})"


def _list_commands(command: click.Command, words: str) -> Iterator[str]:
    yield words
    for parameter in command.params:
        for option in (*parameter.opts, *parameter.secondary_opts):
            yield f"{words} {option if option.startswith('-') else option.upper()}"
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from _list_commands(inner, f"{words} {name}")


def list_routes(openapi: Mapping[str, Any]) -> list[str]:
    """Return the routes of an OpenAPI document with their parameters."""
    routes = []
    for path, operations in openapi["paths"].items():
        for method, operation in operations.items():
            routes += [f"{method} {path}"]
            routes += [f"{method} {path} {parameter['name']}" for parameter in operation.get("parameters", ())]
    return sorted(routes)
