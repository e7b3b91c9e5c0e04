"""Whether an error rejects what was asked, or describes the state of the world."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest

from mulligan import AgentError
from mulligan.classify.classifier import Classifier
from mulligan.core import kinds
from mulligan.core.argument_rejections import judge_text, rejects_arguments
from mulligan.core.failure import Failure

TABLE = Path(__file__).with_name("error_texts.tsv")
REJECTIONS = (
    "This time zone cannot be used for a range.",
    "page_size is too large for this plan.",
    "The batch is too large.",
    "The priority has a wrong format.",
    "This state is not known.",
    "The result would be too large.",
    "So many rows are not allowed during business hours.",
    "This view is not available to you.",
    "This layout is not enabled.",
    "day has an invalid format.",
    "The bytes cannot be decoded.",
    "The output is not supported.",
    "This unit is not supported.",
    "day is out of range for month",
    "no such column: revenue",
)
STATES = (
    "The data of this region is not available.",
    "No station reports for this city.",
    "This symbol is not listed.",
    "The department has no records.",
    "The result is not published.",
    "The account is not connected.",
    "The arm is blinded.",
    "There are no figures.",
    "The room is taken.",
    "This color is sold out.",
    "The place is ambiguous.",
    "The list has open tasks.",
    "Nothing was found.",
    "The budget is used up.",
    "It is not listed there.",
)


def to_failure(text: str, **fields: object) -> Failure:
    return Failure.of(kinds.TOOL_INVALID_ARGUMENTS, text, **fields)


@pytest.mark.parametrize("error_class", [ValueError, AgentError, RuntimeError, KeyError])
def test_text_decides_whatever_class_is_raised(error_class: type[Exception]) -> None:
    classifier = Classifier()

    assert [text for text in REJECTIONS if not rejects_arguments(classifier.classify(error_class(text)))] == []
    assert [text for text in STATES if rejects_arguments(classifier.classify(error_class(text)))] == []


def test_states_are_rarely_taken_for_rejections_and_most_rejections_are_recognized() -> None:
    texts, recognized = Counter[str](), Counter[str]()
    for line in TABLE.read_text(encoding="utf-8").splitlines()[1:]:
        label, text = line.split("\t")
        texts[label] += 1
        recognized[label] += rejects_arguments(to_failure(text))

    assert recognized["state"] + recognized["neither"] <= 0.01 * (texts["state"] + texts["neither"])
    assert recognized["rejection"] >= 0.85 * texts["rejection"]


@pytest.mark.parametrize("status", [404, 409, 423, 429, 500, 503])
def test_status_about_a_resource_or_service_is_no_rejection(status: int) -> None:
    assert not rejects_arguments(to_failure("This unit is not supported.", status=status))


def test_kind_about_a_service_is_no_rejection() -> None:
    assert not rejects_arguments(Failure.of(kinds.TOOL_TIMEOUT, "The value must be a number."))


def test_detail_counts_if_the_message_says_neither() -> None:
    assert rejects_arguments(to_failure("Request failed", detail="sort must be one of asc, desc"))
    assert not rejects_arguments(to_failure("Nothing was found.", detail="sort must be one of asc, desc"))


def test_code_counts_if_the_message_says_neither() -> None:
    assert rejects_arguments(to_failure("Request failed", code="INVALID_FORMAT"))
    assert rejects_arguments(to_failure("Request failed", code="InvalidParameterValue"))
    assert not rejects_arguments(to_failure("Request failed", code="NOT_FOUND", detail="limit must be a number"))
    assert not rejects_arguments(to_failure("Request failed", code="E17"))


@pytest.mark.parametrize("text", ["", "\ud800", "must " * 2_000_000, "unknown \ud800 option", "invalid " * 1_000_000])
def test_hostile_text_is_read_at_both_ends_only(text: str) -> None:
    judge_text.cache_clear()
    started_at = time.perf_counter()

    assert rejects_arguments(to_failure(text, detail=text)) in (True, False)
    assert time.perf_counter() - started_at < 1


def test_end_of_a_long_text_is_read() -> None:
    assert rejects_arguments(to_failure("x" * 10_000_000 + " This unit is not supported."))
