"""Which numeric arguments say how much, and which say which object."""

from __future__ import annotations

import pytest

from mulligan.core.quantity_arguments import is_other_action, measures_quantity


@pytest.mark.parametrize(
    "name",
    "limit top_k topK k n per_page page_size pageSize max_results maxTokens timeout width days nights lines pages "
    "number_of_guests quantity filter.limit items.0.count rows timeout_ms first".split(),
)
def test_name_that_says_how_much_measures_a_quantity(name):
    assert measures_quantity(name, 50, 10)


@pytest.mark.parametrize(
    "name",
    "id note_id noteId ID ids.0 note issue issue_number number index max_id since_id page row line chapter offset "
    "position version year month day hour key x latitude status address".split(),
)
def test_name_that_may_say_which_object_measures_no_quantity(name):
    assert not measures_quantity(name, 0, 1)


def test_fraction_measures_a_quantity_unless_it_names_a_place():
    assert measures_quantity("pedal_position", 1.5, 1.0)
    assert not measures_quantity("latitude", 95.5, 90)
    assert not measures_quantity("note_id", 0.0, 1)


@pytest.mark.parametrize(
    ("tool", "name", "before", "after"),
    [
        ("delete_logs", "older_than_days", 365, 30),
        ("purge", "max_age", 90, 30),
        ("keep_backups", "limit", 100, 10),
        ("drop_rows", "limit", 1, 10),
        ("trade", "size", 500, 100),
        ("refundOrder", "value", 90, 30),
        ("shop.purchase", "quantity", 500, 100),
    ],
)
def test_quantity_is_another_action_where_a_tool_spends_or_destroys(tool, name, before, after):
    assert is_other_action(tool, "once", name, before, after)


@pytest.mark.parametrize(
    ("tool", "name", "before", "after"),
    [
        ("book", "nights", 9, 7),
        ("set_temperature", "level", 30, 25),
        ("archive", "limit", 1, 10),
        ("send", "limit", None, 10),
    ],
)
def test_quantity_of_another_tool_is_no_other_action(tool, name, before, after):
    assert not is_other_action(tool, "idempotent", name, before, after)


def test_object_is_another_action_whatever_the_tool():
    assert is_other_action("read_note", "none", "note_id", 0, 1)
