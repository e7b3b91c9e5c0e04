"""What a tool's page suggests."""

from __future__ import annotations

import pytest

pytest.importorskip("jinja2", reason="needs the extra: pip install 'mulligan[server]'")

from mulligan.contract.counters import Cell
from mulligan.core.records import RUN_SPECIFIC, Change, Fix
from mulligan.dashboard import tool_pages


def fix(*changes: Change, worked: int = 5) -> Fix:
    return Fix(id="fix_1", tool="t", fingerprint="f", changes=changes, successes=worked, trials=worked)


def test_a_description_is_proposed_from_what_had_to_change_and_what_then_worked():
    cell = Cell(changed_arguments={"limit clamp": 9, "customer_id rename": 7, "tags wrap": 3})
    known = [
        fix(Change(path="limit", operation="clamp", after=25)),
        fix(Change(path="customer_id", operation="rename", after="customer")),
    ]
    assert list(tool_pages.suggest_sentences("find_orders", cell, known)) == [
        "`limit` has bounds; the nearest accepted value was 25.",
        "The argument is named `customer`, not `customer_id`.",
        "`tags` is a list, even for one item.",
    ]


def test_a_value_that_belongs_to_a_run_is_not_proposed():
    cell = Cell(changed_arguments={"limit clamp": 9, "query substitute": 30})
    known = [fix(Change(path="limit", operation="clamp", after=RUN_SPECIFIC))]
    assert list(tool_pages.suggest_sentences("t", cell, known)) == ["State the minimum and maximum of `limit`."]


@pytest.mark.parametrize(
    "message",
    ["error", "An unexpected error occurred.", "Something went wrong!", "Invalid input", "failed", "", "500", "-1"],
)
def test_a_message_that_says_nothing_is_vague(message):
    assert tool_pages.is_vague(message)


@pytest.mark.parametrize(
    "message",
    ["limit must be at most 25", "no such column: order_id", "401 the key is no longer valid", "File not found: a.txt"],
)
def test_a_message_that_says_what_is_wrong_is_not(message):
    assert not tool_pages.is_vague(message)
