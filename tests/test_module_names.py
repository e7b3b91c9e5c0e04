"""Every module, function, command and file that is named in a string exists: no import checks a string."""

from __future__ import annotations

import ast
import functools
import importlib
import json
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest
from syntax import list_nodes

import mulligan
from mulligan import hooks
from mulligan.cli import COMMANDS, cli, clients
from mulligan.hooks import agents as hook_agents
from mulligan.transcripts import formats

ROOT = Path(__file__).parent.parent
SOURCE = Path(mulligan.__file__).parent

OTHER_NAMES = frozenset(
    {
        "mulligan.db",  # files
        "mulligan.toml",
        "mulligan.tenant",  # a setting of PostgreSQL
        # attributes and metrics of OpenTelemetry
        "mulligan.attempt",
        "mulligan.attempt.duration",
        "mulligan.backoff_seconds",
        "mulligan.calls.unrecovered",
        "mulligan.calls.recovered",
        "mulligan.cost",
        "mulligan.cost_usd",
        "mulligan.end_reason",
        "mulligan.failure.code",
        "mulligan.failure.type",
        "mulligan.fingerprint",
        "mulligan.operation.id",
        "mulligan.outcome",
        "mulligan.remedy",
        "mulligan.repair.strategy",
        "mulligan.run.id",
        "mulligan.run.parent",
        "mulligan.step.name",
        "mulligan.step.type",
        "mulligan.took_effect",
    }
)
"""Dotted names in strings that are no modules. A new one belongs here only if nothing imports it."""
NAME = re.compile(r"mulligan(?:\.[A-Za-z_]\w*)+(?::\w+)?")
QUOTED_NAME = re.compile(r"`(mulligan(?:\.[A-Za-z_]\w*)+)`")
RUN_MODULE = re.compile(r"-m (mulligan(?:\.\w+)*)")
MAY_MENTION = re.compile(r"""[`"']mulligan\.|-m mulligan""")
SOURCE_PATH = re.compile(r"src/mulligan/[\w/.-]*\w")


class Mention(NamedTuple):
    """A name in a string, and where it stands."""

    name: str
    path: str
    line: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line} names {self.name}"


@functools.cache
def resolve(name: str) -> Any:
    """Return the module, or the attribute of one, that a dotted name stands for. Raise `LookupError` without one."""
    path, _, attribute = name.partition(":")
    words = path.split(".")
    for length in range(len(words), 0, -1):
        module_name = ".".join(words[:length])
        try:
            value: Any = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name is None or not module_name.startswith(error.name):
                raise  # the module exists and imports something that does not
            continue
        try:
            return functools.reduce(getattr, [*words[length:], *filter(None, [attribute])], value)
        except AttributeError as error:
            raise LookupError(f"{name}: {error}") from None
    raise LookupError(f"{name}: no such module")


def is_resolved(name: str) -> bool:
    try:
        resolve(name)
    except LookupError:
        return False
    return True


def find_mentions(source: str, path: str) -> Iterator[Mention]:
    """Yield the names of modules in strings: as the whole string, quoted in a docstring, or as an f-string's start."""
    if not MAY_MENTION.search(source):
        return
    nodes = list_nodes(source)
    formatted = {id(node.values[0]) for node in nodes if isinstance(node, ast.JoinedStr) and node.values}
    for node in nodes:
        if not (isinstance(node, ast.Constant) and isinstance(node.value, str) and "mulligan" in node.value):
            continue
        text = node.value
        names = [*QUOTED_NAME.findall(text), *RUN_MODULE.findall(text)]
        if NAME.fullmatch(text):
            names.append(text)
        elif id(node) in formatted and NAME.fullmatch(text.rstrip(".")) and text.endswith("."):
            names.append(text.rstrip("."))  # f"mulligan.cli.{module}" names a package
        yield from (Mention(name, path, node.lineno) for name in names)


