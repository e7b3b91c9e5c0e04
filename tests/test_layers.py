"""Who may import whom: the table of ARCHITECTURE.md as an allow-list, held against every line of the source."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from lazy_imports import LAZY_IMPORTS
from syntax import list_nodes, name_called

import mulligan

SOURCE = Path(mulligan.__file__).parent

RECORDS = ("core.records", "core.failure", "core.calls", "core.links", "core.call_facts", "core.run_links",
           "core.value_support", "core.argument_comparison", "core.stated_limits", "core.argument_rejections",
           "core.transformations", "core.fork_safety", "core.privileged_arguments", "core.quantity_arguments",
           "core.kinds")  # fmt: skip
"""What failures, their kinds, records and links are: the part of `core` that publishes nothing."""
CONTRACT = ("contract", "core", "redaction")
"""What a store promises, in the words of `core`. The rules of learning know it, and every store builds on those."""
BELOW = ("settings", "prompt", "classify", "recover", *CONTRACT)
ALLOWED: dict[str, tuple[str, ...]] = {
    # The command. `proxy` starts the server behind it if `cli` cannot be imported.
    "__main__": ("cli", "proxy"),
    # floor 7: what people and programs start
    "cli": ("dashboard", "server", "mcp", "proxy", "hooks", "api", "build", "logging", "transcripts", "report",
            "record", "journal", "store", "learn", "capture", *BELOW, ""),
    "dashboard": ("server", "report", "record", "store", *BELOW, ""),
    "server": ("transcripts", "report", "store", "learn", "capture", "classify", *CONTRACT, ""),
    "mcp": ("report", "record", "store", "learn", "capture", *BELOW, ""),
    "proxy": ("hooks", "build", "report", "store", "capture", *BELOW),
    "hooks": ("transcripts", "journal", "store", "learn", "capture", *BELOW),
    "pytest_plugin": ("testing",),
    "testing": ("api", "build", "report", "store", "capture", *BELOW),
    "integrations": ("api", "learn", "capture", *BELOW),
    # floor 6: what users call, and what wires it
    "api": ("build", "learn", "capture", *BELOW),
    "build": ("logging", "record", "store", "learn", "capture", *BELOW),
    "logging": ("report", "core"),
    "otel": ("core",),
    # floor 5: readers of logs, and what people read
    "transcripts": ("capture", "classify", "core", "redaction"),
    "report": ("prompt", *CONTRACT),
    # floor 4: from a returned call to the store
    "record": ("store", "learn", "journal", "prompt", "classify.fingerprint", *CONTRACT),
    "store": ("learn", "journal", "prompt", *CONTRACT),
    "learn": ("prompt", "classify.fingerprint", *CONTRACT),
    "capture": ("classify", "recover", "prompt", "core", "redaction"),
    # floor 3
    "settings": ("recover.policy", "core.failure", "core.log"),
    "contract": ("classify.fingerprint", "core", "redaction"),
    "journal": ("core",),
    "prompt": (*RECORDS, "redaction"),
    # floor 2
    "classify": (*RECORDS, "redaction"),
    "recover": (*RECORDS, "core.conversation"),
    # floor 1
    "core": ("redaction",),
    # floor 0
    "redaction": (),
    # The public names. All of it is for type checkers; at run time nothing is imported until a name is used.
    "": ("api", "capture.reflector", "capture.tool_outcome", "classify.declared_errors", "core", "recover.model",
         "recover.policy", "contract"),
}  # fmt: skip
"""For each folder or file of the package what it may import of the others; `""` is the package itself."""


def test_no_expression_has_a_group_that_never_gives_back():
    """Before 3.11.5 such a group takes more than it should, and Debian 12 has 3.11.2: a secret would slip through."""
    possessive = re.compile(r"\)(?:[*+?]|\{[0-9,]+\})\+|\(\?>")
    for path in SOURCE.rglob("*.py"):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            assert not (re.search(r"r[f]?[\"']", line) and possessive.search(line)), f"{path.name}:{number}"


class Import(NamedTuple):
    """One import of ours, as absolute names within the package: `calls`, `recover.plan`."""

    of: str
    by: str
    line: int
    is_for_types: bool

    def __str__(self) -> str:
        return f"{self.by or '__init__'}:{self.line} imports {self.of or 'mulligan'}"


def modules() -> dict[str, Path]:
    """Every module of the package by its name within it."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imports(name: str, source: str, known: frozenset[str] = frozenset(MODULES)) -> Iterator[Import]:
    """Every import of ours in a source, wherever it stands: in a function, a class, a TYPE_CHECKING block."""
    nodes = list_nodes(source)
    for_types = {
        id(inner)
        for node in nodes
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    for node in nodes:
        targets: list[str] = []
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}:{node.lineno} imports by a relative name"
            inside = (node.module or "").removeprefix("mulligan").removeprefix(".")
            for alias in node.names:
                is_module = ".".join(filter(None, (inside, alias.name))) in known
                targets.append(f"{node.module}.{alias.name}" if is_module else str(node.module))
        elif isinstance(node, ast.Call) and name_called(node).endswith(("import_module", "__import__")):
            named = node.args[0] if node.args else None
            if isinstance(named, ast.Constant) and isinstance(named.value, str):
                targets = [named.value]
        for target in targets:
            if target == "mulligan" or target.startswith("mulligan."):
                of = target.removeprefix("mulligan").removeprefix(".")
                yield Import(of, name, node.lineno, id(node) in for_types)


