"""Which numeric arguments say how much, and which say which object."""

from __future__ import annotations

import pytest

from mulligan.core.quantity_arguments import clamp_objection, is_other_action, measures_quantity


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
    ("tool", "effects", "name", "before", "after"),
    [
        ("search", "once", "top_k", 50, 10),
        ("upload", "once", "chunk_size", 50, 10),
        ("forecast", "once", "days", 10, 7),
        ("getWeather", "once", "days", "10", 7),
        ("weather.get_forecast", "once", "days", 0, 1),
        ("anything", "none", "days", 10, 7),
        ("delete_preview", "none", "limit", 1, 10),
    ],
)
def test_quantity_is_changed_where_a_call_only_reads_or_asks_for_less(tool, effects, name, before, after):
    assert clamp_objection(tool, effects, name, before, after) == ""


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
    assert "may do something else" in clamp_objection(tool, "once", name, before, after)


@pytest.mark.parametrize(
    ("tool", "name", "before", "after"),
    [
        ("book", "nights", 9, 7),
        ("set_temperature", "level", 30, 25),
        ("archive", "limit", 1, 10),
        ("send", "limit", None, 10),
    ],
)
def test_quantity_is_only_suggested_where_a_tool_does_something_with_it(tool, name, before, after):
    assert not is_other_action(tool, "idempotent", name, before, after)
    assert "may do something else" in clamp_objection(tool, "idempotent", name, before, after)


@pytest.mark.parametrize("position", [{"page": 3}, {"offset": 0}, {"skip": 40}, {"startPage": 2}])
def test_size_is_only_suggested_where_the_caller_reads_page_by_page(position):
    reason = clamp_objection("list_orders", "none", "page_size", 100, 50, {"page_size": 100, **position})
    assert reason.endswith("would be another place in the results")


@pytest.mark.parametrize("argument", [{"page": None}, {"per_page": 100}, {"page_token": "a1"}, {"start": "2026-01-01"}])
def test_size_is_changed_where_no_argument_is_a_number_of_results_before(argument):
    assert clamp_objection("list_orders", "none", "page_size", 100, 50, {"page_size": 100, **argument}) == ""


def test_object_is_never_changed_to_a_bound():
    assert "may identify an object" in clamp_objection("read_note", "none", "note_id", 0, 1)
