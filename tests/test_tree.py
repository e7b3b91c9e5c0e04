"""The tree of the package and its tests: one name per class, a test file per module, no private names in tests."""

from __future__ import annotations

import ast
import functools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from module_tests import MODULE_TESTS
from syntax import list_nodes, name_called, parse_source

import mulligan

SOURCE = Path(mulligan.__file__).parent
TESTS = Path(__file__).parent
MIN_NAME_CHARS = 4
"""Length of the shortest public name that counts as a mention of its module."""


def find_classes(source: str) -> Iterator[str]:
    """Yield the names of all classes of a module, nested ones too. A leading underscore makes no other name."""
    for node in list_nodes(source):
        if isinstance(node, ast.ClassDef):
            yield node.name.lstrip("_")


def find_shared_names(sources: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the class names that several classes have, with their modules."""
    modules: dict[str, list[str]] = defaultdict(list)
    for module, source in sources.items():
        for name in find_classes(source):
            modules[name].append(module)
    return {name: found_in for name, found_in in modules.items() if len(found_in) > 1}


SHARED_CLASS_NAMES = {"MulliganPlugin"}
"""Two adapters have it, because both frameworks call such a part a plugin. A program uses one of them."""


def test_no_two_classes_share_a_name():
    sources = {path.relative_to(SOURCE).as_posix(): path.read_text() for path in sorted(SOURCE.rglob("*.py"))}
    assert set(find_shared_names(sources)) == SHARED_CLASS_NAMES


def test_the_checker_sees_a_shared_class_name_wherever_it_stands():
    sources = {"a.py": "class Span: ...", "b.py": "def f():\n    class _Span: ...", "c.py": "class Row: ..."}
    assert find_shared_names(sources) == {"Span": ["a.py", "b.py"]}


def module_name(path: Path) -> str:
    """Return the name of a module within the package; "" is the package itself."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def public_names(source: str) -> set[str]:
    """Return the public names that a module binds, without what it imports."""
    names: set[str] = set()
    for node in parse_source(source).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names.update(target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return {name for name in names if not name.startswith("_")}


def own_test_files(module: str) -> list[Path]:
    """Return where the test file of a module's name may be: in the mirrored folder, a package's also inside it."""
    *folders, name = module.split(".")
    mirrored = TESTS.joinpath(*folders)
    return [mirrored / f"test_{name}.py", mirrored / name / f"test_{name}.py"]


@functools.cache
def find_imports(source: str) -> set[str]:
    """Return what a source imports: modules, and the names that it takes from them."""
    imports: set[str] = set()
    for node in list_nodes(source):
        if isinstance(node, ast.Import):
            imports.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            imports.update((str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)))
    return imports


def is_imported(module: str, source: str) -> bool:
    return f"mulligan.{module}" in find_imports(source)


def is_mentioned(module: str, source: str, test_source: str, sign: str = "") -> bool:
    """Return whether a test file imports a module or names something of it; where a sign is listed, has that."""
    if sign:
        return sign in test_source
    words = set(re.findall(r"\w+", test_source))
    names = {name for name in public_names(source) if len(name) >= MIN_NAME_CHARS}
    return is_imported(module, test_source) or bool(names & words)


SHORT_FORM = re.compile(r"\b(SuccessRecord|CallTemplate|StandaloneRun|fast_path)\b")


def test_five_modules_know_the_short_form_of_a_success():
    """It begins in `first_attempt` and ends in `queue`: behind that, a success is a step like all others."""
    modules = {module_name(path) for path in SOURCE.rglob("*.py") if SHORT_FORM.search(path.read_text("utf-8"))}
    assert modules == {
        "capture.first_attempt",
        "capture.wrapped_function",
        "core.fast_path",
        "journal",
        "record.queue",
    }


MODULES = {module_name(path): path for path in sorted(SOURCE.rglob("*.py"))}
TESTED_MODULES = {
    module: path
    for module, path in MODULES.items()
    if module and (path.name != "__init__.py" or public_names(path.read_text()))
}
"""Modules that need a test file: all but packages that bind no name. The public names are the API's: test_api.py."""


def test_every_module_has_a_test_file_of_its_name_or_a_listed_one():
    missing = [
        module
        for module in TESTED_MODULES
        if module not in MODULE_TESTS and not any(path.exists() for path in own_test_files(module))
    ]
    assert missing == [], "Add tests/.../test_<module>.py, or an entry in tests/support/module_tests.py."


def test_every_listed_module_exists_and_needs_its_entry():
    needless = [
        module
        for module in MODULE_TESTS
        if module not in MODULES or any(path.exists() for path in own_test_files(module))
    ]
    assert needless == [], "Remove these entries from tests/support/module_tests.py."
    assert list(MODULE_TESTS) == sorted(MODULE_TESTS)


def test_every_listed_test_file_exists_and_mentions_its_module():
    silent = []
    for module, entry in MODULE_TESTS.items():
        name, _, sign = entry.partition(": ")
        path = TESTS / name
        if not path.exists() or not is_mentioned(module, MODULES[module].read_text(), path.read_text(), sign):
            silent.append(f"{module}: {entry}")
    assert silent == []


def test_the_checker_sees_what_a_test_file_mentions():
    source = "LIMIT = 5\ndef parse_bound(text): ...\ndef _private(): ..."
    assert is_mentioned("recover.bounds", source, "from mulligan.recover import bounds")
    assert is_mentioned("recover.bounds", source, "from mulligan.recover.bounds import LIMIT")
    assert is_mentioned("recover.bounds", source, "assert parse_bound('5')")
    assert not is_mentioned("recover.bounds", source, "from mulligan.recover import repair\n_private()")
    assert is_mentioned("recover.bounds", source, "run('/bounds')", "/bounds")


# What tests may reach


PRIVATE_ACCESSES = {
    "capture/test_player.py": (1, "moves the sandbox's clock inside a call"),
    "capture/test_wrap.py": (2, "begins a first attempt by hand, on the parts of a Mulligan"),
    "classify/test_classifier.py": (1, "size of a cache"),
    "record/test_memory_lookup.py": (1, "the current agent in another context"),
    "record/test_queue.py": (2, "a lock that must be free"),
    "record/test_recorder.py": (1, "a listener of the recorder's stream"),
    "report/test_scan_report.py": (1, "size of a table"),
    "server/test_background.py": (2, "the clock of a store that is opened by its URL"),
    "store/postgres/test_postgres_retention.py": (1, "proves that nothing is removed run by run"),
    "store/postgres/test_postgres_store.py": (5, "a database without an extension or a partition; its URL"),
    "store/postgres/test_postgres_tables.py": (1, "the URL of a database, to connect without the store"),
    "store/test_fix_votes.py": (2, "size of a cache"),
    "store/test_sqlite.py": (6, "connections around a fork, and with a lower limit of variables"),
    "test_api.py": (11, "parts of a Mulligan, replaced by broken ones or asked for their store"),
    "test_testing.py": (9, "state of the default Mulligan, which a sandbox must leave as it was"),
}
"""Accesses to private names of the package that remain in tests, by file, with the reason. It may only shrink."""
FOREIGN_NAMES = frozenset({"_asdict", "_exit", "_fields", "_replace", "_types", "_value"})
"""Names of other libraries that begin with an underscore, and that the package may bind too."""
PATCHING_FUNCTIONS = ("setattr", "getattr", "delattr", "hasattr")
SUPPORT_MODULES = frozenset(path.stem for path in (TESTS / "support").glob("*.py"))


def is_private(name: str) -> bool:
    return name.startswith("_") and name.strip("_") != "" and not name.startswith("__") and name not in FOREIGN_NAMES


def bound_names(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the private names that a source binds: functions, classes, variables and attributes."""
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and isinstance(node.value, ast.Name)
            and node.value.id == "self"
        ):
            names.add(node.attr)
    return {name for name in names if is_private(name)}


def find_private_accesses(source: str, package_names: set[str]) -> list[str]:
    """Return where a test reaches a private name of the package: as an attribute, an import or a name to patch."""
    if package_names.isdisjoint(re.findall(r"\b_\w+", source)):
        return []  # most files: parsing all takes seconds
    nodes = list(ast.walk(ast.parse(source)))
    names = package_names - bound_names(nodes)
    accesses: list[str] = []
    for node in nodes:
        if isinstance(node, ast.Attribute) and node.attr in names:
            if not (isinstance(node.value, ast.Name) and node.value.id in {"self", "cls", *SUPPORT_MODULES}):
                accesses.append(f"{node.lineno} {ast.unparse(node)}")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mulligan"):
            accesses += [f"{node.lineno} {alias.name}" for alias in node.names if alias.name in names]
        elif isinstance(node, ast.Call) and name_called(node).endswith(PATCHING_FUNCTIONS):
            is_support = bool(node.args) and ast.unparse(node.args[0]) in SUPPORT_MODULES
            accesses += [
                f"{node.lineno} {argument.value}"
                for argument in node.args
                if not is_support
                and isinstance(argument, ast.Constant)
                and isinstance(argument.value, str)
                and argument.value.rpartition(".")[2] in names
            ]
    return accesses


def test_tests_reach_no_private_names_beyond_the_baseline():
    package_names: set[str] = set()
    for path in MODULES.values():
        package_names |= bound_names(list_nodes(path.read_text()))
    accesses = {
        path.relative_to(TESTS).as_posix(): find_private_accesses(path.read_text(), package_names)
        for path in sorted(TESTS.rglob("*.py"))
    }
    counts = {name: len(lines) for name, lines in accesses.items() if lines}
    allowed = {name: count for name, (count, _) in PRIVATE_ACCESSES.items()}
    excess = [
        f"{name}:{line}" for name, lines in accesses.items() if len(lines) > allowed.get(name, 0) for line in lines
    ]
    assert excess == [], "Use public names, the Store contract or the command line."
    assert counts == allowed, "Fewer than the baseline allows: lower PRIVATE_ACCESSES."


def test_the_checker_sees_every_way_to_a_private_name():
    names = {"_lock", "_build", "_read"}
    source = """
from mulligan.recover.plan import _build
store._read()
monkeypatch.setattr(store, "_lock", None)
monkeypatch.setattr("mulligan.store.sqlite._read", None)
self._lock = options._replace(other=other._unknown)
"""
    assert len(find_private_accesses(source, {"_build", "_read"})) == 3
    assert find_private_accesses("store._lock.acquire()", names) == ["1 store._lock"]
    assert find_private_accesses("class A:\n    def _read(self): ...\nA()._read()", names) == []


MAX_PARAMETERS = 8
MIN_MODULE_LINES = 60
SMALL_MODULES = {
    "__main__": "`python -m mulligan` runs it",
    "cli.start": "the entry point of the command, which must import little before it knows what to run",
    "cli.demo_mcp_server": "a program of its own, which the demo starts",
    "hooks.start": "the entry point of a hook: a file that an agent's settings name",
}
"""Modules that are short and have at most one importer, each with its reason to stay alone."""


def long_constructors(source: str) -> list[str]:
    """Return the classes whose hand-written `__init__` takes more than `MAX_PARAMETERS` parameters beside `self`."""
    return [
        node.name
        for node in list_nodes(source)
        if isinstance(node, ast.ClassDef)
        for method in node.body
        if isinstance(method, ast.FunctionDef) and method.name == "__init__"
        if len(method.args.args) + len(method.args.kwonlyargs) + len(method.args.posonlyargs) > MAX_PARAMETERS + 1
    ]


def test_no_constructor_takes_more_than_eight_parameters():
    found = {module_name(path): long_constructors(path.read_text()) for path in SOURCE.rglob("*.py")}
    assert {module: classes for module, classes in found.items() if classes} == {}


def test_the_checker_counts_all_sorts_of_parameters():
    eight = "class Fine:\n    def __init__(self, a, b, c, d, e, f, g, *, h): ..."
    assert long_constructors(eight) == []
    assert long_constructors(eight.replace("Fine", "Long").replace("*, h", "*, h, i")) == ["Long"]


def test_a_short_module_has_several_importers_or_a_reason():
    sources = {module_name(path): path.read_text() for path in SOURCE.rglob("*.py") if path.name != "__init__.py"}
    short_modules = {module for module, source in sources.items() if source.count("\n") < MIN_MODULE_LINES}
    for module in list(short_modules):
        mentions = [source for source in sources.values() if module.rpartition(".")[2] in source]
        if sum(is_imported(module, source) for source in mentions) > 1:
            short_modules.remove(module)
    assert short_modules == SMALL_MODULES.keys()