def room(module: str) -> str:
    """The folder or top-level file a module belongs to."""
    return module.partition(".")[0]


def is_allowed(one: Import) -> bool:
    if room(one.by) == room(one.of) and room(one.by):
        return True
    return any(
        each in (one.of, room(one.of)) or (each and one.of.startswith(f"{each}.")) for each in ALLOWED[room(one.by)]
    )


@functools.cache
def all_imports() -> list[Import]:
    return [one for name, path in MODULES.items() for one in imports(name, path.read_text())]


def find_cycles(imports: Iterable[Import]) -> set[tuple[str, ...]]:
    """Return the modules that import each other: the strongly connected components of the imports, sorted by name."""
    targets: dict[str, set[str]] = {}
    for edge in imports:
        if edge.of != edge.by:
            targets.setdefault(edge.by, set()).add(edge.of)
    indexes: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    cycles: set[tuple[str, ...]] = set()

    def visit(module: str) -> None:
        indexes[module] = lowest[module] = len(indexes)
        stack.append(module)
        for target in sorted(targets.get(module, ())):
            if target not in indexes:
                visit(target)
                lowest[module] = min(lowest[module], lowest[target])
            elif target in stack:
                lowest[module] = min(lowest[module], indexes[target])
        if lowest[module] == indexes[module]:
            position = stack.index(module)
            component = stack[position:]
            del stack[position:]
            if len(component) > 1:
                cycles.add(tuple(sorted(component)))

    for module in sorted(targets):
        if module not in indexes:
            visit(module)
    return cycles


def test_every_room_of_the_house_is_in_the_table():
    assert {room(name) for name in MODULES} == set(ALLOWED)


def test_imports_point_only_where_the_table_allows():
    assert [str(one) for one in all_imports() if not is_allowed(one)] == []


def test_the_table_allows_nothing_upwards():
    order = list(ALLOWED)[:-1]
    for who, allowed in ALLOWED.items():
        for each in filter(None, allowed if who else ()):
            assert order.index(room(each)) > order.index(who), f"{who} may import {each}"


def test_no_modules_import_each_other():
    """For types neither: two modules that need each other's types are one module to a reader."""
    assert find_cycles(all_imports()) == set()


def test_only_what_people_start_imports_what_wires_the_parts():
    upper = {"cli", "integrations", "proxy", "testing", ""}
    assert {room(one.by) for one in all_imports() if room(one.of) == "api"} <= upper
    assert {room(one.by) for one in all_imports() if room(one.of) == "build"} <= {*upper, "api"}


# The checker itself


@pytest.mark.parametrize(
    "source",
    [
        "from mulligan.contract.store import Store",
        "from mulligan.store import store",
        "from mulligan import store",
        "import mulligan.core.events as heard",
        "def f():\n    from mulligan.core.events import Stream",
        "class A:\n    def f(self):\n        import mulligan.capture.wrap",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from mulligan.capture.context import Source",
        "TYPE_CHECKING = False\nif TYPE_CHECKING:\n    import mulligan.api",
        "try:\n    from mulligan import prompt\nexcept ImportError:\n    pass",
        "import importlib\nimportlib.import_module('mulligan.cli')",
    ],
)
def test_the_checker_sees_a_bad_import_wherever_it_stands(source):
    found = list(imports("recover.made_up", source))
    assert found
    assert not all(map(is_allowed, found))


@pytest.mark.parametrize(
    "source",
    [
        "from mulligan.core.records import Step",
        "from mulligan.recover import schema",
        "import os",
        "from mulligan.core import calls",
    ],
)
def test_the_checker_leaves_a_good_import_alone(source):
    assert all(map(is_allowed, imports("recover.made_up", source)))


