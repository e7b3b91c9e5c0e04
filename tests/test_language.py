"""Names and phrases that the language guide denies."""

from __future__ import annotations

import ast
import functools

import pytest
from language import UNFINISHED, Hit, find_all, find_names, find_phrases

SHOWN = 20
"""Hits that a failure lists."""


@functools.cache
def all_hits() -> dict[str, list[Hit]]:
    return find_all()


@pytest.mark.parametrize("section", ["names", "prose"])
def test_language_guide_is_kept(section: str) -> None:
    lines = [str(hit) for hit in all_hits()[section] if not hit.is_unfinished]
    assert not lines, (
        f"STYLE.md denies these {section}. Use the words it suggests instead:\n"
        + "\n".join(lines[:SHOWN])
        + (f"\n... and {len(lines) - SHOWN} more" if len(lines) > SHOWN else "")
    )


def test_unfinished_modules_have_denied_names() -> None:
    """A module that has none any more leaves the list."""
    paths = {hit.path.removeprefix("src/mulligan/") for hits in all_hits().values() for hit in hits}
    assert [name for name in UNFINISHED if not any(path.startswith(name) for path in paths)] == []


@pytest.mark.parametrize(
    "source",
    [
        "told = 1",
        "def kept(): ...",
        "class Known: ...",
        "def build(each): ...",
        "for each in steps: ...",
        "steps = [each for each in runs]",
        "self.found = 1",
        "MOST: int = 5",
        "with open(path) as held: ...",
        "import records as rest",
        "is_of_memory = True",
        "match value:\n    case [given, *_]: ...",
        "if (made := build()): ...",
        "try: ...\nexcept ValueError as seen: ...",
        "lambda what: 1",
    ],
)
def test_language_finds_denied_names_wherever_they_are_bound(source: str) -> None:
    assert list(find_names(ast.parse(source), "src/mulligan/steps.py"))


@pytest.mark.parametrize(
    "source",
    [
        "future.done()",
        "build(each=1)",
        "stored_steps = 1",
        "is_closed = True",
        "def compare(left, right): ...",
        "print(told)",
        "from records import kept",
    ],
)
def test_language_leaves_allowed_names_alone(source: str) -> None:
    assert not list(find_names(ast.parse(source), "src/mulligan/steps.py"))


def test_language_finds_denied_modules_and_phrases() -> None:
    assert [hit.text for hit in find_names(ast.parse(""), "src/mulligan/found.py")] == ["module found"]
    assert [str(hit) for hit in find_phrases("One line.\nIt is\nGiven up anew.", "docs/a.md")] == [
        "docs/a.md:3 Given up",
        "docs/a.md:3 anew",
    ]
