"""What is true of a kind of failure is a field of its row in the table of kinds, and nowhere else."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from syntax import list_nodes

import mulligan
from mulligan.core import kinds
from mulligan.core.failure import Failure, Kind, Remedy
from mulligan.core.kinds import KINDS

SOURCE = Path(mulligan.__file__).parent
TABLE = SOURCE / "core" / "kinds.py"
CONSTANTS = {name for name, value in vars(kinds).items() if isinstance(value, Kind)}
CODES = {kind.code for kind in KINDS.values()}
OTHER_MEANINGS = {
    "unknown": "an outcome, a cost",
    "cancelled": "an outcome, a state of a call",
    "conflict": "the result of comparing files",
    "timeout": "a setting, an argument",
    "api_error": "an event of an agent",
}
"""Codes that other things have as a name too. Alone they prove nothing."""


def find_kinds_outside_of_the_table(source: str) -> Iterator[int]:
    """Yield the lines that compare a kind with a code or a row, or that list codes or names of kinds."""
    for node in list_nodes(source):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            is_code = any(isinstance(side, ast.Attribute) and ast.unparse(side).endswith("kind.code") for side in sides)
            if is_code or any(_is_kind(side) for side in sides):
                yield node.lineno
        elif isinstance(node, ast.Match) and ast.unparse(node.subject).find("kind.code") >= 0:
            yield node.lineno
        elif isinstance(node, ast.Set | ast.List | ast.Tuple | ast.Dict):
            members = node.keys if isinstance(node, ast.Dict) else node.elts
            if sum(map(_is_kind, members)) > 1 or (isinstance(node, ast.Dict) and any(map(_is_name, members))):
                yield node.lineno
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "split":
            words = ast.literal_eval(node.func.value).split() if isinstance(node.func.value, ast.Constant) else []
            if 2 * sum(word in CODES or word in KINDS for word in words) > max(2, len(words)):
                yield node.lineno


def _is_kind(node: ast.AST | None) -> bool:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value in KINDS or (node.value in CODES and node.value not in OTHER_MEANINGS)
    return isinstance(node, ast.Name | ast.Attribute) and ast.unparse(node).rpartition(".")[2] in CONSTANTS


def _is_name(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in KINDS


def test_no_code_of_a_kind_is_listed_or_compared_outside_of_the_table():
    lines = [
        f"{path.relative_to(SOURCE)}:{line}"
        for path in sorted(SOURCE.rglob("*.py"))
        if path != TABLE
        for line in find_kinds_outside_of_the_table(path.read_text())
    ]
    assert lines == []


@pytest.mark.parametrize(
    "line",
    [
        "failure.kind.code == other",
        "kind.code in names",
        "kind is kinds.TOOL_TIMEOUT",
        "name == 'not_found'",
        "CODES = {'not_found', 'file_not_found'}",
        "TITLES = {'tool/timeout': 'Timeout'}",
        "CODES = frozenset('timeout conflict rate_limit'.split())",
        "match failure.kind.code:\n    case other: pass",
    ],
)
def test_the_check_finds_a_list_and_a_comparison(line: str):
    assert list(find_kinds_outside_of_the_table(line)) == [1]


def test_an_unknown_property_of_a_row_is_an_error():
    with pytest.raises(TypeError, match="is_refused"):
        kinds.declare("tool", "declined", Remedy.RETRY, kinds.NO, "Wait.", is_refused=True)


def test_a_kind_that_is_read_or_declared_has_the_properties_of_its_row_or_code():
    assert Kind.from_name("tool/not_found").is_empty_lookup
    assert Kind("payments", "rate_limit", Remedy.REPLAN).is_cured_by_time
    assert not Kind("payments", "declined").is_refusal
    overridden = Failure(kind=Kind.from_name("tool/timeout"), remedy=Remedy.STOP, took_effect=kinds.NO).kind
    assert overridden.loses_answer
    assert overridden.remedy is Remedy.STOP


@pytest.mark.parametrize("type", ["tool", "model"])
def test_each_status_means_one_kind(type: str):
    for status in range(400, 531):
        rows = [
            kind for kind in KINDS.values() if status in kind.statuses and (kind.type == "model") == (type == "model")
        ]
        assert len(rows) <= 1, f"{status} means {rows}"
        assert kinds.find_kinds_of_status(status, type), f"{status} means nothing"


def test_each_number_means_one_kind_of_a_type():
    meanings: dict[tuple[str, str], list[str]] = {}
    for kind in KINDS.values():
        for number in kinds.read_numbers(kind.numbers):
            meanings.setdefault(number, []).append(kind)
    assert {number: names for number, names in meanings.items() if len(names) > 1} == {}


@pytest.mark.parametrize("field", ["possible_numbers", "permanent_numbers"])
def test_a_number_that_is_possible_or_permanent_means_a_kind(field: str):
    for kind in KINDS.values():
        for family, value in kinds.read_numbers(getattr(kind, field)):
            assert family == "http" or kinds.find_kinds_of_number(family, value), f"{kind}: {family} {value}"