def test_module_names_in_strings_resolve() -> None:
    mentions = [
        mention
        for path in sorted(SOURCE.rglob("*.py"))
        for mention in find_mentions(path.read_text(), path.relative_to(ROOT).as_posix())
    ]
    assert len(mentions) > 20
    assert [
        str(mention) for mention in mentions if mention.name not in OTHER_NAMES and not is_resolved(mention.name)
    ] == []
    assert OTHER_NAMES - {mention.name for mention in mentions} == frozenset(), "remove what no string names"


@pytest.mark.parametrize(
    "source",
    [
        'importlib.import_module("mulligan.nowhere")',
        'importlib.import_module(f"mulligan.nowhere.{name}")',
        '"""See `mulligan.core.records.Nothing`."""',
        'script = "mulligan.cli:nothing"',
        'print("python -m mulligan.nowhere")',
    ],
)
def test_module_names_that_do_not_exist_are_found(source: str) -> None:
    assert [mention for mention in find_mentions(source, "made_up.py") if not is_resolved(mention.name)]


def test_public_names_resolve_to_what_type_checkers_see() -> None:
    tree = ast.parse((SOURCE / "__init__.py").read_text())
    modules = {
        alias.asname: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module != "__future__"
        for alias in node.names
    }
    for name in mulligan.__all__:
        value = getattr(mulligan, name)
        if name in modules:
            assert value is resolve(f"{modules[name]}:{name}")


def test_commands_resolve() -> None:
    context = click.Context(cli)
    for name in COMMANDS:
        assert cli.get_command(context, name) is not None


def test_hooks_can_be_installed_in_every_agent_and_read_its_log() -> None:
    assert set(clients.AGENTS) == set(hooks.AGENTS)
    assert set(hooks.AGENTS.values()) - {""} <= set(formats.FORMATS)
    for client in clients.AGENTS.values():
        assert set(client.hook_events) <= set(hook_agents.EVENT_TYPES)


def test_console_scripts_and_checker_settings_resolve() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for script in project["project"]["scripts"].values():
        assert callable(resolve(script))
    overrides = [override["module"] for override in project["tool"]["mypy"]["overrides"]]
    names = [name for modules in overrides for name in modules if name.startswith("mulligan.")]
    assert names
    assert [name for name in names if not is_resolved(name.removesuffix(".*"))] == []


def test_plugin_commands_are_console_scripts() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    for path in (ROOT / "plugins").rglob("hooks.json"):
        events = json.loads(path.read_text())["hooks"]
        commands = [
            hook["command"] for matchers in events.values() for matcher in matchers for hook in matcher["hooks"]
        ]
        assert commands
        for command in commands:
            script, agent = re.findall(r"(mulligan-?\w*) ([\w-]+) 2>", command)[0]
            assert script in scripts
            assert agent in hooks.AGENTS
            assert set(events) <= set(hook_agents.EVENT_TYPES)


@pytest.mark.slow
def test_start_script_is_recognized_and_runs_by_its_path() -> None:
    assert clients.SCRIPT_PATTERN.search(str(clients.SCRIPT))
    done = subprocess.run(
        [sys.executable, "-ESP", str(clients.SCRIPT), "--version"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.strip() == f"mulligan {mulligan.__version__}", done.stderr


def test_source_paths_in_pages_and_settings_exist() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "pyproject.toml", ROOT / "Makefile"]
    pages += [*SOURCE.rglob("*.py"), *(ROOT / "scripts").glob("*")]
    missing = {
        f"{page.relative_to(ROOT)}: {path}"
        for page in pages
        if page.is_file()
        for path in SOURCE_PATH.findall(page.read_text())
        if not (ROOT / path).exists()
    }
    assert missing == set()


def test_file_names_occur_at_most_twice():
    names = Counter(path.name for path in (ROOT / "src").rglob("*.py") if path.name != "__init__.py")
    assert [name for name, count in names.items() if count > 2] == []