def test_the_checker_sees_a_circle():
    found = [
        *imports("recover.a", "from mulligan.recover.b import x", frozenset({"recover.a", "recover.b"})),
        *imports("recover.b", "def f():\n    from mulligan.recover import a", frozenset({"recover.a", "recover.b"})),
    ]
    assert find_cycles(found) == {("recover.a", "recover.b")}


def test_the_checker_sees_a_cycle_of_imports_for_types():
    names = frozenset({"recover.a", "recover.b", "recover.c", "recover.d"})
    found = [
        *imports("recover.a", "from mulligan.recover.b import x", names),
        *imports("recover.b", "from mulligan.recover.c import x", names),
        *imports("recover.c", "if TYPE_CHECKING:\n    from mulligan.recover.a import x", names),
        *imports("recover.d", "from mulligan.recover.a import x", names),
    ]
    assert find_cycles(found) == {("recover.a", "recover.b", "recover.c")}
    assert find_cycles(one for one in found if not one.is_for_types) == set()


# What an import costs


def list_imports(source: str) -> Iterator[tuple[str, bool]]:
    """Return each module that a source imports at run time, and whether a function does."""
    nodes = list_nodes(source)
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    in_functions = {id(inner) for function in functions for inner in ast.walk(function)}
    for_types = {
        id(inner)
        for node in nodes
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    for node in nodes:
        targets: list[str] = []
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            inner_names = [f"{node.module}.{alias.name}" for alias in node.names]
            targets = [name if name.removeprefix("mulligan.") in MODULES else str(node.module) for name in inner_names]
        if id(node) not in for_types:
            yield from ((target, id(node) in in_functions) for target in targets)


def list_with_packages(module: str) -> list[str]:
    """Return a module and its packages, the innermost first."""
    parts = module.split(".")
    return [".".join(parts[:count]) for count in range(len(parts), 0, -1)]


@functools.cache
def list_loaded(module: str) -> frozenset[str]:
    """Return which modules of ours are loaded when one of them is imported."""
    loaded: set[str] = set()
    pending = [module]
    while pending:
        path = MODULES.get(pending.pop())
        for target, is_lazy in list_imports(path.read_text()) if path is not None else ():
            if not is_lazy and target.startswith("mulligan."):
                names = {name.removeprefix("mulligan.") for name in list_with_packages(target)} - loaded
                loaded |= names
                pending += names
    return frozenset(loaded)


def list_lazy_imports() -> Iterator[tuple[str, str]]:
    for name, path in MODULES.items():
        yield from ((name, target) for target, is_lazy in list_imports(path.read_text()) if is_lazy)


def find_lazy_entry(target: str) -> str | None:
    return next((name for name in list_with_packages(target) if name in LAZY_IMPORTS), None)


def test_functions_import_what_the_table_of_lazy_imports_has_and_nothing_else():
    entries = {target: find_lazy_entry(target) for _, target in list_lazy_imports()}
    assert [target for target, entry in entries.items() if entry is None] == []
    assert set(LAZY_IMPORTS) == set(entries.values())


def test_no_function_imports_what_its_module_has_loaded():
    needless = [
        f"{name} imports {target}"
        for name, target in list_lazy_imports()
        # This package loads the redactor when a function of it is imported.
        if target.removeprefix("mulligan.") in list_loaded(name) and target != "mulligan.redaction"
    ]
    assert needless == []


def loaded_by(statement: str) -> set[str]:
    code = f"import sys\nbefore = set(sys.modules)\n{statement}\nprint('\\n'.join(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.slow
def test_importing_mulligan_imports_nothing_until_a_name_is_used():
    loaded = loaded_by("import mulligan")
    assert {name for name in loaded if name.startswith("mulligan")} == {"mulligan"}
    assert not loaded & {"asyncio", "sqlite3", "msgspec", "typing", "click", "jsonschema_rs", "logging"}


@pytest.mark.slow
def test_asyncio_and_sqlite_are_loaded_by_those_who_use_them():
    loaded = loaded_by("import mulligan\nmulligan.tool(lambda: 1)")
    assert "mulligan.api" in loaded
    assert not loaded & {"asyncio", "sqlite3", "jsonschema_rs", "click"}


def test_no_public_name_equals_a_modules_name():
    assert not set(mulligan.__all__) & {room(name) for name in MODULES if name}


def test_every_public_name_can_be_had_and_no_other():
    for name in mulligan.__all__:
        assert getattr(mulligan, name) is not None
    assert set(mulligan.__all__) <= set(dir(mulligan))
    with pytest.raises(AttributeError, match="nonsense"):
        mulligan.nonsense  # noqa: B018 - the access is the test
