"""An undeclared key of a nested object that was meant as a missing name, and when nothing is renamed."""

from __future__ import annotations

from typing import Any

import pytest

import mulligan
from mulligan.recover.policy import Suggestion

TEXT, COUNT = {"type": "string"}, {"type": "integer"}


def an_object(optional: dict[str, Any] | None = None, **required: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {**required, **(optional or {})}, "required": list(required)}


def suggest(arguments: dict[str, Any], schema: dict[str, Any], **options: Any) -> tuple[Suggestion, ...]:
    return mulligan.suggest("place", arguments, "Invalid arguments", schema=schema, memory=False, **options).suggestions


LINE = an_object(sku=TEXT, quantity=COUNT)
LINES = an_object(lines={"type": "array", "items": LINE})
CARD = an_object(type={"const": "card"}, holder=TEXT)
BANK = an_object(type={"const": "bank"}, label=TEXT)


def test_only_undeclared_key_is_renamed_to_the_only_missing_name() -> None:
    first, *_ = suggest({"lines": [{"sku": "K9", "units": 2}]}, LINES)

    assert first.arguments == {"lines": [{"sku": "K9", "quantity": 2}]}
    assert [(change.path, change.operation, change.after) for change in first.changes] == [
        ("lines.0.units", "rename", "quantity")
    ]
    assert not first.automatic  # nothing but its place says that it is the same


def test_each_object_of_a_list_is_renamed_by_itself() -> None:
    first, *_ = suggest({"lines": [{"sku": "K9", "units": 2}, {"article": "K7", "quantity": 1}]}, LINES)

    assert first.arguments == {"lines": [{"sku": "K9", "quantity": 2}, {"sku": "K7", "quantity": 1}]}


@pytest.mark.parametrize("keyword", ["anyOf", "oneOf"])
def test_branch_with_the_right_constant_determines_the_name(keyword: str) -> None:
    first, *_ = suggest({"method": {"type": "bank", "title": "Rent"}}, an_object(method={keyword: [CARD, BANK]}))

    assert first.arguments == {"method": {"type": "bank", "label": "Rent"}}
    assert [change.path for change in first.changes] == ["method.title"]


def test_misspelled_name_below_a_reference_in_a_branch_is_renamed_automatically() -> None:
    schema = an_object(method={"anyOf": [{"$ref": "#/$defs/Card"}, {"$ref": "#/$defs/Bank"}, {"type": "null"}]})
    first, *_ = suggest(
        {"method": {"type": "card", "Holder": "Ida"}}, {**schema, "$defs": {"Card": CARD, "Bank": BANK}}
    )

    assert first.arguments == {"method": {"type": "card", "holder": "Ida"}}
    assert first.automatic


def test_branches_nested_in_branches_are_repaired() -> None:
    inner = {"oneOf": [CARD, BANK]}
    schema = an_object(entry={"anyOf": [an_object(methods={"type": "array", "items": inner}), {"type": "null"}]})
    first, *_ = suggest({"entry": {"methods": [{"type": "card", "bearer": "Ida"}]}}, schema)

    assert first.arguments == {"entry": {"methods": [{"type": "card", "holder": "Ida"}]}}
    assert [change.path for change in first.changes] == ["entry.methods.0.bearer"]


def test_branches_that_fit_equally_well_suggest_nothing() -> None:
    pipe, tank = an_object(name=TEXT, length=COUNT), an_object(name=TEXT, volume=COUNT)

    assert not suggest({"part": {"name": "A", "extent": 4}}, an_object(part={"anyOf": [pipe, tank]}))


def test_similar_name_decides_between_branches() -> None:
    pipe, tank = an_object(name=TEXT, length=COUNT), an_object(name=TEXT, volume=COUNT)
    first, *_ = suggest({"part": {"name": "A", "volume_liters": 4}}, an_object(part={"anyOf": [pipe, tank]}))

    assert first.arguments == {"part": {"name": "A", "volume": 4}}


def test_value_of_another_type_is_not_renamed() -> None:
    assert not suggest({"lines": [{"sku": "K9", "remark": "two"}]}, LINES)
    assert not suggest({"lines": [{"article": 9, "quantity": 1}]}, LINES)  # not even with a cast


@pytest.mark.parametrize(
    "name", ["amount", "price", "path", "url", "recipient", "role", "force_level", "id", "order_id"]
)
def test_privileged_names_and_ids_need_a_similar_key(name: str) -> None:
    assert not suggest(
        {"item": {"title": "Tea", "color": "green"}}, an_object(item=an_object(title=TEXT, **{name: TEXT}))
    )


def test_abbreviation_of_a_privileged_name_is_suggested_and_never_applied() -> None:
    first, *_ = suggest(
        {"item": {"title": "Tea", "addr": "Quay 1"}}, an_object(item=an_object(title=TEXT, address=TEXT))
    )

    assert first.arguments == {"item": {"title": "Tea", "address": "Quay 1"}}
    assert not first.automatic


def test_operator_decides_which_names_are_privileged() -> None:
    call, schema = {"item": {"title": "Tea", "color": "green"}}, an_object(item=an_object(title=TEXT, path=TEXT))

    assert suggest(call, schema, unprivileged=("path",))[0].arguments == {"item": {"title": "Tea", "path": "green"}}
    shade = an_object(item=an_object(title=TEXT, shade=TEXT))
    assert not suggest(call, shade, privileged=("shade",))


def test_undeclared_key_may_hold_the_value_so_the_default_is_not_filled_in() -> None:
    offer = an_object(title=TEXT, language={"type": "string", "default": "en"})
    first, *_ = suggest({"offer": {"title": "Tea", "tongue": "fr"}}, an_object(offer=offer))

    assert first.arguments == {"offer": {"title": "Tea", "language": "fr"}}
    assert not first.automatic


def test_undeclared_keys_elsewhere_stay() -> None:
    schema = an_object(meta=an_object(source=TEXT), line=LINE)
    first, *_ = suggest({"meta": {"source": "web", "trace": "t1"}, "line": {"sku": "K9", "units": 2}}, schema)

    assert first.arguments == {"meta": {"source": "web", "trace": "t1"}, "line": {"sku": "K9", "quantity": 2}}


def test_call_that_fits_its_schema_is_not_changed_by_an_error_that_contradicts_it() -> None:
    error = (
        "2 validation errors for Arguments\nlines.0.units\n  Field required [type=missing]\nlines.0.quantity\n"
        "  Extra inputs are not permitted [type=extra_forbidden]"
    )
    call = {"lines": [{"sku": "K9", "quantity": 2}]}

    assert not mulligan.suggest("place", call, error, schema=LINES, memory=False).suggestions
    assert not mulligan.suggest("place", call, error, memory=False).suggestions  # names in an error are untrusted
