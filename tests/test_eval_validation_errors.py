"""The recorded errors of six validation libraries: the right rename comes first, and nothing else is suggested."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

EVALS = str(Path(__file__).parent.parent / "evals")
LIBRARIES = ["ajv", "fastapi", "jsonschema", "marshmallow", "pydantic", "zod"]


@pytest.fixture(scope="module")
def evaluation() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.syspath_prepend(EVALS)
        yield importlib.import_module("validation_errors.__main__")
    for name in [name for name in sys.modules if name.split(".")[0] == "validation_errors"]:
        del sys.modules[name]


def test_at_least_200_renames_over_six_libraries_are_recorded(evaluation: Any) -> None:
    renames = {
        (case.scenario.name, case.library.split()[0])
        for case in evaluation.load_cases()
        if case.scenario.right is not None
    }

    assert len(renames) >= 200
    assert sorted({library for _, library in renames}) == LIBRARIES


@pytest.mark.parametrize("library", LIBRARIES)
def test_first_suggestion_renames_the_right_field(evaluation: Any, library: str) -> None:
    cases = [case for case in evaluation.load_cases() if case.library.startswith(library)]
    verdicts = [
        case.judge(case.suggest(has_schema=True), has_schema=True) for case in cases if case.scenario.right is not None
    ]

    assert verdicts.count("right") >= evaluation.MIN_RIGHT_RATIO * len(verdicts) > 0


@pytest.mark.parametrize("library", [*LIBRARIES, "hostile"])
def test_nothing_is_suggested_where_nothing_may_be(evaluation: Any, library: str) -> None:
    cases = [*evaluation.load_cases(), *evaluation.hostile_cases()]
    cases = [case for case in cases if case.library.startswith(library)]
    forbidden = [case.scenario.name for case in cases if case.scenario.right is None and case.suggest(has_schema=True)]

    assert cases
    assert forbidden == []
    assert [case.scenario.name for case in cases if case.suggest(has_schema=False)] == []


def test_pydantic_says_what_was_recorded(evaluation: Any) -> None:
    """The recording is made by the libraries: pydantic, which the tests have, still says the same."""
    libraries = importlib.import_module("validation_errors.libraries")
    scenario = next(row for row in libraries.positives() if row.name == "second line count")
    recorded = {case.rendering: case.error for case in evaluation.load_cases() if case.scenario.name == scenario.name}
    errors = {rendering: error for library, rendering, error in libraries.render_pydantic(scenario)}

    assert errors["json"] == recorded["json"]
