"""Names and phrases that the language guide denies: a count by folder that may only shrink."""

from __future__ import annotations

import ast
import functools

import pytest
from language import Hit, count_by_folder, find_all, find_names, find_phrases, read_baseline

SHOWN = 20
"""Hits that a failure lists."""


@functools.cache
def all_hits() -> dict[str, list[Hit]]:
    return find_all()


@pytest.mark.parametrize("section", ["names", "prose"])
def test_language_denies_no_more_than_the_baseline(section: str) -> None:
    hits, baseline = all_hits()[section], read_baseline()[section]
    excess = {folder: count for folder, count in count_by_folder(hits).items() if count > baseline.get(folder, 0)}
    lines = [str(hit) for hit in hits if hit.folder in excess]
    assert not excess, (
        f"More denied {section} than the baseline allows in {', '.join(excess)}. Rename what you added; it is one of:\n"
        + "\n".join(lines[:SHOWN])
        + (f"\n... and {len(lines) - SHOWN} more" if len(lines) > SHOWN else "")
    )


@pytest.mark.parametrize("section", ["names", "prose"])
def test_language_baseline_is_tight(section: str) -> None:
    counts, baseline = count_by_folder(all_hits()[section]), read_baseline()[section]
    slack = {
        folder: f"{limit} -> {counts.get(folder, 0)}"
        for folder, limit in baseline.items()
        if counts.get(folder, 0) < limit
    }
    assert not slack, f"Fewer denied {section} than the baseline. Lower it with scripts/language_baseline: {slack}"


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
